"""`gpu-device-plugin simulate`: what would fit, under which policy, on which nodes."""
