"""`gpu-device-plugin simulate`, from the command line to what is printed."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from gpu_device_plugin.cli import parse
from gpu_device_plugin.programs.simulate.arguments import policies_in
from gpu_device_plugin.programs.simulate.program import main
from gpu_device_plugin.programs.simulate.progress import Bar
from gpu_device_plugin.programs.simulate.run import POLICIES
from gpu_device_plugin.programs.simulate.sources import MOST_BYTES
from gpu_device_plugin.settings.knobs import UsageError
from gpu_device_plugin.testing.builders import container, node, pod

if TYPE_CHECKING:
    from pathlib import Path

NODES = ("--nodes", "1x gpus=1 mem=10")
PODS = ("--pods", "1x mem=6; 1x mem=4")


def simulated(*words: str, kubectl: str = "kubectl") -> int:
    return main(parse(["simulate", *words]), {}, kubectl=kubectl)


def refusal(*words: str) -> str:
    with pytest.raises(UsageError) as error:
        simulated(*words)
    return str(error.value)


def document(capsys: pytest.CaptureFixture[str], *words: str, **more: str) -> Any:
    assert simulated(*words, "-o", "json", **more) == 0
    return json.loads(capsys.readouterr().out)


def test_policies_stand_below_each_other_and_classes_beside_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    """6 and 4 fill a GPU of 10 exactly, in either order."""
    assert simulated(*NODES, *PODS, "--policy", "fit,spread") == 0
    shown = capsys.readouterr()
    lines = [line.split() for line in shown.out.splitlines()]
    assert shown.out.startswith("1 node, 1 GPU; 2 pods of 2 kinds; 3 seeds\n")
    assert ["POLICY", "AT", "100", "%", "AT", "END", "REJECTED", "SECONDS"] in lines
    assert [line[:4] for line in lines if line and line[0] in {"fit", "spread"}] == [
        ["fit", "100.0", "100.0", "0.0"],
        ["spread", "100.0", "100.0", "0.0"],
    ]
    assert lines[-3:] == [
        ["ACCEPTED", "PODS", "fit", "spread"],
        ["0.4", "GPU", "3", "100.0", "100.0"],
        ["0.6", "GPU", "3", "100.0", "100.0"],
    ]
    assert shown.err == ""


def test_json_has_all_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """Of three pods of 6 one fits."""
    found = document(capsys, *NODES, "--pods", "3x mem=6", "--policy", "bestfit", "--seeds", "1")
    (policy,) = found["policies"]
    assert policy.pop("cpuSeconds") >= 0
    assert policy == {
        "policy": "bestfit",
        "allocatedAt100": 0.6,
        "allocatedAtEnd": 0.6,
        "rejected": 0.66667,
        "classes": [{"class": "0.6 GPU", "pods": 3, "accepted": 1}],
        "seeds": [{"accepted": 0.6, "rejected": 0.66667}],
    }
    assert (found["version"], found["nodes"], found["gpus"], found["freeShares"], found["pods"]) == (1, 1, 1, 10, 3)


def test_too_few_pods_leave_a_dash_for_what_never_happened(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated(*NODES, "--pods", "mem=6", "--policy", "fit") == 0
    assert "fit            -    60.0       0.0" in capsys.readouterr().out


def test_departures_have_no_allocation_at_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated(*NODES, *PODS, "--departures", "90") == 0
    assert "AT END" not in capsys.readouterr().out


def test_nodes_needed_are_told_with_what_the_sums_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated(*NODES, "--pods", "4x mem=6", "--nodes-needed", "--policy", "fit") == 0
    assert ["fit", "4", "4", "3"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    found = document(capsys, *NODES, "--pods", "4x mem=6", "--nodes-needed", "--policy", "fit")
    assert found["policies"] == [{"policy": "fit", "nodes": 4, "seeds": [4, 4, 4], "atLeast": 3}]


def test_the_picture_tells_its_figures_in_words_too(tmp_path: Path) -> None:
    file = tmp_path / "a.svg"
    assert simulated(*NODES, "--pods", "3x mem=6", "--policy", ",".join(POLICIES), "--picture", str(file)) == 0
    drawn = ET.parse(file).getroot()  # noqa: S314 - our own file
    name = "{http://www.w3.org/2000/svg}"
    said = drawn.findtext(f"{name}desc")
    assert said is not None
    assert "fit: 60.0 % of the GPUs allocated at the end, 66.7 % of the GPU asked for rejected." in said
    assert drawn.findtext(f"{name}title") == "GPU allocated, and pods rejected, by policy"
    assert len(drawn.findall(f"{name}polyline")) == len(drawn.findall(f"{name}rect")) == len(POLICIES)
    assert "prefers-color-scheme: dark" in (drawn.findtext(f"{name}style") or "")


# --- Sources ----------------------------------------------------------------------------------------------------------


def cluster(tmp_path: Path) -> str:
    """A GPU of 10 on which 6 are taken, and a queue of 4 and 5."""
    there = node("a", mem=10, count=1)
    there["metadata"]["uid"] = "a"
    placed = {"ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}
    objects = [
        there,
        pod("r", container(mem=6), uid="r", node="a", phase="Running", annotations=placed),
        pod("first", container(mem=4), uid="first", created="2026-11-01T00:00:00Z"),
        pod("second", container(mem=5), uid="second", created="2026-11-02T00:00:00Z"),
    ]
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"kind": "List", "items": objects}), encoding="utf-8")
    return str(file)


def script(tmp_path: Path, text: str) -> str:
    file = tmp_path / "kubectl"
    file.write_text(f"#!{sys.executable}\nimport sys\n{text}\n", encoding="utf-8")
    file.chmod(0o755)
    return str(file)


def test_running_pods_stay_and_the_queue_comes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--nodes", cluster(tmp_path), "--policy", "binpack")
    assert (found["freeShares"], found["pods"]) == (4, 2)
    assert found["policies"][0]["classes"] == [
        {"class": "0.4 GPU", "pods": 3, "accepted": 3},
        {"class": "0.5 GPU", "pods": 3, "accepted": 0},
    ]


def test_running_pods_come_again_before_the_queue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--nodes", cluster(tmp_path), "--from-empty", "--policy", "binpack")
    assert (found["freeShares"], found["pods"]) == (10, 3)
    assert [each["accepted"] for each in found["policies"][0]["classes"]] == [3, 0, 3]


@pytest.mark.parametrize(("flags", "nodes"), [((), 2), (("--from-empty",), 3)])
def test_a_queue_needs_nodes_and_with_the_running_pods_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], nodes: int
) -> None:
    """On GPUs of 6 shares the pods of 4, of 5, and the running one of 6 each need one of their own."""
    words = ("--nodes", "mem=6", "--pods", cluster(tmp_path), "--nodes-needed", "--policy", "fit")
    assert document(capsys, *words, *flags)["policies"][0]["nodes"] == nodes


def test_the_mix_may_be_learned_from_the_pods_that_come(capsys: pytest.CaptureFixture[str]) -> None:
    """Each pair of 6 and 4 fills a GPU of 10; pods that come in a bad order leave some GPUs with room for neither."""
    words = ("--nodes", "30x mem=10", "--pods", "30x mem=6; 30x mem=4", "--policy", "fit,fgd", "--cold")
    found = document(capsys, *words)
    assert found["cold"] is True
    assert [sum(each["pods"] for each in policy["classes"]) for policy in found["policies"]] == [180, 180]
    assert all(policy["rejected"] < 0.2 for policy in found["policies"])


def test_a_trace_of_nodes_counts_mem_in_hundredths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "nodes.csv"
    file.write_text("sn,cpu_milli,memory_mib,gpu,model\nn,8000,65536,2,T4\n", encoding="utf-8")
    found = document(capsys, "--nodes", str(file), "--pods", "2x mem=50")
    assert (found["policies"][0]["allocatedAtEnd"], len(found["notes"])) == (0.5, 1)


def test_the_cluster_is_read_by_kubectl_with_the_flags_that_select_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl = script(tmp_path, f"assert '--context=lab' in sys.argv[1:]\nprint(open({cluster(tmp_path)!r}).read())")
    assert document(capsys, "--context", "lab", kubectl=kubectl)["pods"] == 2


def test_pods_of_a_trace_count_every_gpu_as_a_hundred_shares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pods.csv"
    file.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\na,1000,1,1,500,\n", encoding="utf-8")
    found = document(capsys, "--nodes", "gpus=2 mem=24", "--pods", str(file))
    assert (found["shares"], found["policies"][0]["allocatedAtEnd"]) == (200, 0.25)
    assert "100 shares" in found["notes"][0]


def test_our_own_json_holds_nodes_and_pods(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "own.json"
    file.write_text('{"nodes": [{"mem": 10}], "pods": [{"times": 2, "mem": 5}]}', encoding="utf-8")
    assert document(capsys, "--nodes", str(file))["policies"][0]["allocatedAt100"] == 1.0


def test_a_pod_that_fits_on_no_empty_node_is_pointed_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated(*NODES, "--pods", "1x mem=4; 2x mem=11") == 0
    assert "2 pods fit on no node, not even on an empty one" in capsys.readouterr().err


def test_too_light_a_load_for_a_single_pod_is_an_empty_table(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, *NODES, "--pods", "count=1", "--departures", "5")
    assert found["policies"][0]["classes"] == []


# --- Mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*NODES, "--pods", "/no/such.json"), "--pods: /no/such.json: the file cannot be read: No such file"),
        ((*NODES, "--pods", "40x mme=8"), "--pods: 40x mme=8: '40x mme=8': there is no 'mme' here; did you mean mem?"),
        ((*NODES, *PODS, "--policy", "fti"), "--policy: there is no policy 'fti'; did you mean fit?"),
        ((*NODES, *PODS, "--policy", ","), "--policy: no policy is named; there are fit, binpack"),
        (("--nodes", "3x gpus=0 mem=1", *PODS), "none of 3 nodes has a GPU that is shared; give nodes with GPUs"),
        ((*NODES, "--pods", "0x mem=1"), "--pods: 0x mem=1: there is no pod to place; give some"),
        ((*NODES, "--pods", "9999999x mem=1"), "that makes more than 1,000,000; give fewer"),
        (("--nodes", "100001x mem=1", *PODS), "--nodes: 100,001 nodes are more than 100,000; give fewer"),
        ((*NODES, "--pods", "mem=11"), "no pod fits on any node, not even on an empty one; the first asks for mem=11"),
        ((*NODES, *PODS, "--seeds", "many"), "--seeds: 'many' is not a whole number from 1 to 100"),
        ((*NODES, *PODS, "--until", "0.9"), "--until: '0.9' is not rejected, or a percentage from 5 to 1000; write 95"),
        ((*NODES, *PODS, "--departures", "x"), "--departures: 'x' is not a percentage from 5 to 200; write 95"),
        ((*NODES, *PODS, "--until", "90", "--nodes-needed"), "--until and --nodes-needed are different questions"),
        ((*NODES, *PODS, "--nodes-needed", "--picture", "a.svg"), "there is no picture of --nodes-needed"),
        ((*NODES, *PODS, "--picture", "a.png"), "give a name that ends with .svg"),
        ((*NODES, *PODS, "-o", "yaml"), "--output: 'yaml' is neither table nor json"),
        ((*NODES, "--pods", "cpu=1", "--until", "100"), "--pods: no pod asks for a GPU; add pods that do"),
        (
            ("--nodes", "9x gpus=64 mem=1048576", "--pods", "mem=1", "--until", "100"),
            "more than 1,000,000 of these pods",
        ),
    ],
)
def test_a_mistake_is_told_in_one_sentence_with_what_to_do(words: tuple[str, ...], said: str) -> None:
    found = refusal(*words)
    assert said in found
    assert "\n" not in found


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"name,cpu_milli\n", "has no column memory_mib"),
        (b"", "the file is empty"),
        (b"\xff\xfe\x00", "neither text nor JSON"),
        (b'{"nodes": []}', 'has no list "pods"'),
        (b'{"pods": []}', "there is no pod to place"),
        (b"{", "it is not JSON with lists of nodes and pods"),
        (b'{"kind": "List", "items": []}', "there is no pod to place"),
        (b'{"kind": "List", "items": 3}', "not a list as kubectl prints it"),
    ],
)
def test_a_wrong_file_is_told_with_its_name(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "wrong"
    file.write_bytes(content)
    found = refusal(*NODES, "--pods", str(file))
    assert said in found
    assert f"--pods: {file}" in found


def test_a_file_that_is_too_large_is_not_read_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "large.json"
    with file.open("wb") as sparse:
        sparse.truncate(MOST_BYTES + 1)
    assert "larger than 256 MiB" in refusal(*NODES, "--pods", str(file))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sys.exit('Error from server (Forbidden)')", "could not list nodes and pods (exit code 1)"),
        ("print('x' * 300_000_000)", "more than 256 MiB"),
    ],
)
def test_a_cluster_that_cannot_be_read_is_a_failure(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    assert simulated(kubectl=script(tmp_path, text)) == 1
    assert said in capfd.readouterr().err


def test_a_missing_kubectl_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated(kubectl="/no/kubectl") == 1
    assert "/no/kubectl: is not on the PATH; the cluster is read through it: install it" in capsys.readouterr().err


def test_a_picture_that_cannot_be_written_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated(*NODES, *PODS, "--picture", "/no/such/a.svg") == 1
    assert "--picture: /no/such/a.svg: cannot be written: No such file or directory" in capsys.readouterr().err


def test_the_help_names_every_policy() -> None:
    assert policies_in("fit, binpack,spread,fgd,bestfit,fit", POLICIES) == POLICIES


# --- The progress bar -------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_is_drawn_on_a_terminal_and_removed() -> None:
    terminal = Terminal()
    bar = Bar(terminal)
    bar.show("fit", 0.5)
    bar.show("fit", 0.5)
    bar.clear()
    assert terminal.getvalue() == f"\r[{'#' * 15}{'.' * 15}]  50 % fit\x1b[K\r\x1b[K"


def test_no_bar_is_drawn_into_a_file() -> None:
    file = io.StringIO()
    bar = Bar(file)
    bar.show("fit", 0.5)
    bar.clear()
    assert file.getvalue() == ""
