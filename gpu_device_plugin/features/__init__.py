"""What the programs can do beside giving GPUs to pods: a folder for each capability, with all that it has."""
