"""Lets pods borrow memory that is free at present, and changes the guarantees of running pods."""

from __future__ import annotations

from pathlib import Path

from gpu_device_plugin.settings.forms import OPTIONAL_PATH, duration, one_of
from gpu_device_plugin.settings.knobs import Settings, knob


class ElasticSettings(Settings):
    """Whether and how memory is lent."""

    borrowers: str = knob(
        "report",
        one_of("off", "report", "evict"),
        "What happens to a pod that does not return memory borrowed beyond its guarantee (annotation "
        "gpu-device-plugin/memory-limit): report (file, Event, metric), or evict after return_grace. off: no pod may "
        "borrow.",
        live=True,
    )
    return_grace_s: float = knob(
        "30s",
        duration(),
        "How long a borrower has to return memory before it may be evicted.",
        live=True,
    )
    memory_dir: Path | None = knob(
        "",
        OPTIONAL_PATH,
        "Directory, the same on the node, of the files that tell each container with shares of one GPU how much "
        "memory it may use now. Empty: none.",
        in_profile=False,
    )
