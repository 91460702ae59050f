"""`gpu-device-plugin doctor`."""
