"""A ConfigMap of settings, as a program finds it mounted: a folder that changes as one, or what is to be read there."""

import shutil
from pathlib import Path
from typing import Any

from gpu_device_plugin.model.contract.keys import DEFAULT_PROFILE
from gpu_device_plugin.settings.sources import Text, Texts

FOLDER = "/etc/gpushare"
"""Where our manifests have it mounted."""


def texts_of(config_map: dict[str, Any]) -> Texts:
    """Return what a program reads in `FOLDER` where this object is mounted."""
    files = {
        name.removesuffix(".yaml"): Text(f"{FOLDER}/{name}", text.encode()) for name, text in config_map["data"].items()
    }
    return Texts(files.pop(DEFAULT_PROFILE, None), FOLDER, files)


def mount(folder: Path, **files: str) -> Path:
    """Make these, named without their ``.yaml``, the files, as the kubelet does (pkg/volume/util/atomic_writer.go).

    Each is a link by way of ``..data``, itself a link, which is replaced; then names that are no more are removed.
    """
    folder.mkdir(exist_ok=True)
    data = folder / "..data"
    before = data.resolve() if data.is_symlink() else None
    made = folder / f"..{int(before.name[2:]) + 1 if before else 0}"
    made.mkdir()
    for name, text in files.items():
        (made / f"{name}.yaml").write_text(text, encoding="utf-8")
    (folder / "..data_tmp").symlink_to(made.name)
    (folder / "..data_tmp").replace(data)
    for name in files:
        link = folder / f"{name}.yaml"
        if not link.is_symlink():
            link.symlink_to(f"..data/{name}.yaml")
    for link in folder.glob("*.yaml"):
        if link.is_symlink() and not link.exists():
            link.unlink()
    if before is not None:
        shutil.rmtree(before)
    return folder
