"""The agent's side of the device plugin: lists, answers and the ledger's upkeep."""
