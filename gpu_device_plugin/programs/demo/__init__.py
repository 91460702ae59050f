"""`gpu-device-plugin demo`: the node agent with a simulated kubelet and fake GPUs."""
