"""`gpu-device-plugin cost`."""
