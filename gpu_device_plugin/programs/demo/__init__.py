"""`gpu-device-plugin demo`: the node agent between a kubelet double and fake GPUs."""
