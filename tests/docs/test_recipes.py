"""The pods of docs/recipes.md for ROCm get what they read, and give it to their frameworks."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.docs.guide_world import EXAMPLES, documents, guide, pods_of
from tests.docs.pages import DOCS, blocks, sections, text_of

ROCM = EXAMPLES / "rocm"
SHOWN = sections(text_of(DOCS / "recipes.md"))["PyTorch and vLLM on ROCm"]
PODS = {path.name: pod for path in sorted(ROCM.glob("*.yaml")) for body in documents(path) for pod in pods_of(body)}


def test_the_section_applies_every_manifest() -> None:
    lines = [command for block in blocks(SHOWN, "console") for command, _ in block.commands]
    assert lines == [f"kubectl apply -f docs/examples/rocm/{name}" for name in PODS]


@pytest.mark.parametrize("name", PODS)
def test_a_pod_on_rocm_names_the_scheduler_and_leaves_the_gpus_to_the_agent(name: str) -> None:
    spec = PODS[name]["spec"]
    assert spec["schedulerName"] == "gpushare-scheduler"
    assert "runtimeClassName" not in spec
    assert not any("VISIBLE_DEVICES" in each["name"] for each in spec["containers"][0].get("env", ()))


async def test_each_pod_gets_a_gpu_by_device_nodes_and_its_limit_and_pytorch_the_fraction(tmp_path: Path) -> None:
    gpus = [{"model": "MI300X", "devices": ["/dev/kfd", f"/dev/dri/renderD{minor}"]} for minor in (128, 136)]
    (tmp_path / "gpus.yaml").write_text(json.dumps({"gpus": gpus}), encoding="utf-8")
    async with guide(tmp_path, str(tmp_path / "gpus.yaml")) as world:
        for name in PODS:
            await world.apply(ROCM / name)
        received = {name.partition("-")[0]: pod.container("main").received for name, pod in world.running.items()}
        told = {name: each.envs["GPUSHARE_MEMORY_LIMIT_MIB"] for name, each in received.items()}
        assert told == {"pytorch": "4096", "vllm": "16384"}
        for each in received.values():
            control, render = sorted(node.container_path for node in each.devices)[::-1]
            assert control == "/dev/kfd"
            assert render.startswith("/dev/dri/renderD")
            assert each.envs["NVIDIA_VISIBLE_DEVICES"] == "void"
        # 4 GiB of 191.98.
        assert received["pytorch"].envs["PYTORCH_CUDA_ALLOC_CONF"] == "per_process_memory_fraction:0.0208"


def test_vllm_is_started_with_nine_tenths_of_its_limit_as_a_fraction_of_the_whole_gpu(tmp_path: Path) -> None:
    """Of 192 GiB it has 16: 0.9 * 16 / 192 is 0.075."""
    container = PODS["vllm.yaml"]["spec"]["containers"][0]
    for program, text in {"python3": "echo 196608", "vllm": 'echo "$@"'}.items():
        (tmp_path / program).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (tmp_path / program).chmod(0o755)
    (script,) = container["args"]
    command = [*container["command"], script.replace("$$(", "$(")]
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "GPUSHARE_MEMORY_LIMIT_MIB": "16384"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "serve Qwen/Qwen2.5-1.5B-Instruct --gpu-memory-utilization 0.075\n"


def test_the_program_of_the_pod_with_pytorch_is_python() -> None:
    container = PODS["pytorch.yaml"]["spec"]["containers"][0]
    assert container["command"] == ["python3", "-c"]
    compile(container["args"][0], "pytorch.yaml", "exec")
