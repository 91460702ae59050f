"""The features of the programs: one folder for each capability, with everything that belongs to it."""
