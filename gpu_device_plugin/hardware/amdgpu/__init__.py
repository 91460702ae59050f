"""The driver port over the kernel's own files: GPUs of the drivers amdgpu (AMD) and xe (Intel)."""
