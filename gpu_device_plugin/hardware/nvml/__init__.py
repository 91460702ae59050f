"""The driver port over NVML."""
