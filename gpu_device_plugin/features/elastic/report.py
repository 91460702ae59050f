"""Explain for one pod what its memory is guaranteed, what limits it, and why it has not the size its owner wants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpu_device_plugin.features.elastic.contract import (
    IN_CONTAINER,
    MemoryRequests,
    PodGuarantees,
    Size,
    is_elastic,
    read_wish,
)
from gpu_device_plugin.features.elastic.rules.promising import sizes
from gpu_device_plugin.features.use.report import asked
from gpu_device_plugin.model.contract.keys import (
    ELASTIC,
    MEMORY_GUARANTEE,
    MEMORY_LIMIT,
    MEMORY_PROMISED,
    PLACES,
    RESIZE_BOUND,
)
from gpu_device_plugin.model.contract.node_use import ContainerUse
from gpu_device_plugin.model.contract.nodegpus import ListedGpu
from gpu_device_plugin.model.gpus import MOST_SHARES
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.report.rules.columns import Tone
from gpu_device_plugin.report.rules.finding import Finding, note, ok, units, warning
from gpu_device_plugin.report.rules.held_instances import asked_instances
from gpu_device_plugin.report.rules.node_view import ExaminedNode, NodeView, State
from gpu_device_plugin.report.rules.printing import gib, listed, mib
from gpu_device_plugin.scheduler.rules.usage import growable

_SAYS = " says: "


# The kubelet gives a container that restarts the variables of its first start.
_ENFORCED = {
    Enforcement.ADVISORY: f"nothing enforces it: the program has to follow {IN_CONTAINER}",
    Enforcement.DRIVER: "the driver keeps the limit set when the container started, unless the node runs the limit "
    "helper",
    Enforcement.DMEM: "the limit helper has the kernel's limit follow",
    Enforcement.MPS: "MPS keeps the limit that the pod was created with",
    Enforcement.CUSTOM: "the administrator's library keeps the limit that the pod was created with",
}
_INIT = note("init-not-resized", "init containers cannot be resized")
_NO_GPU_NAMED = note("names-no-gpu", "its annotations name no GPU")
_EQUAL_PARTS = note("equal-parts", "it has shares of several GPUs, which cannot be resized")
_WHOLE = note("has-whole-gpus", "it has whole GPUs, which cannot be resized")
_WHOLE_INSTANCES = note("has-whole-instances", "it has whole MIG instances, which cannot be resized")
_CLAIMS = note("has-claims", "it has its GPUs through ResourceClaims, whose allocation Kubernetes never changes")
_EXTENDER_SILENT = note("extender-silent", "the scheduler extender has not answered yet")
_AGENT_SILENT = note("node-agent-silent", "the agent of its node has not answered yet")


def not_resizable(pod: Pod, resources: Sequence[Resource], container: str, *, claims: bool) -> str:
    """Return why a container cannot be resized, as a clause about its pod; empty: it can.

    Args:
        pod: the pod.
        resources: the resources of shares and of whole GPUs.
        container: its name; empty: the only one with shares.
        claims: whether the pod has ResourceClaims.
    """
    possible, named = growable(pod, resources), {each.name: each for each in pod.containers}
    running = "it has ended" if pod.ended else "it is being deleted" if pod.deleting else ""
    if running or not pod.running:
        return running or f"it is not running yet ({pod.phase}); change its requests, or wait"
    if container in possible or (not container and len(possible) == 1):
        return ""
    if not container and possible:
        return f"several of its containers have shares; name one with -c: {listed(possible)}"
    if container and container not in named:
        return f"it has no container {container!r} with GPUs; there is {listed(named) or 'none'}"
    return str(_other_kind([named[container]] if container else list(pod.containers), pod, resources, claims=claims))


def _other_kind(containers: Sequence[Container], pod: Pod, resources: Sequence[Resource], *, claims: bool) -> Finding:
    asked = {each.kind for each in resources for container in containers if container.limits.get(each.name)}
    shares = Kind.MEMORY in asked
    reasons = (
        (shares and containers[0].kind is ContainerKind.INIT, _INIT),
        (shares and pod.annotations.keys().isdisjoint(PLACES), _NO_GPU_NAMED),
        (shares, _EQUAL_PARTS),
        (asked, _WHOLE),
        (asked_instances(pod), _WHOLE_INSTANCES),
        (claims, _CLAIMS),
    )
    names = tuple(each.name for each in resources if each.kind is Kind.MEMORY)
    asks_for_none = note("asks-for-no", "it asks for no {resources:+ or }", resources=names)
    return next((why for applies, why in reasons if applies), asks_for_none)


def why_not(pod: Pod, size: Size) -> str:
    """Return why a container is not guaranteed what its owner wants, as a clause; empty: it is."""
    return "" if size.held == size.target else str(_unanswered(pod, size))


def _unanswered(pod: Pod, size: Size) -> Finding:
    says, annotations = PodGuarantees.of(pod), pod.annotations
    if says.promised is not None and size.held < size.target:
        if not says.promised.answers(annotations):
            return _EXTENDER_SILENT
        if size.more > 0 and says.promised.why:
            return note("extender-says", f"the scheduler extender{_SAYS}{{why}}", why=says.promised.why)
    why = says.held.why if says.held.answers(annotations) else ""
    return note("node-agent-says", f"the agent of its node{_SAYS}{{why}}", why=why) if why else _AGENT_SILENT


def settled(why: str) -> bool:
    """Return whether a wish holds, or the extender or the agent has said why not; by `why_not`."""
    return not why or _SAYS in why


def of_size(pod: Pod, size: Size, node: NodeView | None) -> Iterator[Finding]:
    """Yield what a container of a pod is guaranteed and limited to, on a node of which None: nothing is known."""
    amount = units if node is None else node.amount
    name, now = repr(size.container), amount(size.held)
    if size.held != size.target:
        why = _unanswered(pod, size)
        text = "Container {container} is guaranteed {held} and requests {wish}: {why}."
        yield note("resize-waits", text, container=name, held=now, wish=amount(size.target), why=why)
    elif size.wish is not None and size.wish < size.request:
        text = (
            "Container {container} remains guaranteed its request, {held}: the kubelet takes nothing back while it "
            "runs."
        )
        yield note("resize-below-request", text, container=name, held=now)
    else:
        code, end = ("guaranteed-request", ", its request.") if size.held == size.request else ("guaranteed", ".")
        yield note(code, f"Container {{container}} is guaranteed {{held}}{end}", container=name, held=now)
    gpu = gpu_of(size, node)
    in_all = MOST_SHARES if gpu is None else gpu.shares
    most = MemoryRequests.of(pod.annotations).limit_of(size.container, size.held, in_all, may_borrow=True)
    if gpu is not None and gpu.instance is not None:
        yield note("instance", "It has shares of a MIG instance, which can neither grow nor borrow.")
    elif most != size.held:
        every = note("all-of-its-gpu", ", all of its GPU") if most == in_all else ""
        below = note("below-guarantee", ", less than its guarantee")
        rest = note("borrows-the-rest", ", of which it borrows what others do not need") if most > size.held else below
        text = "Its limit is {limit}{every}{rest}"
        started = [part.enforcement for part in _parts(pod, size, node)]
        present = None if node is None else node.report.enforcement(size.gpu)
        # Since its start, or for new ones on its GPU.
        means = next((each for each in started if each), None if present is None else present.enforcement)
        kept = "" if means is None else _ENFORCED.get(means, "")
        how = note(f"kept-by-{means}", f"; {kept}") if kept else ""
        yield note("limit", f"{text}{{how}}.", limit=amount(most), every=every, rest=rest, how=how)
        if most > size.held and any(part.most_mib <= part.granted_mib for part in _parts(pod, size, node)):
            yield note(
                "lends-nothing",
                "Its node did not let it borrow at the last report: the limit is newer, or the node's setting "
                "borrowers is off.",
            )


def gpu_of(size: Size, node: NodeView | None) -> ListedGpu | None:
    """Return the GPU of a container; None: it is not known."""
    listed_gpus = () if node is None else node.candidate.gpus.gpus
    return next((gpu for gpu in listed_gpus if gpu.position == size.gpu), None)


def resizes(pod: Pod, resources: Sequence[Resource], node: NodeView | None) -> Iterator[Finding]:
    """Yield the same for each container of a pod on a node whose owner wants, or wanted, another size."""
    if pod.ended or pod.annotations.keys().isdisjoint(ELASTIC - {MEMORY_PROMISED}):
        return
    yield from unreadable_wishes(pod)
    found = sizes(pod, resources)
    if not found and not pod.annotations.keys().isdisjoint({MEMORY_LIMIT, MEMORY_GUARANTEE}):
        why = _other_kind(list(pod.containers), pod, resources, claims=False)
        yield note("wish-without-shares", "Its memory annotations have no effect: {why}.", why=why)
    for size in found:
        limit = read_wish(pod.annotations, MEMORY_LIMIT).of(size.container)
        if size.wish is not None or limit is not None or size.held != size.request:
            yield from of_size(pod, size, node)


def unreadable_wishes(pod: Pod) -> Iterator[Finding]:
    """Yield a sentence for each wish of a pod's owner that cannot be parsed."""
    for problem in MemoryRequests.of(pod.annotations).malformed:
        yield note("wish-malformed", "{problem}; it is ignored.", problem=f"{problem[0].upper()}{problem[1:]}")


def _parts(pod: Pod, size: Size, node: NodeView | None) -> Sequence[ContainerUse]:
    """Return what its node reports of a container."""
    key = pod.namespace, pod.name, size.container
    current = () if node is None else node.report.current
    return [part for part in current if (part.namespace, part.pod, part.container) == key]


def borrowing(_: NodeView, parts: Sequence[ContainerUse]) -> Iterable[State]:
    """Return what containers borrow, and whether they are asked to return it."""
    growing = [part for part in parts if part.limit_mib is not None or part.asked_at]
    return _borrowing(growing) if growing else ()


def _borrowing(parts: Sequence[ContainerUse]) -> Iterator[State]:
    if borrowed := sum(part.borrowed_mib or 0 for part in parts):
        word, amount = f"borrows {gib(borrowed)}", {"amountMiB": borrowed}
        # Tables tell what a pod borrows before that it is asked to return it.
        yield State(6, "borrows", Tone.PLAIN, f"borrows {mib(borrowed)}", amount, word)
    if returning := [part for part in parts if part.asked_at]:
        said = {
            "amountMiB": borrowed or None,
            "since": min(part.asked_at for part in returning),
            "until": min((part.return_by for part in returning if part.return_by), default=""),
            "pod": next((part.needed_by for part in returning if part.needed_by), ""),
        }
        text, word = str(asked(returning[0])), "asked to return"
        yield State(7, "asked-to-return", Tone.WARNING, text, said, word, counted="to return memory")


# --- The doctor -------------------------------------------------------------------------------------------------------


def wishes(pods: Iterable[Pod], nodes: Iterable[ExaminedNode], memory: str) -> Iterator[Finding]:
    """Check that the memory which owners want for running pods can be given, and is; `memory` names the resource."""
    resources = (Resource(Kind.MEMORY, memory),)
    shares = {(node.name, gpu.position): gpu.shares for node in nodes for gpu in node.gpus.gpus}
    pods = [pod for pod in pods if is_elastic(pod.annotations)]
    findings = [finding for pod in pods for finding in _unfulfilled(pod, resources, shares)]
    yield from findings
    if pods and not findings:
        yield ok("wishes", "{pods:pod} resized as their owners requested", pods=len(pods))


def _unfulfilled(pod: Pod, resources: Sequence[Resource], shares: Mapping[tuple[str, int], int]) -> Iterator[Finding]:
    name, again = f"{pod.namespace}/{pod.name}", f"kubectl inspect gpushare resize {pod.name} -n {pod.namespace}"
    requests = MemoryRequests.of(pod.annotations)
    for problem in requests.malformed:
        yield warning("wish-malformed", "{pod}: {problem}", f"{again} AMOUNT", pod=name, problem=problem)
    for size in sizes(pod, resources):
        most = shares.get((pod.node_name, size.gpu))
        wanted = max(requests.limit.of(size.container) or 0, size.wish or 0)
        if most is not None and wanted > most:
            text = "{pod}: {wanted} shares for container {container} are more than its GPU has, {most}"
            yield warning("wish-too-large", text, f"{again} AMOUNT --limit {most}", pod=name, wanted=wanted,
                          container=size.container, most=most)  # fmt: skip
        elif pod.running and (why := why_not(pod, size)):
            bound = (
                f"kubectl label namespace {pod.namespace} --overwrite {RESIZE_BOUND}=N, the total of shares that its "
                "pods may have beyond their requests"
            )
            advice = bound if RESIZE_BOUND in why else f"{again} AMOUNT; with --clear it stays as it is"
            text = "{pod}: container {container} is guaranteed {held} shares instead of {target}: {why}"
            yield note("resize-waits", text, advice, pod=name, container=size.container, held=size.held,
                       target=size.target, why=why)  # fmt: skip
