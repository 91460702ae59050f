"""The types that every decision uses: GPUs, memory, resources, shares, pods, policies and placements."""
