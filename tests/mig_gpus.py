"""An H100 in MIG mode with its instances, for tests of what is told of them."""

from gpu_device_plugin.model.gpus import Gpu, MigInstance

SMALL = ("1g.10gb", 9_728)
MIDDLE = ("2g.20gb", 19_968)
LARGE = ("3g.40gb", 40_448)


def in_mig_mode(index: int, *profiles: tuple[str, int], letter: str = "m", alone: bool = True) -> tuple[Gpu, ...]:
    """Return a GPU in MIG mode, followed by an instance of each profile with its memory (MiB).

    Its UUID is ``GPU-<letter>``, and those of its instances ``MIG-<letter>0``, ``MIG-<letter>1``, ...
    """
    product = "NVIDIA H100 80GB HBM3"
    parent = Gpu(f"GPU-{letter}", index, product, 81_559, device_paths=(f"/dev/nvidia{index}",), mig=True)
    return (
        parent,
        *(
            Gpu(
                f"MIG-{letter}{number}",
                index,
                f"{product} MIG {profile}",
                memory_mib,
                device_paths=(f"/dev/nvidia{index}",),
                instance=MigInstance(parent.uuid, number, profile, gi=7 + number, ci=0, alone=alone),
            )
            for number, (profile, memory_mib) in enumerate(profiles)
        ),
    )
