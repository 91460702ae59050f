"""The programs that users run; each wires edges to the core, none imports another."""
