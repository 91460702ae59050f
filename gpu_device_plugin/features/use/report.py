"""Put the use of GPU memory in words: who uses how much, since when it is too much, and whom that leaves too little."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence

from gpu_device_plugin.model.contract.node_use import (
    ContainerUse,
    NodeReport,
    NodeUse,
    asked_s,
    idle,
    not_held,
    trespasses,
)
from gpu_device_plugin.model.contract.nodegpus import ListedGpu
from gpu_device_plugin.model.limits import LimitStatus
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.report.rules.columns import Tone, aligned
from gpu_device_plugin.report.rules.finding import Finding, Parameter, ago, few, grouped, note, ok, warning
from gpu_device_plugin.report.rules.node_view import ExaminedNode, GpuView, NodeView, State
from gpu_device_plugin.report.rules.printing import age, container, counted, duration, first, limit, mib

_NOTHING = "-"
_HEADING = ("  GPU", "CONTAINER", "USED", "GRANTED", "LIMIT", "")


def uses(part: ContainerUse) -> Finding:
    """Return what a container uses, as the end of a sentence that begins with its name."""
    if trespasses(part):
        text = "uses {used} of GPU {gpu}, which it was not assigned"
        return note("uses-ungiven", text, used=mib(part.used_mib), gpu=part.gpu)
    since = ", since {since}" if part.over_since else ""
    facts: dict[str, Parameter] = {
        "used": note("unknown-amount", "an unknown amount") if part.used_mib is None else mib(part.used_mib),
        "gpu": part.gpu,
        "granted": mib(part.granted_mib),
        "since": part.over_since,
    }
    if part.limit_mib is None:
        return note("uses-granted", f"uses {{used}} of GPU {{gpu}}, was granted {{granted}}{since}", **facts)
    text = f"uses {{used}} of GPU {{gpu}}, is guaranteed {{granted}} and limited to {{limit}}{since}"
    limited = note("uses-limited", text, limit=mib(part.limit_mib), **facts)
    if not (part.borrowed_mib or part.asked_at):
        return limited
    return note("reasons", "{why:+; }", why=(limited, *filter(str, (borrows(part), asked(part)))))


def borrows(part: ContainerUse) -> Finding:
    """Return how much a container borrows, as a clause; empty: nothing, as far as is known."""
    return note("borrows", "borrows {amount}" if part.borrowed_mib else "", amount=mib(part.borrowed_mib))


def asked(part: ContainerUse) -> Finding:
    """Return since when a container is asked to return what it borrows, for whom, and until when; empty: it is not."""
    if not part.asked_at:
        return note("not-asked", "")
    needed = " for {pod}" if part.needed_by else ""
    evicted = ", and is evicted at {until} otherwise" if part.return_by else ""
    text = f"has been asked since {{since}} to release it{needed}{evicted}"
    return note("asked-to-return", text, since=part.asked_at, pod=part.needed_by, until=part.return_by)


def does_not_hold(part: ContainerUse) -> Finding:
    """Return why the limit of a container does not hold, as the end of a sentence that begins with its name."""
    end = ": {why}" if part.why else ""
    if part.held is LimitStatus.DIFFERS:
        text, found = f"is limited to {{found}} of GPU {{gpu}} instead of {{most}}{end}", mib(part.found_mib)
        return note("limit-differs", text, found=found, gpu=part.gpu, most=mib(part.most_mib), why=part.why)
    text = f"has no limit on GPU {{gpu}}, where it was granted {{granted}}{end}"
    return note("limit-missing", text, gpu=part.gpu, granted=mib(part.granted_mib), why=part.why)


# --- Several nodes ----------------------------------------------------------------------------------------------------


def at_a_glance(nodes: Iterable[NodeView]) -> list[str]:
    """Return what somebody should look at, as at most one line; nothing if all is well or nothing is known."""
    views = tuple(nodes)
    found = [state for node in views for part in node.report.current for state in node.part_states([part])]
    # Of containers on GPUs of others, those that are there for long with more than a little.
    seen = Counter(state.code for state in found if state.code != "trespass" or state.parameters["since"])
    faults = (
        (seen["over"], "container is", "containers are", "over the limit"),
        (seen["trespass"], "container uses", "containers use", "a GPU without a grant"),
        (seen["limit-not-held"], "limit does", "limits do", "not hold"),
        (seen["asked-to-return"], "container is", "containers are", "asked to return borrowed memory"),
        (sum(len(node.candidate.gpus.cordoned) for node in views), "GPU is", "GPUs are", "cordoned"),
    )
    said = "; ".join(f"{counted(number, one, many)} {what}" for number, one, many, what in faults if number)
    return ["", f"{said}: kubectl inspect gpushare -d has the names."] if said else []


def memory_in_use(nodes: Iterable[NodeView]) -> list[str]:
    """Return a table for each node whose agent reports who uses what: used beside granted, by container."""
    return [line for node in nodes if node.report.use is not None for line in _table(node, node.report.use)]


def _table(node: NodeView, use: NodeUse) -> Iterator[str]:
    report = node.report
    yield ""
    yield f"GPU memory in use on {node.name}{f', read {age(report.use_age_s)}' if report.old else ''}:"
    if use.blind:
        yield f"  Its use by container is unknown: {use.blind}."
    rows = []
    for gpu in node.candidate.gpus.all:
        used, enforcement = report.used(gpu.position), report.enforcement(gpu.position)
        place = f"  {gpu.position}"
        rows += [
            (place, container(part), mib(part.used_mib), mib(part.granted_mib), limit(part), _remark(node, part))
            for part in sorted(report.parts(gpu.position), key=lambda part: (-(part.used_mib or 0), container(part)))
        ]
        if used.unattributed_mib:
            rows.append((place, "(outside pods)", mib(used.unattributed_mib), _NOTHING, _NOTHING, ""))
        of = _NOTHING if gpu.memory_mib is None else f"of {mib(gpu.memory_mib)}"
        plan = _NOTHING if enforcement is None else enforcement.enforcement.value
        refused = (
            f"shares are refused: {enforcement.refusal}" if enforcement is not None and enforcement.refusal else ""
        )
        remark = "; ".join(filter(None, (refused, "" if gpu.cordon is None else str(gpu.cordon))))
        rows.append((place, "(total)", mib(used.used_mib), of, plan, remark))
    yield from (line.rstrip() for line in aligned([_HEADING, *rows]))
    if use.left_out:
        yield f"  {counted(use.left_out, 'more container is', 'more containers are')} not listed."


def _remark(node: NodeView, part: ContainerUse) -> str:
    said = {state.code: state.text for state in node.part_states([part])}
    if "trespass" in said:
        return said["trespass"]
    most = "" if part.limit_mib is None else f"may use {mib(part.limit_mib)}"
    states = (said.get(code) for code in ("borrows", "asked-to-return", "over", "computes-nothing"))
    return "; ".join(filter(None, (most, *states, part.why)))


# --- One pod ----------------------------------------------------------------------------------------------------------


def of_pod(pod: Pod, node: NodeView, positions: Iterable[int]) -> Iterator[Finding]:
    """Yield findings about a pod on a node: its use, its limits, and neighbours that leave it too little memory."""
    report = node.report
    own = [part for part in report.current if _is(part, pod)]
    if report.stale:
        text = "Its node's agent last read GPU memory use {age}, too long ago to report it."
        yield note("use-outdated", text, age=ago(report.use_age_s))
    elif report.use is not None and report.use.blind:
        yield note("its-use-unknown", "Its use is unknown: {why}.", why=report.use.blind)
    elif report.old and own:
        yield note("use-old", "Its node's agent wrote these figures {age}:", age=ago(report.use_age_s))
    for part in own:
        it = note("it", "It")
        name = note("container", "Container {name}", name=repr(part.container)) if part.container else it
        if part.over_since or trespasses(part) or part.used_mib is not None:
            yield note("use", "{container} {use}.", container=name, use=uses(part))
        if not_held(part):
            yield note("limit-not-held", "{container} {why}.", container=name, why=does_not_hold(part))
    yield from lent(pod, report)
    for gpu in node.candidate.gpus.all:
        if gpu.position in set(positions):
            yield from _squeezed(pod, node, gpu)


def lent(pod: Pod, report: NodeReport) -> Iterator[Finding]:
    """Say who borrows the memory that a pod needs now."""
    for part in report.current:
        if part.needed_by == f"{pod.namespace}/{pod.name}":
            code, verb = ("needs-lent-memory", "needs") if pod.running else ("waits-for-lent-memory", "waits for")
            yield note(
                code,
                f"It {verb} {{amount}} that {{borrower}} borrows of GPU {{gpu}}, asked to return it {{age}}.",
                amount=mib(part.borrowed_mib),
                borrower=container(part),
                gpu=part.gpu,
                age=ago(asked_s(report, part)),
            )


def _is(part: ContainerUse, pod: Pod) -> bool:
    return (part.namespace, part.pod) == (pod.namespace, pod.name)


def _squeezed(pod: Pod, node: NodeView, gpu: ListedGpu) -> Iterator[Finding]:
    """Say that less is left of a GPU than the pod was granted, and who uses more than its own part."""
    parts = [part for part in node.report.current if part.gpu == gpu.position]
    own = [part for part in parts if _is(part, pod)]
    used = node.report.used(gpu.position)
    if gpu.memory_mib is None or used.used_mib is None or any(part.used_mib is None for part in own) or not own:
        return
    granted = sum(part.granted_mib for part in own)
    others_mib = used.used_mib - sum(part.used_mib or 0 for part in own)
    left = max(0, gpu.memory_mib - (gpu.reserved_mib or 0) - others_mib)
    if left >= granted:
        return
    names = _beyond_their_parts([part for part in parts if not _is(part, pod)], used.unattributed_mib or 0)
    yield note(
        "squeezed",
        "GPU {gpu} has only {left} left for the {granted} that the pod was granted" + (": {by}." if names else "."),
        gpu=gpu.position,
        left=mib(left),
        granted=mib(granted),
        by=few(names, "; "),
    )


def _beyond_their_parts(parts: Iterable[ContainerUse], unattributed_mib: int) -> list[Finding]:
    """Return the pods that use more than they were granted, and processes outside pods; the largest excess first."""
    by_pod = grouped(("/".join(filter(None, (part.namespace, part.pod))), part) for part in parts)
    nobodys = note("nobodys-processes", "processes outside pods use {used}", used=mib(unattributed_mib))
    excess = [(unattributed_mib, nobodys)]
    for name, theirs in by_pod.items():
        used, granted = sum(part.used_mib or 0 for part in theirs), sum(part.granted_mib for part in theirs)
        code, given = ("pod-uses", "granted {granted}") if granted else ("pod-uses-ungiven", "not assigned this GPU")
        text = f"{{pod}} uses {{used}} ({given})"
        excess.append((used - granted, note(code, text, pod=name, used=mib(used), granted=mib(granted))))
    beyond = [(amount, said) for amount, said in excess if amount > 0]
    return [said for amount, said in sorted(beyond, key=lambda one: (-one[0], str(one[1])))]


def blind(node: NodeView) -> Iterator[State]:
    """Yield why it is not known who uses what on a node."""
    if node.report.use is not None and (why := node.report.use.blind):
        yield State(12, "blind", Tone.PLAIN, why, {"why": why})


def used_by_no_pod(node: NodeView, view: GpuView) -> Iterator[State]:
    """Yield what processes outside pods use of a GPU."""
    others = node.report.used(view.gpu.position).unattributed_mib
    if others and not node.report.stale:
        yield State(
            13, "used-by-no-pod", Tone.PLAIN, f"processes outside pods use {mib(others)}", {"amountMiB": others}
        )


def quiet_or_strange(node: NodeView, parts: Sequence[ContainerUse]) -> Iterable[State]:
    """Return whether containers compute nothing, or use a GPU that they were not given."""
    # The agent tells after a while that a pod is idle; until then it is seen by the processors.
    quiet = [part for part in parts if part.idle_since or not part.sm_percent or not part.granted_mib]
    return _quiet_or_strange(node, parts) if quiet else ()


def _quiet_or_strange(node: NodeView, parts: Sequence[ContainerUse]) -> Iterator[State]:
    if strangers := [part for part in parts if trespasses(part)]:
        used, since = sum(part.used_mib or 0 for part in strangers), max(part.over_since for part in strangers)
        said: dict[str, str | int | None] = {"amountMiB": used, "since": since}
        yield State(
            2, "trespass", Tone.BAD, "was not assigned this GPU", said, word="not assigned", counted="not assigned"
        )
    since = min((part.idle_since for part in parts if part.idle_since), default="")
    still = all(part.sm_percent == 0 and part.used_mib is not None for part in parts)
    if since or (still and any(part.used_mib for part in parts)):
        seconds = idle(node.report, parts)
        word = "idle" if seconds is None else f"idle {duration(seconds)}"
        text = f"idle since {since}" if since else "idle"
        yield State(10, "computes-nothing", Tone.PLAIN, text, {"since": since}, word)


# --- The doctor -------------------------------------------------------------------------------------------------------

DETAILS = "{node}: {details}"
"""The text of a finding with the parameters of `details`."""
_RETURN_S = 120.0
"""A container that is asked to return memory for longer does not do it by itself."""
_SELF_GIVEN = "such a pod is privileged, or sets NVIDIA_VISIBLE_DEVICES itself; have it ask for its GPU memory"


def use(nodes: Sequence[ExaminedNode], ready: Container[str]) -> Iterator[Finding]:
    """Check that the use of GPU memory is known, and that no container uses more than it was granted.

    `ready` are the nodes on which an agent is ready.
    """
    for node in nodes:
        for problem in node.report_problems:
            advice = "upgrade the older of agent and reader"
            yield warning("report-unreadable", "{node}: {problem}", advice, node=node.name, problem=problem)
    reading = [(use, node) for node in nodes if (use := node.report.use) is not None]
    for why, names in sorted(grouped((use.blind, node.name) for use, node in reading if use.blind).items()):
        text = "GPU memory use by container is unknown on {nodes}: {why}"
        advice = (
            "hostPID: true in the agent's DaemonSet lets it see processes of other pods; without it "
            "over-use goes unseen"
        )
        yield note("use-unknown", text, advice, nodes=names, why=why)
    seeing = [node for use, node in reading if not use.blind]
    findings = [finding for node in seeing for finding in _used(node.name, node.report, agent_ready=node.name in ready)]
    yield from findings
    current = sum(not node.report.stale for node in seeing)
    if current and not findings:
        yield ok("use", "read on {nodes:node}: every container stays within its grant", nodes=current)


def _used(node: str, report: NodeReport, *, agent_ready: bool) -> Iterator[Finding]:
    if report.stale and agent_ready:
        text = "{node}: its agent last read GPU memory use {age}"
        advice = "see its log; with usage_interval: 0s it does not read it, and a clock that is wrong shows so too"
        yield warning("use-outdated", text, advice, node=node, age=age(report.use_age_s))
    strangers = [part for part in report.current if trespasses(part)]
    if many := [part for part in strangers if part.over_since]:
        advice = f"{_SELF_GIVEN}; deploy/policies.yaml refuses the variable"
        yield warning("trespassing", DETAILS, advice, **details(node, many, uses))
    if few := [part for part in strangers if not part.over_since]:
        yield note("trespassing-little", DETAILS, _SELF_GIVEN, **details(node, few, uses))
    if kept := [part for part in report.current if (asked_s(report, part) or 0.0) > _RETURN_S]:
        advice = (
            "its program should follow its memory file (docs/elastic.md), or end; with borrowers: evict the agent "
            "evicts such pods"
        )
        yield warning("memory-not-returned", DETAILS, advice, **details(node, kept, uses))
    if over := [part for part in report.current if part.over_since and not trespasses(part)]:
        advice = (
            "give its program less memory, or the pod more; with over_use: evict, or evict-when-short, the agent "
            "evicts such pods (docs/guide.md)"
        )
        yield warning("over-use", DETAILS, advice, **details(node, over, uses))


def details(node: str, parts: Sequence[ContainerUse], say: Callable[[ContainerUse], Finding]) -> dict[str, Parameter]:
    """Return the parameters of a finding about containers of a node; of many the first ones are told in full."""
    details = first([f"{container(part)} {say(part)}" for part in parts], separator="; ")
    return {"node": node, "containers": tuple(map(container, parts)), "details": details}
