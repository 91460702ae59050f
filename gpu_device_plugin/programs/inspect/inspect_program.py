"""`kubectl inspect gpushare`: which pods use which GPU of the cluster, and why a pod gets none. Needs only kubectl."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from gpu_device_plugin.commandline import FAILED, OK, ending, resources_in, say, show, width
from gpu_device_plugin.features.claims.report import claims_waiting
from gpu_device_plugin.features.history.commands import agents_of
from gpu_device_plugin.features.report_features import REPORT, ReportParts
from gpu_device_plugin.features.terminal_features import TERMINAL, TerminalParts
from gpu_device_plugin.kubernetes.agent_reader import AgentUnreadableError
from gpu_device_plugin.kubernetes.client.errors import ApiError, ForbiddenError
from gpu_device_plugin.kubernetes.kubectl import Access, ClusterUnreadableError, reaching
from gpu_device_plugin.kubernetes.objects.api_objects import escaped
from gpu_device_plugin.kubernetes.objects.decoding import NODES, NOT_ENDED, PODS, ObjectKind, UnreadableObjectError
from gpu_device_plugin.kubernetes.objects.pod_details import events
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.programs.doctor.rules.cluster_checks import OWN, examine_partly
from gpu_device_plugin.programs.doctor.rules.findings_report import exit_code, report
from gpu_device_plugin.programs.inspect.arguments import parse, passed_on
from gpu_device_plugin.programs.inspect.cluster_reading import symptoms_in
from gpu_device_plugin.programs.inspect.overview import CHOICE, COUNTING, OVERVIEW, gpu_pods
from gpu_device_plugin.programs.inspect.top_picture import Picture, frame
from gpu_device_plugin.programs.inspect.uninstall import UNINSTALL
from gpu_device_plugin.report.commands import (
    GRANT,
    MISSING_RIGHT,
    NAMESPACE,
    NODE,
    PODS_OF_KUBECTL,
    Command,
    Output,
    add_more,
    all_of,
    argument,
    cluster_of,
    named_pod,
    needed,
    refusal,
    switch,
    unread,
    valued,
)
from gpu_device_plugin.report.followed_cluster import cluster
from gpu_device_plugin.report.rules.columns import Line, Tone, columns
from gpu_device_plugin.report.rules.extension import AgentFacts, placed
from gpu_device_plugin.report.rules.finding import Finding, Unknown, examine
from gpu_device_plugin.report.rules.node_answers import explain, explain_briefly
from gpu_device_plugin.report.rules.terminal_tables import SORTS, rows_waiting
from gpu_device_plugin.report.why_pod import events_of, explained, on_gpus
from gpu_device_plugin.settings.knobs import UsageError

if TYPE_CHECKING:
    import msgspec


T = TypeVar("T")

MOST_EXPLAINED = 10
"""The number of nodes that are explained one by one without --all-nodes."""
INTERVAL_S = 5.0
"""Between two pictures of top."""
_UNREADABLE = (ClusterUnreadableError, AgentUnreadableError, UnreadableObjectError, ApiError)
_WITHOUT_TEXTUAL = (
    "on a terminal it needs Textual, which is not installed; run pip install 'gpu-device-plugin[top]', or print one "
    "picture after another: top | cat"
)
_RIGHTS = "docs/inspect.md has the commands with which an administrator grants all rights that this command needs"


def main(
    argv: Sequence[str],
    *,
    prog: str = "kubectl inspect gpushare",
    kubectl: str = "kubectl",
    environ: Mapping[str, str] = os.environ,
    web: Callable[..., int] | None = None,
    parts: ReportParts = REPORT,
    terminal: TerminalParts = TERMINAL,
) -> int:
    """Run the command in `argv`, which the user typed as `prog`.

    `web` serves the page, see `local_page.on_this_machine`, and returns the exit code; None: this build has no page.
    `parts` and `terminal` are what features add.

    Returns:
        0 on success; 1 if the cluster, the node or the pod cannot be read; 2 for a usage error; the doctor returns one
        of `EXIT_CODES`.
    """

    def run() -> int:
        arguments = parse(prog, argv, commands(terminal))
        arguments.parts, arguments.terminal, arguments.environ = parts, terminal, environ
        resources, flags = resources_in(arguments, environ), passed_on(arguments)
        if arguments.command is _WEB:
            if web is None:
                raise UsageError("web: this build has no page; install the package gpu-device-plugin")
            return web(
                *(flags, resources),
                port=arguments.port or 0,
                browser=not arguments.no_browser,
                prog=prog,
                kubectl=kubectl,
                agents_namespace=arguments.agents_namespace,
                parts=parts,
            )
        try:
            return asyncio.run(_run(arguments, flags, resources, kubectl))
        except _UNREADABLE as error:
            said = refusal(error)
            if (
                arguments.command.name == OVERVIEW.name
                and arguments.instead.startswith("did")
                and arguments.instead not in said
            ):
                said = f"{said}. {arguments.node} is taken for the name of a node; {arguments.instead}"
            say(sys.stderr, f"{prog}: {said}")
            return FAILED

    return ending(prog, run)


async def _run(arguments: argparse.Namespace, flags: Sequence[str], resources: Sequence[Resource], kubectl: str) -> int:
    lines: Sequence[str | Line]
    code: int
    async with reaching(flags, kubectl) as access:
        lines, code = await arguments.command.run(arguments, access, resources)
    if code < 0:
        signal.raise_signal(-code)
    show((Line(line) if isinstance(line, str) else line for line in lines), arguments.environ)
    sys.stdout.flush()
    return code


# --- The commands -----------------------------------------------------------------------------------------------------


async def _top(arguments: argparse.Namespace, access: Access, resources: Sequence[Resource]) -> Output:
    """Draw GPUs and pods until the user ends it; without a terminal print one picture after the other.

    Returns:
        No lines, and the exit code; or the negative number of the signal that ended it, by which the program is to
        end, too.

    Raises:
        ClusterUnreadableError, ApiError, UnreadableObjectError: the first reading failed.
    """
    parts: ReportParts = arguments.parts

    async def read() -> Picture:
        fields = [f"metadata.name={escaped(arguments.node)}"] if arguments.node else []
        with needed("without -w the overview shows what it can"):
            raw_nodes = await access.items(NODES, fields, labels=arguments.selector)
            raw_pods = await access.items(PODS, NOT_ENDED)
        if arguments.node and not raw_nodes:
            raise ClusterUnreadableError(f'nodes "{arguments.node}" not found; {arguments.instead}')
        found, warnings = cluster(raw_nodes, raw_pods, resources, parts, parts.kind)
        warnings += await add_more(found, access)
        at, notes = time.strftime("%H:%M:%S"), warnings[:3]
        sort, namespace = arguments.sort_by or "name", arguments.namespace or ""
        waiting = [pod for pod in found.waiting_pods if namespace in {"", pod.namespace}]
        queue = [*rows_waiting(waiting, resources), *claims_waiting(found.more_of(namespace))]
        return Picture(found.views, len(found.waiting), at, notes, sort, namespace, queue=queue)

    async def again(picture: Picture) -> Picture:
        """Read again; a fault becomes a sentence beside the picture of before."""
        try:
            return await read()
        except _UNREADABLE as error:
            return replace(picture, problem=str(unread(error)))

    interval_s = arguments.interval or INTERVAL_S
    if all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):  # Textual draws on the last
        try:
            from gpu_device_plugin.programs.inspect.top_screen import draw  # noqa: PLC0415 - 2 MB that only this needs
        except ModuleNotFoundError as error:
            raise UsageError(f"top: {_WITHOUT_TEXTUAL}") from error
        # Read first, so that a login plugin may ask, and a fault ends the command.
        why = partial(_why_of_row, arguments=arguments, access=access, resources=resources)
        return (), await draw(await read(), again, why, interval_s=interval_s, environ=arguments.environ)
    await _print(await read(), again, interval_s)
    return (), OK


async def _why_of_row(
    row: str, *, arguments: argparse.Namespace, access: Access, resources: Sequence[Resource]
) -> Sequence[str | Line]:
    """Explain the pods of a row of `top`: a claim has several, or none yet, see `claimed_gpus.label`."""
    namespace, _, name = row.partition("/")
    if (claim := name.removeprefix("claim:")) != name:
        text = f"ResourceClaim {namespace}/{claim} is reserved for no pod"
        return [f"{text}: see kubectl -n {namespace} describe resourceclaim {claim}, and why POD for a pending one"]
    told: list[str | Line] = []
    for pod in (each for each in name.split("+") if " " not in each):
        of_why = {"namespace": namespace, "pod": pod, "all_nodes": False}
        try:
            told += (await _why(argparse.Namespace(**{**vars(arguments), **of_why}), access, resources))[0]
        except _UNREADABLE as error:
            told.append(Line(str(unread(error)), Tone.BAD))
    return told


async def _print(picture: Picture, again: Callable[[Picture], Awaitable[Picture]], interval_s: float) -> None:
    with contextlib.suppress(asyncio.CancelledError):  # by Ctrl-C
        while True:
            for line in frame(picture, shutil.get_terminal_size((120, 24)).columns):
                say(sys.stdout, line.text)
            say(sys.stdout, "")
            sys.stdout.flush()
            await asyncio.sleep(interval_s)
            picture = await again(picture)


async def _unless_unread(read: Awaitable[T], missing: list[Unknown]) -> T | None:
    """Return what is read, or None if that fails, and add the reason to `missing`."""
    try:
        return await read
    except (ApiError, AgentUnreadableError) as error:
        missing.append(unread(error))
        return None


async def _why(arguments: argparse.Namespace, access: Access, resources: Sequence[Resource]) -> Output:
    parts, namespace = arguments.parts, arguments.namespace or access.namespace
    pod, status = await named_pod(access, namespace, arguments.pod, resources)
    missing: list[Unknown] = []
    raw_events = await _unless_unread(events_of(access.client, namespace, pod.uid), missing)
    raw_nodes = await _unless_unread(access.items(NODES), missing)
    raw_pods = await _unless_unread(access.items(PODS, COUNTING), missing)
    status = replace(status, events=events(raw_events or (), status))
    found = None
    if raw_nodes is not None and raw_pods is not None:
        found = await cluster_of(raw_nodes, raw_pods, resources, access, features=parts, kind=parts.kind)
    claims: Sequence[Any] | None = found.more_of() if found is not None else ()
    if status.claims and not claims:
        read = await all_of(parts.kind, access, namespace)
        if isinstance(read, Unknown):
            missing.append(read)
        claims = None if isinstance(read, Unknown) else read[0]

    async def tell(of_agent: AgentFacts) -> Iterable[Finding]:
        agents = await agents_of(access, arguments.agents_namespace)
        read = await of_agent.read(pod, partial(agents.read, pod.node_name, kind=of_agent.kind))
        return of_agent.tell(read, namespace, pod.name, time.time())

    # Without the right to list pods no agent is found.
    asked = raw_pods is not None and on_gpus(pod, status, resources)
    slow = [await _unless_unread(tell(each), missing) or () for each in parts.of_agents if asked]
    views = None if found is None else found.views
    most = MOST_EXPLAINED if not arguments.all_nodes else sys.maxsize
    facts, answers = await explained(
        *(access.client, pod, status, resources, views),
        most=most,
        followed={} if claims is None or parts.kind is None else {parts.kind.kind.plural: claims},
        features=parts,
        settings=parts.knobs,
        slow=lambda: chain.from_iterable(slow),
    )
    told = [*map(str, facts)]
    if missing:
        rights = f" ({_RIGHTS})" if any(each.code == MISSING_RIGHT for each in missing) else ""
        told.append(f"The explanation is incomplete: {'; '.join(map(str, missing))}{rights}.")
    if answers and (room := width(0)) and not arguments.all_nodes:
        rows = sum(1 + max(0, columns(line) - 1) // room for line in told)
        return [*told, *explain_briefly(answers, shutil.get_terminal_size().lines - rows - 1)], OK
    return [*told, *(map(str, explain(answers, most)) if answers else ())], OK


async def _doctor(arguments: argparse.Namespace, access: Access, resources: Sequence[Resource]) -> Output:
    """Examine the cluster, as far as the rights of the user reach.

    Raises:
        ApiError: nodes or pods cannot be read for another reason than a missing right, or not even the pods of the
            user's namespace can.
    """
    parts, missing = arguments.parts, list[str]()
    raw_nodes = await _if_allowed(access, NODES, (), missing)
    raw_pods = await _if_allowed(access, PODS, NOT_ENDED, missing)
    namespace = ""
    if raw_pods is None:
        namespace = access.namespace
        raw_pods = await access.items(PODS, NOT_ENDED, namespace=namespace)
    found_in = raw_nodes or (), raw_pods, arguments.agents_namespace
    symptoms = await symptoms_in(access, resources, *found_in, arguments.terminal.reads)
    if missing:
        pods = [pod for pod, _ in gpu_pods(raw_pods, resources)]
        found = examine_partly(
            *(symptoms, pods, missing, GRANT),
            nodes=raw_nodes is not None,
            namespace=namespace,
            of_features=parts.cluster_checks,
            on_pods=parts.pod_checks,
        )
    else:
        found = examine(placed(OWN, parts.cluster_checks), symptoms)
    return report(found, as_json=arguments.json), exit_code(found)


async def _if_allowed(
    access: Access, kind: ObjectKind, fields: Sequence[str], missing: list[str]
) -> list[msgspec.Raw] | None:
    """Return all objects of a kind, or None without the right to list them, which is added to `missing`."""
    try:
        return await access.items(kind, fields)
    except ForbiddenError as error:
        missing.append(error.call.missing_right)
        return None


_TOP = Command(
    "top",
    "live view of GPUs and pods, or their last hour",
    _top,
    (
        NODE,
        *CHOICE,
        argument("--sort-by", choices=tuple(SORTS), help="sort nodes and pods, amounts with the largest first"),
        argument(
            "--interval",
            type=valued(float, lambda seconds: 0.5 <= seconds <= 3600, "choose 0.5 to 3600 seconds"),
            metavar="SECONDS",
            help=f"between refreshes; default {INTERVAL_S:g}",
        ),
    ),
)


def _check_why(arguments: argparse.Namespace) -> None:
    *kind, arguments.pod = arguments.words
    if len(kind) > 1 or not PODS_OF_KUBECTL.issuperset(kind):
        raise UsageError(f"why {' '.join(arguments.words)}: too many arguments; name one pod")


_WHY = Command(
    "why",
    "explain why a pod is pending, runs where it does, or is slow",
    _why,
    (
        argument("words", nargs="+", metavar="POD", help="as POD, pod/POD or NAMESPACE/POD"),
        NAMESPACE,
        switch("--all-nodes", f"explain more than the nearest {MOST_EXPLAINED} nodes"),
    ),
    _check_why,
)
_WEB = Command(
    "web",
    "show the cluster live in a browser",
    None,
    (
        argument(
            "--port",
            type=valued(int, lambda port: 0 <= port < 1 << 16, "choose one from 0 to 65535, or leave it out"),
            metavar="N",
            help="port of the page on 127.0.0.1; default: a free one",
        ),
        switch("--no-browser", "only print the address of the page"),
    ),
)
_DOCTOR = Command("doctor", "diagnose the cluster", _doctor, (switch("--json", "print the findings as JSON"),))

_OWN = (OVERVIEW, _TOP, _WHY, _WEB, _DOCTOR, UNINSTALL)


def commands(terminal: TerminalParts) -> Mapping[str, Command]:
    """Return the commands by their names, in the order of the help."""
    found = placed({each.name: each for each in _OWN}, reversed(terminal.commands))
    for option in terminal.options:
        found[option.after] = _with(found[option.after], option)
    return found


def _with(command: Command, option: Command) -> Command:
    """Return a command that does what an option says if that is given."""

    def check(arguments: argparse.Namespace) -> None:
        if getattr(arguments, option.name):
            option.check(arguments)
            arguments.command = replace(arguments.command, run=option.run)
        else:
            command.check(arguments)

    return replace(command, arguments=(*command.arguments, *option.arguments), check=check)
