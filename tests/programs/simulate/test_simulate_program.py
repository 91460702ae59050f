"""`gpu-device-plugin simulate`, from the command line to what is printed."""

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.cli import parse
from gpu_device_plugin.features.learning.rules.marginal_value import FreeCapacity
from gpu_device_plugin.features.learning.rules.workload_mix import PodKind
from gpu_device_plugin.programs.simulate.entries import nodes_in, pods_in
from gpu_device_plugin.programs.simulate.experiment import POLICIES, Plan, nodes_needed
from gpu_device_plugin.programs.simulate.model import Inputs, SimulationOutcome, Workload
from gpu_device_plugin.programs.simulate.results import answer
from gpu_device_plugin.programs.simulate.simulate_program import Bar, main
from gpu_device_plugin.programs.simulate.sources import MOST_BYTES
from gpu_device_plugin.settings.knobs import UsageError
from tests.builders import container, node, pod

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


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert simulated(*words) == 0
    return capsys.readouterr().out.splitlines()


def test_each_policy_answers_in_a_sentence_and_pods_stand_below_as_they_were_entered(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """6 and 4 fill a GPU of 10 exactly, in either order. Each pod counts once, not once for each seed."""
    assert printed(capsys, *NODES, *PODS, "--policy", "fit,spread") == [
        "1 node, 1 GPU (10 shares each); 2 pods of 2 kinds; 3 seeds",
        "",
        "fit: all 2 pods run; 100.0 % of the GPUs are allocated",
        "spread: all 2 pods run; 100.0 % of the GPUs are allocated",
        "",
        "PODS   CAME  fit  spread",
        "mem=6     1    1       1",
        "mem=4     1    1       1",
    ]


@pytest.mark.parametrize(
    ("nodes", "pods", "said"),
    [
        ("2x mem=10", "mem=4", "the pod of mem=4 runs; 20.0 % of the GPUs are allocated"),
        ("2x mem=10", "5x mem=6", "2 of 5 pods of mem=6 run, 3 wait for room on one GPU; 60.0 %"),
        ("gpus=2 mem=10", "2x mem=14 split=2", "1 of 2 pods of mem=14 split=2 runs, 1 waits for room on 2 GPUs of one"),
        ("gpus=2 mem=10", "2x count=2", "1 waits for 2 free GPUs on one node; 100.0 %"),
        ("gpus=1 mem=10 model=A10", "2x count=1 model=A10", "1 waits for a free GPU of model A10; 100.0 %"),
        ("mem=10 cpu=4", "2x mem=4 cpu=3", "1 waits for CPU beside room on one GPU; 40.0 %"),
        ("mem=10 memory=4Gi", "2x mem=4 memory=3Gi", "1 waits for memory beside room on one GPU; 40.0 %"),
        ("mem=10 cpu=4 memory=4Gi", "2x mem=4 cpu=3 memory=3Gi", "1 waits for CPU and memory beside room on one GPU"),
        ("mem=10 cpu=4", "2x cpu=3", "1 waits for CPU; 0.0 % of the GPUs"),
        ("mem=10", "mem=9; 2x mem=12", "1 of 3 pods runs, 2 fit on no node, not even on an empty one; 90.0 %"),
    ],
)
def test_the_answer_says_what_pods_wait_for(
    nodes: str, pods: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for policy in POLICIES:
        found = printed(capsys, "--nodes", nodes, "--pods", pods, "--policy", policy)
        assert found[2].startswith(f"{policy}: ")
        assert said in found[2]


def test_the_answer_names_the_reasons_of_most_pods_first_and_three_at_most() -> None:
    """On GPUs of which 9, 9 and 4 of 10 shares are taken, the last on a node that has no CPU left either."""
    (one, two), last = nodes_in("2x gpus=1 mem=10"), nodes_in("gpus=1 mem=10 model=T4 cpu=2 memory=1Gi")[0]
    taken = [replace(node, left=replace(node.left, frees=(1,))) for node in (one, two)]
    nodes = (*taken, replace(last, left=FreeCapacity((6,), 0, 1024)))
    workload = Workload.of(pods_in("mem=4 cpu=1; 9x mem=7; 8x count=1 model=T4; 2x mem=6 memory=1Gi cpu=1; 3x mem=11"))
    refused = [False] * len(workload.pods)
    outcome = SimulationOutcome("fit", workload.pods, refused, [1.0] * len(refused), 30.0, 0.0, nodes)
    assert answer([outcome], workload) == (
        "fit: none of 23 pods run, 9 wait for room on one GPU, 8 for a free GPU of model T4, "
        "3 for CPU beside room on one GPU, 3 fit on no node, not even on an empty one; 73.3 % of the GPUs are allocated"
    )
    more = Workload(
        (*workload.kinds, PodKind(0, 1)), (*workload.pods, len(workload.kinds)), (*workload.names, "count=1")
    )
    refused = [False] * len(more.pods)
    outcome = SimulationOutcome("fit", more.pods, refused, [1.0] * len(refused), 30.0, 0.0, nodes)
    assert ", 3 for CPU beside room on one GPU, 1 for something else, 3 fit on no node" in answer([outcome], more)


def test_orders_of_pods_that_end_differently_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """A GPU of 10 takes two pods of 5 or one of 9."""
    found = printed(capsys, "--nodes", "mem=10", "--pods", "2x mem=5; 2x mem=9", "--policy", "fit", "--seeds", "9")
    assert "(1 to 2 by their order)" in found[2]


def test_a_cluster_counts_what_its_running_pods_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 10 shares 6 are held, and 4 of the 5 that are waited for come too."""
    found = printed(capsys, "--nodes", cluster(tmp_path), "--policy", "binpack", "--seeds", "1")
    assert found[2] == "binpack: 1 of 2 pods runs, 1 waits for room on one GPU; 100.0 % of the GPUs are allocated"
    assert [line.split() for line in found[-2:]] == [["default/first", "1", "1"], ["default/second", "1", "0"]]


def test_more_entries_than_people_read_are_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    pods = "; ".join(f"mem={size}" for size in range(1, 26))
    found = printed(capsys, "--nodes", "9x mem=100", "--pods", pods, "--policy", "fit")
    assert [line.split()[:4] for line in found[-3:]] == [
        ["0.1", "GPU", "10", "10"],
        ["0.2", "GPU", "10", "10"],
        ["0.3", "GPU", "5", "5"],
    ]


def test_json_has_all_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """Of three pods of 6 one fits."""
    found = document(capsys, *NODES, "--pods", "3x mem=6", "--policy", "binpack", "--seeds", "1")
    (policy,) = found["policies"]
    assert policy.pop("cpuSeconds") >= 0
    assert policy == {
        "policy": "binpack",
        "answer": "binpack: 1 of 3 pods of mem=6 runs, 2 wait for room on one GPU; 60.0 % of the GPUs are allocated",
        "pods": [{"name": "mem=6", "came": 3, "accepted": 1}],
        "allocatedAt100": 0.6,
        "allocatedAtEnd": 0.6,
        "rejected": 0.66667,
        "classes": [{"class": "0.6 GPU", "pods": 3, "accepted": 1}],
        "seeds": [{"accepted": 0.6, "rejected": 0.66667}],
    }
    assert (found["version"], found["nodes"], found["gpus"], found["freeShares"], found["pods"]) == (1, 1, 1, 10, 3)


def test_pods_that_come_until_the_gpus_are_asked_for_compare_policies_over_all_seeds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = printed(capsys, *NODES, "--pods", "mem=6", "--policy", "fit", "--until", "110")
    assert found[2].startswith("fit: 1 of 2 pods of mem=6 runs, 1 waits for room on one GPU")
    assert [line.split() for line in found[4:6]] == [
        ["POLICY", "AT", "100", "%", "AT", "END", "REJECTED"],
        ["fit", "60.0", "60.0", "50.0"],
    ]


def test_what_never_happened_is_a_dash_and_the_first_pod_without_room_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("--nodes", "mem=10", "--policy", "fit", "--until")
    assert printed(capsys, *words, "50", "--pods", "mem=7")[5].split() == ["fit", "-", "70.0", "0.0"]
    assert printed(capsys, *words, "rejected", "--pods", "mem=3")[2] == (
        "fit: 3 pods run before one of mem=3 finds no room; 90.0 % of the GPUs that were free are allocated"
    )


def test_departures_have_no_allocation_at_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, *NODES, *PODS, "--departures", "90")
    assert "AT END" not in "\n".join(found)
    assert " pods that came found room" in found[2]
    none = document(capsys, *NODES, "--pods", "count=1", "--departures", "5")
    assert none["departures"] == 0.05
    assert none["policies"][0]["classes"] == []
    assert [none["policies"][0][key] for key in ("allocatedAt100", "allocatedAtEnd")] == [None, None]


@pytest.mark.parametrize(("flags", "column"), [(("--departures", "150"), "REJECTED"), (("--until", "rejected"), "END")])
def test_the_sentence_and_the_table_have_the_same_figure(
    flags: tuple[str, ...], column: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the seeds the figures are different: both have the mean."""
    words = ("--nodes", "5x mem=10", "--pods", "3x mem=7; 5x mem=3; 2x mem=5; count=1", *flags)
    found = printed(capsys, *words, "--policy", "fit")
    (heading, row) = (line.replace("AT ", "").replace(" %", "").split() for line in found[4:6])
    figure = row[heading.index(column)]
    assert f"; {figure} % of the GPU" in found[2]
    assert found[2].endswith(" on average")
    assert len({seed["rejected"] for seed in document(capsys, *words)["policies"][0]["seeds"]}) == 3


# --- How many nodes ---------------------------------------------------------------------------------------------------


def test_nodes_needed_are_told_with_what_the_sums_say(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*NODES, "--pods", "4x mem=6", "--nodes-needed", "--policy", "fit")
    answer = "fit: all 4 pods run on 4 nodes; no policy needs fewer than 3, by the sums of GPU, CPU and memory"
    assert printed(capsys, *words)[2:] == [answer]
    assert document(capsys, *words)["policies"] == [
        {"policy": "fit", "answer": answer, "nodes": 4, "seeds": [4, 4, 4], "atLeast": 3, "pods": 4}
    ]


@pytest.mark.parametrize(
    ("pods", "kind", "said"),
    [
        ("3x mem=5", "mem=8", "all 3 pods run on 1 more node; no policy needs fewer than 1, by the sums"),
        ("2x mem=5", "mem=8", "no more nodes are needed: all 2 pods run on those that are there"),
        ("5x mem=5", "2x mem=8", "all 5 pods run on 3 more nodes"),
        ("mem=9; 2x mem=8", "mem=8", "all 3 pods run on 2 more nodes"),
        ("3x count=1", "gpus=2 mem=8", "all 3 pods run on 1 more node"),
    ],
)
def test_nodes_needed_may_be_of_a_kind_beside_those_that_are_there(
    pods: str, kind: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One node has a GPU of 10; a pod of 9 fits there and on no new one."""
    words = (*NODES, "--pods", pods, "--nodes-needed", kind, "--policy", "fit")
    assert printed(capsys, *words)[2].startswith(f"fit: {said}")


def test_a_pod_that_fits_on_no_node_is_an_error_or_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--nodes", "mem=10", "--pods", "2x mem=6; mem=11", "--policy", "fit", "--nodes-needed")
    assert "a pod that asks for mem=11 does not fit on an empty node" in refusal(*words)
    assert "leave such pods out with --skip-misfits" in refusal(*words)
    capsys.readouterr()
    assert simulated(*words, "--skip-misfits") == 0
    shown = capsys.readouterr()
    assert "1 pod fits on no node, not even on an empty one, and is left out; it asks for mem=11" in shown.err
    assert "fit: all 2 pods run on 2 nodes" in shown.out


def test_a_pod_that_only_a_full_node_could_host_is_an_error_or_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """The one GPU of 10 takes one of the pods of 9, and no GPU of 8 takes the other."""
    words = (*NODES, "--pods", "2x mem=9; mem=1", "--policy", "fit", "--nodes-needed", "mem=8")
    assert "mem=9 finds no room on the nodes that are there, and fits on none that is added" in refusal(*words)
    said = "fit: no more nodes are needed: 2 of 3 pods run on those that are there"
    assert printed(capsys, *words, "--skip-misfits")[2:] == [said]


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


def test_running_pods_stay_or_come_again_before_the_queue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--nodes", cluster(tmp_path), "--policy", "binpack")
    stay, again = document(capsys, *words), document(capsys, *words, "--from-empty")
    assert [(each["freeShares"], each["pods"]) for each in (stay, again)] == [(4, 2), (10, 3)]
    assert [[kind["accepted"] for kind in each["policies"][0]["classes"]] for each in (stay, again)] == [
        [3, 0],
        [3, 0, 3],
    ]


@pytest.mark.parametrize(
    ("nodes", "flags", "number"),
    [("mem=6", (), 2), ("mem=6", ("--from-empty",), 3), ("the cluster", ("--nodes-needed", "T4"), 1)],
)
def test_a_queue_needs_nodes_and_with_the_running_pods_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], nodes: str, flags: tuple[str, ...], number: int
) -> None:
    """On GPUs of 6 shares the pods of 4, of 5, and the running one of 6 each need one of their own.

    Of the cluster's 10 shares 6 are held: the pod of 4 fits beside them, and that of 5 needs a node.
    """
    file = cluster(tmp_path)
    words = ("--nodes", nodes.replace("the cluster", file), "--pods", file, "--policy", "fit", "--nodes-needed", *flags)
    assert document(capsys, *words)["policies"][0]["nodes"] == number


def test_the_cluster_is_read_by_kubectl_with_the_flags_that_select_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl = script(tmp_path, f"assert '--context=lab' in sys.argv[1:]\nprint(open({cluster(tmp_path)!r}).read())")
    assert document(capsys, "--context", "lab", kubectl=kubectl)["pods"] == 2


DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: main
        image: example.com/web:1
        resources: {limits: {aliyun.com/gpu-mem: 4}, requests: {cpu: 500m, memory: 1Gi}}
"""
JOB = """---
apiVersion: batch/v1
kind: Job
metadata: {name: train, creationTimestamp: 2026-11-24T00:00:00Z}
spec:
  parallelism: 2
  template: {spec: {containers: [{name: main, resources: {limits: {"nvidia.com/gpu": "1"}}}]}}
"""


def test_pods_may_be_those_of_a_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three pods of 4 shares fit on one GPU of 14, and two that ask for a whole one on two others."""
    file = tmp_path / "web.yaml"
    file.write_text(f"# of the shop\n{DEPLOYMENT}{JOB}", encoding="utf-8")
    found = printed(capsys, "--nodes", "3x T4", "--pods", str(file), "--policy", "fit")
    assert found[0] == "1 node, 3 GPUs (Tesla T4, 14 shares each); 5 pods of 2 kinds; 3 seeds"
    assert [line.split() for line in found[-2:]] == [["Deployment", "web", "3", "3"], ["Job", "train", "2", "2"]]


def test_a_manifest_of_one_object_and_a_list_in_yaml_are_read_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "web.yaml"
    alone = DEPLOYMENT.strip()
    listed = "kind: List\nitems:\n- " + alone.replace("\n", "\n  ")
    for text in (alone, listed, f"{listed}\n---\n", f"{listed}\n---\nkind: Service\n"):
        file.write_text(text, encoding="utf-8")
        assert document(capsys, *NODES, "--pods", str(file))["pods"] == 3


def test_a_pod_that_fits_on_no_empty_node_is_pointed_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated(*NODES, "--pods", "1x mem=4; 2x mem=11") == 0
    assert "2 pods fit on no node, not even on an empty one; one of them asks for mem=11" in capsys.readouterr().err
    assert simulated(*NODES, "--pods", "1x mem=4; 1x mem=11") == 0
    assert "1 pod fits on no node, not even on an empty one; it asks for mem=11" in capsys.readouterr().err


# --- Mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*NODES, "--pods", "/no/such.json"), "--pods: /no/such.json: the file cannot be read: No such file"),
        ((*NODES, "--pods", "40x mme=8"), "--pods: 40x mme=8: '40x mme=8': there is no 'mme' here; did you mean mem?"),
        ((*NODES, *PODS, "--policy", "fti"), "--policy: 'fti' is unknown; did you mean fit?"),
        ((*NODES, *PODS, "--policy", ","), "--policy: no policy is named; there are fit, binpack"),
        (("--nodes", "3x gpus=0 mem=1", *PODS), "none of 3 nodes has a GPU that is shared; give nodes with GPUs"),
        ((*NODES, "--pods", "0x mem=1"), "--pods: 0x mem=1: there is no pod to place; give some"),
        ((*NODES, "--pods", "9999999x mem=1"), "that makes more than 1,000,000; give fewer"),
        (("--nodes", "100001x mem=1", *PODS), "--nodes: 100,001 nodes are more than 100,000; give fewer"),
        ((*NODES, "--pods", "mem=11"), "no pod fits on any node, not even on an empty one; the first asks for mem=11"),
        (NODES, "--pods is missing: nodes in words have no pods; give some, as --pods '40x mem=8"),
        (("--nodes", "H100"), "--pods is missing: nodes in words have no pods"),
        (("--nodes", "RTX 4090"), "--pods is missing: nodes in words have no pods"),
        (("--nodes", "-2x T4", *PODS), "--nodes: -2x T4: '-2x T4': a count cannot be negative; begin with"),
        ((*NODES, "--pods", "mem=-4"), "mem is '-4'; write a whole number of at most 1,048,576, as in mem=8"),
        ((*NODES, *PODS, "--seeds", "-1"), "--seeds: '-1' is not a whole number from 1 to 100"),
        (("--nodes", "A100-60GB", *PODS), "NVIDIA A100-SXM4-80GB is not known with so much memory; write model=A100"),
        ((*PODS, "--nodes-needed", "4x H10"), "--nodes-needed: 4x H10: '4x H10': 'H10' is no GPU that is known"),
        ((*NODES, *PODS, "--plot", "use.pdf"), "--plot: 'use.pdf' does not end in .svg or .png; name such a file"),
        (
            (*NODES, *PODS, "--nodes-needed", "mem=3; mem=4"),
            "--nodes-needed: mem=3; mem=4: name one kind of node, such as",
        ),
        ((*NODES, *PODS, "--nodes-needed", ";"), "--nodes-needed: ;: name one kind of node, such as"),
        (
            (*NODES, *PODS, "--nodes-needed", "4x H10"),
            "--nodes-needed: 4x H10: '4x H10': 'H10' is no GPU that is known",
        ),
        (("--nodes", "mem=4; mem=5", *PODS, "--nodes-needed"), "name the kind that you would add to them, as in"),
        ((*NODES, *PODS, "--seeds", "many"), "--seeds: 'many' is not a whole number from 1 to 100"),
        ((*NODES, *PODS, "--until", "0.9"), "--until: '0.9' is not rejected, or a percentage from 5 to 1000; write 95"),
        ((*NODES, *PODS, "--departures", "x"), "--departures: 'x' is not a percentage from 5 to 200; write 95"),
        ((*NODES, *PODS, "--until", "90", "--nodes-needed"), "--nodes-needed: not allowed with argument --until"),
        ((*NODES, *PODS, "-o", "yaml"), "--output: invalid choice: 'yaml'"),
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
        (b"\x1f\x8b\x08\x00", "the file is compressed (gzip); decompress it first"),
        (b"PK\x03\x04", "the file is compressed (zip); decompress it first"),
        (b'Warning: v1 is old\n{"kind": "List", "items": []}', "the JSON begins in line 2; remove the lines before it"),
        (
            b'{"kind": "List", "items": [{"kind": "Node", "metadata": {"name": "a"}}]}',
            "(node a is left out: it has no GPUs)",
        ),
        (b"name,cpu_milli\n", "neither JSON nor YAML; give manifests"),
        (b"", "the file is empty"),
        (b"\xff\xfe\x00", "neither JSON nor YAML"),
        (b'{"nodes": []}', "not a list as kubectl prints it: it has no items, and no kind"),
        (b"{", "line 1: this is not valid JSON: it ends too early; was it written to its end?"),
        (b'{"kind": "List",\n "items": [}', "line 2: this is not valid JSON: Expecting value; correct it there"),
        (b'{"kind": "List", "items": [{"kind": "Po', "line 1: this is not valid JSON: it ends too early"),
        (b'{"kind": "List", "items": []}', "there is no pod to place"),
        (b"[]", "there is no pod to place"),
        (b"[3]", "there is no pod to place (left out, as no pods are read from these kinds: 1 without a kind)"),
        (b"apiVersion: v1\nitems: []\nkind: List\n", "there is no pod to place; give some"),
        (b'{"kind": "List", "items": 3}', "not a list as kubectl prints it"),
        (b"kind: Deployment\nspec: [\n", "line 3: this is not valid YAML: "),
        (b"kind: &a [*a]\n", "this is not valid YAML"),
        (b"kind: Pod\nmetadata: {? [1]: 2}\n", "this is not valid YAML"),
        (b"kind: Service\nmetadata: {name: web}\n", "there is no pod to place"),
        (b"[" * 100_000, "not a list as kubectl prints it: nested too deeply"),
        (b'{"pods": ' + b"[" * 100_000, "not a list as kubectl prints it: nested too deeply"),
    ],
)
def test_a_wrong_file_is_told_with_its_name(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "wrong"
    file.write_bytes(content)
    found = refusal(*NODES, "--pods", str(file))
    assert said in found
    assert f"--pods: {file}" in found


def test_broken_yaml_is_told_by_its_name_whatever_it_begins_with(tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"
    file.write_text("  kind: Pod\nspec: [\n", encoding="utf-8")
    assert "web.yaml: line 2: this is not valid YAML: " in refusal(*NODES, "--pods", str(file))
    file.write_text("only words\n", encoding="utf-8")
    assert "this is YAML without an object of Kubernetes; give manifests" in refusal(*NODES, "--pods", str(file))


def test_a_list_without_a_kind_and_files_of_powershell_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pods.json"
    text = json.dumps([pod("a", container(mem=4)), pod("b", container(mem=6))])
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-16-be"):
        mark = "\ufeff" * (encoding == "utf-16-be")
        file.write_text(mark + text, encoding=encoding)
        assert document(capsys, *NODES, "--pods", str(file))["pods"] == 2


def test_a_folder_and_a_list_without_nodes_are_told(tmp_path: Path) -> None:
    assert "the file cannot be read: Is a directory; give a file" in refusal("--nodes", str(tmp_path))
    file = tmp_path / "nodes.yaml"
    file.write_text("apiVersion: v1\nitems: []\nkind: List\n", encoding="utf-8")
    found = refusal("--nodes", str(file), *PODS)
    assert f"--nodes: {file}: there is no node with GPUs; give nodes with GPUs, as in --nodes" in found


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("aliyun.com/gpu-memory: 8", "which is not read; did you mean aliyun.com/gpu-mem?"),
        ("aliyun.com/gpu-mem: 40Gi", "which counts shares, 1 GiB each by default; write 40"),
    ],
)
def test_pods_that_are_all_mistyped_do_not_run(asked: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"
    file.write_text(DEPLOYMENT.replace("aliyun.com/gpu-mem: 4", asked), encoding="utf-8")
    found = refusal(*NODES, "--pods", str(file))
    assert f"there is no pod to place (Deployment web with 3 pods is left out: it asks for {asked}, {why})" in found


def test_notes_stand_beside_the_error_that_they_explain(tmp_path: Path) -> None:
    there = node("a", mem=10, count=1)
    there["metadata"]["uid"] = "a"
    there["spec"] = {"unschedulable": True}
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"kind": "List", "items": [there]}), encoding="utf-8")
    assert "there is no node with GPUs (node a is left out: it is cordoned); give" in refusal("--nodes", str(file))


def test_a_file_of_nodes_is_no_list_of_pods(tmp_path: Path) -> None:
    found = node("a", mem=10, count=1)
    found["metadata"]["uid"] = "a"
    file = tmp_path / "nodes.json"
    file.write_text(json.dumps({"kind": "List", "items": [found]}), encoding="utf-8")
    assert "there is no pod to place beside 1 node; give some, as in" in refusal(*NODES, "--pods", str(file))


def test_nodes_needed_need_no_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    """No kubectl is there."""
    words = ("--pods", "9x mem=6", "--nodes-needed", "2x T4", "--policy", "fit", "--seeds", "1")
    assert simulated(*words, kubectl="/no/kubectl") == 0
    found = capsys.readouterr().out.splitlines()
    assert found[0] == "1 node, 2 GPUs (Tesla T4, 14 shares each); 9 pods of 1 kind; 1 seed"
    assert found[2].startswith("fit: all 9 pods run on 3 nodes; ")
    assert simulated("--nodes-needed", "T4", kubectl="/no/kubectl") == 1


def test_aliases_of_yaml_are_written_out_within_a_bound(tmp_path: Path) -> None:
    """Ten times ten times ... ten: some KiB stand for 100 TiB."""
    lines = ["kind: Pod", f"a0: &a0 {'x' * 10_000}"]
    lines += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 11)]
    file = tmp_path / "web.yaml"
    file.write_text("\n".join(lines), encoding="utf-8")
    assert "with its aliases written out the file has more than 16 MiB" in refusal(*NODES, "--pods", str(file))
    with file.open("ab") as sparse:
        sparse.truncate(17 << 20)
    assert "a file of YAML has at most 16 MiB; give JSON" in refusal(*NODES, "--pods", str(file))


def test_names_of_strangers_are_safe_on_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pod.json"
    file.write_text(json.dumps(pod("\x1b[31m<&機", container(mem=4), namespace="")), encoding="utf-8")
    found = printed(capsys, *NODES, "--pods", str(file), "--policy", "fit")
    assert found[-2:] == [
        "PODS          CAME  fit",
        "\\x1b[31m<&機     1    1",
    ]


def test_a_file_that_is_too_large_is_not_read_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "large.json"
    with file.open("wb") as sparse:
        sparse.truncate(MOST_BYTES + 1)
    assert "larger than 256 MiB" in refusal(*NODES, "--pods", str(file))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sys.exit('Error from server (Forbidden)')", "could not list nodes and pods: Error from server (Forbidden); "),
        ("print('x' * 300_000_000)", "more than 256 MiB"),
        ("", "/no/kubectl: is not on the PATH; the cluster is read through it: install it"),
    ],
)
def test_a_cluster_that_cannot_be_read_is_a_failure(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    assert simulated(kubectl=script(tmp_path, text) if text else "/no/kubectl") == 1
    assert said in capfd.readouterr().err


# --- The progress bar -------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "drawn"), [(Terminal(), f"\r[{'#' * 15}{'.' * 15}]  50 % fit\x1b[K\r\x1b[K"), (io.StringIO(), "")]
)
def test_a_bar_is_drawn_on_a_terminal_and_removed_and_not_into_a_file(stream: io.StringIO, drawn: str) -> None:
    bar = Bar(stream)
    bar.show("fit", 0.5)
    bar.show("fit", 0.5)
    bar.clear()
    assert stream.getvalue() == drawn


def test_how_many_nodes_are_tried_is_shown() -> None:
    shown: list[tuple[str, float]] = []
    inputs = Inputs(nodes_in("mem=10"), Workload.of(pods_in("3x mem=6")))
    nodes_needed(Plan(("fit",), seeds=1), inputs, lambda what, part: shown.append((what, part)))
    assert shown == [("fit, 2 nodes", 0.0), ("fit, 3 nodes", 0.0), ("fit", 1.0)]
