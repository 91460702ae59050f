"""The programs one can run; each wires edges to the core, none imports another."""
