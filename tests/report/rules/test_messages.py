"""The server's messages in Chinese, each as the code of the server makes it now."""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gpu_device_plugin
from gpu_device_plugin.features.capacity.report import makes_room, stays
from gpu_device_plugin.features.capacity.rules.movable import Move, PlannedPod, UnmovableReason
from gpu_device_plugin.features.elastic.report import resizes
from gpu_device_plugin.features.history.rules.slowness import CHECKS, slowness
from gpu_device_plugin.features.use.report import of_pod
from gpu_device_plugin.kubernetes.client.errors import Call
from gpu_device_plugin.model.contract.keys import (
    GPU_POLICY,
    MEMORY_GUARANTEE,
    MEMORY_HELD,
    MEMORY_LIMIT,
    MEMORY_PROMISED,
    SPLIT_LABEL,
    USE_UUID,
)
from gpu_device_plugin.model.limits import CHOOSABLE
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.programs.web.watched import missing_right
from gpu_device_plugin.report.rules.finding import Finding, Message, ago, few, note
from gpu_device_plugin.report.rules.node_answers import NodeAnswer, describe, explain, what_makes_room, why_waits
from gpu_device_plugin.report.rules.pod_causes import Kept, told
from gpu_device_plugin.scheduler.rules.node_constraints import SchedulingStatus
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Impossible, ask
from gpu_device_plugin.settings.common import ResourceSettings
from tests.reporting import answers
from tests.reports import ASKED, SINCE, part, report
from tests.slow_pods import CAUSES, NOW, history, series
from tests.views import node_view, pod_on, put_aside

PACKAGE = Path(gpu_device_plugin.__file__).parent
CHINESE: dict[str, str] = json.loads((PACKAGE / "programs/web/page/zh.json").read_text(encoding="utf-8"))["messages"]
FEATURES = ("capacity", "claims", "conflicts", "elastic", "mig", "over_use", "use")
SOURCES = (
    *(
        PACKAGE / "scheduler/rules/fitting.py",
        PACKAGE / "scheduler/rules/pod_demand.py",
        PACKAGE / "model/contract/gpu_preferences.py",
        PACKAGE / "scheduler/rules/filter_failure.py",
        PACKAGE / "scheduler/rules/node_constraints.py",
    ),
    *(PACKAGE / "report/why_pod.py", *(PACKAGE / "report/rules").glob("*.py")),
    *(PACKAGE / f"features/{each}/report.py" for each in FEATURES),
    *(PACKAGE / f"features/history/rules/{each}.py" for each in ("gpu_window", "slowness")),
    *(PACKAGE / "programs/web").glob("*.py"),
    PACKAGE / "kubernetes/agent_reader.py",
)
"""Where messages for the page are made. What follows a heading "The doctor" is for the terminal alone."""
MADE_OF_PARTS = {
    *(f"plan-{each}" for each in ("none-found", "none-needed", "fewest", "fewer")),
    *(f"kept-by-{each}" for each in ("advisory", "driver", "dmem", "mps", "custom")),
    *(unit + ago for unit in ("s", "min", "h", "days") for ago in ("", "-ago")),
    *(f"check-{name.replace(' ', '-')}" for name, _ in CHECKS),
    *(f"slowed-by-{each}" for each in ("heat", "power-brake", "hardware", "sync", "power-cap")),
    *(stays(each).code for each in UnmovableReason),
}
NOT_TOLD = {stays(UnmovableReason[each]).code for each in ("ENDING", "HELD", "PLANNED", "MOVED")} | {
    "gpus",
    "not-asked",
}
NAMES = re.compile(
    r"kubectl -n [^;\uff1b\u3002]*|kubectl label node|[\w.-]*(?:gpushare|kube|gpu)[\w.=-]*|[\w.-]+/[\w./-]+|NVIDIA_\w+"
    r"|\?\w+=|NVIDIA|nvidia-[\w-]+|-cgi|\b(?:use-uuid|fit|binpack|spread|CPU|PCIe|MHz|POWER|CLOCK|GiB|MiB|GPUs?|MIG|Pod|API|CUDA|HTTP|MPS|UUID|DRA|Kubernetes|Tesla|ClusterRole"
    r"|ConfigMap|ResourceClaim|ResourceClaimTemplate|DeviceClass|DaemonSet|PodDisruptionBudget|NAMESPACE|POSITION|NAME"
    r"|NODE|PROFILE|emptyDir|hostPath|safe-to-evict|schedulerName|nodeName|extendedResourceName|borrowers|root"
    r"|spec.securityContext\.supplementalGroups"
    r"|default-scheduler|default|smi|mig|whole|memory|admin|history|incidents|list|pods|nodes|off|false|true"
    r"|Unschedulable|x{3,}|spy|main|alice|loud)\b"
)
"""What stays as it is in every language."""
RESOURCES = ResourceSettings().offered
STATUS = SchedulingStatus("gpushare-scheduler")
HOG = part("ml/hog", used=6120, over_since=SINCE)
STRANGER = part("spy", granted=0, used=700, over_since=SINCE)


def said(message: Any) -> str:
    """Return a message in Chinese, as `say` of words.js does."""
    if not isinstance(message, dict):
        return str(message)
    parameters = message["parameters"]

    def part(name: str, between: str = "") -> str:
        value = parameters.get(name, "")
        return (between or "\uff1b").join(map(said, value if isinstance(value, list) else [value]))

    def kept(found: re.Match[str]) -> str:
        return found[1] if all(part(name) for name in re.findall(r"\{(\w+)", found[1])) else ""

    form = re.sub(r"\[([^\]]*)\]", kept, CHINESE[message["code"]])
    return re.sub(r"\{(\w+):?([^}]*)\}", lambda found: part(found[1], found[2]), form)


def blanks(form: str) -> set[str]:
    return set(re.findall(r"\{(\w+)", form))


def kernel_of(path: Path) -> str:
    """Return the source of a module without what is the doctor's."""
    return path.read_text(encoding="utf-8").partition("# --- The doctor")[0]


def calls() -> Iterator[tuple[str, set[str] | None]]:
    """Yield the codes that are written at the beginning of a call, with the parameters; None: these stand elsewhere."""
    for path in SOURCES:
        for call in ast.walk(ast.parse(kernel_of(path))):
            match call:
                case ast.Call(
                    func=ast.Name(
                        "note"
                        | "Clause"
                        | "_ImpossibleError"
                        | "Unknown"
                        | "_cause"
                        | "resolvable"
                        | "unresolvable"
                        | "FilterFailure"
                    ),
                    args=[ast.Constant(str(code)), *_],
                ):
                    names = {each.arg for each in call.keywords}
                    if path.name == "slowness.py" and call.func.id == "_cause":  # type: ignore[attr-defined]
                        names |= {"gpu", "period", "likewise"}
                    whole = None in names or call.func.id in {"Clause", "FilterFailure"}  # type: ignore[attr-defined]
                    yield code, None if whole else {str(each) for each in names}


def test_every_code_that_reaches_the_page_has_a_chinese_form_with_its_parameters() -> None:
    told = [(code, names) for code, names in calls() if code not in NOT_TOLD]
    assert {code for code, _ in told} - CHINESE.keys() == set()
    assert [(code, names) for code, names in told if names is not None and blanks(CHINESE[code]) - names] == []


def test_every_chinese_form_is_used() -> None:
    words = {
        each.value
        for path in SOURCES
        for each in ast.walk(ast.parse(kernel_of(path)))
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }
    assert CHINESE.keys() - words - MADE_OF_PARTS == set()
    assert MADE_OF_PARTS - NOT_TOLD - CHINESE.keys() == set()


@pytest.mark.parametrize("code", CHINESE)
def test_a_chinese_form_has_no_english_word(code: str) -> None:
    assert re.findall(r"[A-Za-z]{3,}", NAMES.sub("", re.sub(r"\{[^}]*\}", "", CHINESE[code]))) == []


def found(mem: int, *mibs: int, count: int = 0, kept: Kept | None = None) -> list[NodeAnswer]:
    """Return what becomes of a pod on nodes with a GPU each that a pod uses half of."""
    limits = {RESOURCES[0].name: mem} if mem else {RESOURCES[1].name: count}
    pod = Pod("u", "default", "w", containers=(Container("main", ContainerKind.APP, 0, limits),))
    asked = ask(pod, RESOURCES)
    assert isinstance(asked, GpuRequest)
    nodes = [node_view(f"n{number}", (size,), pod_on(f"p{number}", {0: size // 2})) for number, size in enumerate(mibs)]
    return answers([(node, asked, kept if kept and node.name == "n0" else Kept()) for node in nodes], "binpack", 1)


def findings() -> Iterator[Finding | None]:
    """Yield findings as the code of the server makes them."""
    many = node_view("n0", (16,), *(pod_on(f"p{n}", {0: 2}) for n in range(8)))
    pod = Pod("u", "default", "w", containers=(Container("main", ContainerKind.APP, 0, {RESOURCES[0].name: 16}),))
    asked = ask(pod, RESOURCES)
    assert isinstance(asked, GpuRequest)
    crowd = answers([(many, asked, Kept())], "binpack", 1)
    aside = answers([(put_aside(node_view("n0", (16,)), "GPU-0"), asked, Kept())], "binpack", 1)
    cordoned = Kept(excluded=(note("cordoned", "it is cordoned"),))
    for each in (
        *(aside, [], crowd, found(12, 16), found(12, 16, 16, 14), found(2, 16), found(2, 16, 16), found(40, 16, 16)),
        *(found(0, 16, 16, count=1), found(0, 16, 16, count=2), found(2, 16, kept=cordoned)),
        found(12, 16, 16, kept=cordoned),
    ):
        yield why_waits(STATUS, (), each)
        yield what_makes_room(each, lambda _: True)
        yield what_makes_room(each, lambda _: False)
        yield from explain(each, 1)
    yield from describe(GpuRequest((*found(0, 8, count=2)[0].ask.parts, *found(4, 8)[0].ask.parts)), RESOURCES, [many])
    web = Pod("u", "default", "web", "a", containers=(Container("xxx", ContainerKind.APP, 0, {RESOURCES[0].name: 4}),))
    elastic, below = {MEMORY_GUARANTEE: "6", MEMORY_LIMIT: "12"}, {MEMORY_GUARANTEE: "2"}
    wishes = [elastic, below, *({**elastic, key: '{"wish":"6","why":"xxx"}'} for key in (MEMORY_PROMISED, MEMORY_HELD))]
    for wish in wishes:
        for means in CHOOSABLE:
            kept = replace(part("web", enforcement=means), container="xxx")
            yield from resizes(replace(web, annotations=wish), RESOURCES, node_view("a", (16,), report=report(kept)))
    lent = report(replace(ASKED, pod="xxx", container="xxx", needed_by="default/web"), HOG, STRANGER)
    for one in (web, replace(web, running=True), *(replace(web, name=own.pod) for own in (HOG, STRANGER))):
        yield from of_pod(one, node_view("a", (16,), report=lent), [0])
    move = Move(PlannedPod(pod_on("web", {0: 4})), "n1", "n2", ())
    yield from (makes_room(moves, "default/xxx") for moves in (None, (), (move,), (move, move)))
    yield from (missing_right(Call("list", "pods", namespace=space)) for space in ("", "default"))
    yield from map(ago, (None, 3.0, 300.0, 9e3, 9e5))
    yield few(tuple("xxx" for _ in range(9)))
    for annotations, labels, mem, count in (
        *(({}, {SPLIT_LABEL: "x"}, 4, 0), ({}, {SPLIT_LABEL: "3"}, 4, 0), ({}, {SPLIT_LABEL: "9999"}, 4, 0)),
        *(({USE_UUID: " "}, {}, 4, 0), ({GPU_POLICY: "xxx"}, {}, 4, 0), ({}, {}, 1 << 30, 0), ({}, {}, 4, 1)),
    ):
        container = Container("main", ContainerKind.APP, 0, {RESOURCES[0].name: mem, RESOURCES[1].name: count})
        no = ask(replace(pod, annotations=annotations, labels=labels, containers=(container,)), RESOURCES)
        assert isinstance(no, Impossible)
        yield told(no.why)
    healthy = history(pcie_percent=series(50))
    for slow in (*(slow for slow, _ in CAUSES.values()), healthy, replace(healthy, containers=())):
        yield from slowness([slow], "default", "train", NOW)
        yield from slowness([slow], "default", "train", NOW, lambda _: False)
    yield from slowness([healthy], "default", "train", NOW + 9e3)


def messages(of: object) -> Iterator[Message]:
    """Yield a message and those in it."""
    if isinstance(of, list):
        for each in of:
            yield from messages(each)
    elif isinstance(of, dict):
        yield of
        for each in of["parameters"].values():
            yield from messages(each)


def test_what_the_server_says_is_said_in_chinese() -> None:
    made = [each.message() for each in findings() if each is not None and each.code != "empty"]
    left = {each["text"]: words for each in made if (words := re.findall("[a-z]{3,}", NAMES.sub("", said(each))))}
    assert left == {}
    assert [each["text"] for each in made if not re.search("[\u4e00-\u9fff]", said(each))] == []
    inner = [each for one in made for each in messages(one)]
    assert [each["code"] for each in inner if blanks(CHINESE[each["code"]]) - each["parameters"].keys()] == []


HOSTILE = "{pod}</p><script>[{why}]"


def test_names_that_look_like_blanks_stay_as_they_are() -> None:
    """A name is filled in once, whatever it looks like, and the page escapes it as any text."""
    node = node_view(HOSTILE, (16,), pod_on(HOSTILE, {0: 16}))
    limits = {RESOURCES[0].name: 4}
    asked = ask(Pod("u", "default", "w", containers=(Container("main", ContainerKind.APP, 0, limits),)), RESOURCES)
    assert isinstance(asked, GpuRequest)
    answer = answers([(node, asked, Kept())], "binpack", 1)
    waits, room = why_waits(STATUS, (), answer), what_makes_room(answer, lambda _: True)
    assert room is not None
    for each in (waits, room, *(line for line in explain(answer, 1) if line.code in {"of-node", "gpu-row"})):
        assert HOSTILE in str(each)
        assert HOSTILE in said(each.message())


def test_what_a_reader_may_not_see_is_not_in_the_parameters_either() -> None:
    crowd = answers(
        [(node_view("n0", (16,), *(pod_on(f"p{n}", {0: 2}) for n in range(8))), found(16, 16)[0].ask, Kept())],
        "binpack",
        1,
    )
    for each in (found(12, 16), crowd):
        hidden, shown = what_makes_room(each, lambda _: False), what_makes_room(each, lambda _: True)
        assert hidden is not None
        assert shown is not None
        assert "default/" not in json.dumps(hidden.message())
        assert "default/p0" in json.dumps(shown.message())
