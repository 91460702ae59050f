"""`kubectl inspect gpushare`: which pods use which GPU of the cluster, and why a pod gets none. Needs only kubectl."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from gpu_device_plugin.cluster.client.errors import ApiError, ForbiddenError
from gpu_device_plugin.cluster.objects.decoding import NODES, NOT_ENDED, PODS, ObjectKind, UnreadableObjectError
from gpu_device_plugin.core.report.finding import examine, exit_code, report
from gpu_device_plugin.core.report.findings.cluster_checks import CHECKS, examine_partly
from gpu_device_plugin.core.report.tables.terminal_tables import rows_waiting
from gpu_device_plugin.core.report.tables.top_picture import Picture, frame
from gpu_device_plugin.core.report.text.columns import Line, Tone, columns
from gpu_device_plugin.core.report.why.explanations import explain, explain_briefly
from gpu_device_plugin.features.history.contract import NodeHistory
from gpu_device_plugin.programs.commandline import FAILED, OK, ending, resources_in, say, show, width
from gpu_device_plugin.programs.inspect.arguments import INTERVAL_S, MOST_EXPLAINED, parse, passed_on
from gpu_device_plugin.programs.inspect.cluster_reading import symptoms_in
from gpu_device_plugin.programs.inspect.node_changes import cordon, uncordon, uninstall
from gpu_device_plugin.programs.inspect.node_history import agents_of, history, incidents
from gpu_device_plugin.programs.inspect.overview import COUNTING, add_claims, claims_in, cluster_of, overview
from gpu_device_plugin.programs.inspect.plan import plan_moves
from gpu_device_plugin.programs.inspect.workload_changes import named_pod, resize, wake
from gpu_device_plugin.programs.kubectl import GRANT, ClusterUnreadableError, needed, reaching, unread
from gpu_device_plugin.settings.knobs import UsageError
from gpu_device_plugin.view.agent_reader import AgentUnreadableError
from gpu_device_plugin.view.following import cluster
from gpu_device_plugin.view.learned_mix import lesson_of, price_lines
from gpu_device_plugin.view.objects import escaped, gpu_pods
from gpu_device_plugin.view.poddetails import events
from gpu_device_plugin.view.why_pod import events_of, explained, histories_of, on_gpus

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    import msgspec

    from gpu_device_plugin.features.claims.contract import Claim
    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.programs.inspect.overview import Output
    from gpu_device_plugin.programs.kubectl import Access

T = TypeVar("T")

_UNREADABLE = (ClusterUnreadableError, AgentUnreadableError, UnreadableObjectError, ApiError)
_WITHOUT_TEXTUAL = (
    "on a terminal it is drawn by Textual, which is not installed; run pip install 'gpu-device-plugin[top]', "
    "or let it print one picture after the other: top | cat"
)
_RIGHTS = "docs/inspect.md has the commands by which an administrator grants all rights that this command needs"


def main(
    argv: Sequence[str],
    *,
    prog: str = "kubectl inspect gpushare",
    kubectl: str = "kubectl",
    environ: Mapping[str, str] = os.environ,
    web: Callable[..., int] | None = None,
) -> int:
    """Run the command in `argv`, which the user typed as `prog`.

    `web` serves the page, see `local_page.on_this_machine`, and returns the exit code; None: this build has no page.

    Returns:
        0 on success; 1 if the cluster, the node or the pod cannot be read; 2 for a usage error; the doctor returns one
        of `EXIT_CODES`.
    """

    def run() -> int:
        arguments = parse(prog, argv)
        resources, flags = resources_in(arguments, environ), passed_on(arguments)
        if arguments.command == "web":
            if web is None:
                raise UsageError("web: this build has no page; install the package gpu-device-plugin")
            return web(
                *(flags, resources),
                port=arguments.port or 0,
                browser=not arguments.no_browser,
                prog=prog,
                kubectl=kubectl,
                agents_namespace=arguments.agents_namespace,
            )
        try:
            return asyncio.run(_run(arguments, flags, resources, kubectl, environ))
        except _UNREADABLE as error:
            unknown = unread(error)
            say(sys.stderr, f"{prog}: {'; '.join(filter(None, (str(unknown), unknown.remedy)))}")
            return FAILED

    return ending(prog, run)


async def _run(
    arguments: argparse.Namespace,
    flags: Sequence[str],
    resources: Sequence[Resource],
    kubectl: str,
    environ: Mapping[str, str],
) -> int:
    lines: Sequence[str | Line] = ()
    async with reaching(flags, kubectl) as access:
        if arguments.command == "top" and not arguments.history:
            code = await _top(arguments, access, resources, environ)
        else:
            lines, code = await _COMMANDS[arguments.command](arguments, access, resources)
    if code < 0:
        signal.raise_signal(-code)
    show((Line(line) if isinstance(line, str) else line for line in lines), environ)
    sys.stdout.flush()
    return code


# --- The commands -----------------------------------------------------------------------------------------------------


async def _top(
    arguments: argparse.Namespace, access: Access, resources: Sequence[Resource], environ: Mapping[str, str]
) -> int:
    """Draw GPUs and pods until the user ends it; without a terminal print one picture after the other.

    Returns:
        The exit code; the negative number of the signal that ended it, by which the program is to end, too.

    Raises:
        ClusterUnreadableError, ApiError, UnreadableObjectError: the first reading failed.
    """

    async def read() -> Picture:
        fields = [f"metadata.name={escaped(arguments.node)}"] if arguments.node else []
        with needed("without -w the overview shows what it can"):
            raw_nodes = await access.items(NODES, fields, labels=arguments.selector)
            raw_pods = await access.items(PODS, NOT_ENDED)
        if arguments.node and not raw_nodes:
            raise ClusterUnreadableError(f'nodes "{arguments.node}" not found')
        found, warnings = cluster(raw_nodes, raw_pods, resources)
        warnings += await add_claims(found, access)
        at, notes = time.strftime("%H:%M:%S"), warnings[:3]
        sort, namespace = arguments.sort_by or "name", arguments.namespace or ""
        waiting = [pod for pod in found.waiting_pods if namespace in {"", pod.namespace}]
        queue = rows_waiting(waiting, resources, found.claims_of(namespace))
        return Picture(found.views, len(found.waiting), at, notes, sort, namespace, queue=queue)

    async def again(picture: Picture) -> Picture:
        """Read again; a fault becomes a sentence beside the picture of before."""
        try:
            return await read()
        except _UNREADABLE as error:
            return replace(picture, problem=str(unread(error)))

    async def why(pod: str) -> Sequence[str | Line]:
        namespace, _, name = pod.partition("/")
        of_why = {"namespace": namespace, "pod": name, "all_nodes": False}
        try:
            return (await _why(argparse.Namespace(**{**vars(arguments), **of_why}), access, resources))[0]
        except _UNREADABLE as error:
            return [Line(str(unread(error)), Tone.BAD)]

    interval_s = arguments.interval or INTERVAL_S
    if all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):  # Textual draws on the last
        try:
            from gpu_device_plugin.programs.inspect.top_screen import draw  # noqa: PLC0415 - 2 MB that only this needs
        except ModuleNotFoundError as error:
            raise UsageError(f"top: {_WITHOUT_TEXTUAL}") from error
        # Read first, so that a login plugin may ask, and a fault ends the command.
        return await draw(await read(), again, why, interval_s=interval_s, environ=environ)
    await _print(await read(), again, interval_s)
    return OK


async def _print(picture: Picture, again: Callable[[Picture], Awaitable[Picture]], interval_s: float) -> None:
    with contextlib.suppress(asyncio.CancelledError):  # by Ctrl-C
        while True:
            for line in frame(picture, shutil.get_terminal_size((120, 24)).columns):
                say(sys.stdout, line.text)
            say(sys.stdout, "")
            sys.stdout.flush()
            await asyncio.sleep(interval_s)
            picture = await again(picture)


async def _unless_unread(read: Awaitable[T], missing: list[str]) -> T | None:
    """Return what is read, or None if that fails, and add the reason to `missing`."""
    try:
        return await read
    except (ApiError, AgentUnreadableError) as error:
        missing.append(str(unread(error)))
        return None


async def _why(arguments: argparse.Namespace, access: Access, resources: Sequence[Resource]) -> Output:
    namespace = arguments.namespace or access.namespace
    pod, status = await named_pod(access, namespace, arguments.pod, resources)
    missing: list[str] = []
    raw_events = await _unless_unread(events_of(access.client, namespace, pod.uid), missing)
    raw_nodes = await _unless_unread(access.items(NODES), missing)
    raw_pods = await _unless_unread(access.items(PODS, COUNTING), missing)
    status = replace(status, events=events(raw_events or (), status))
    found = None
    if raw_nodes is not None and raw_pods is not None:
        found = await cluster_of(raw_nodes, raw_pods, resources, access)
    claims: Sequence[Claim] | None = found.claims_of() if found is not None else ()
    if status.claims and not claims:
        claims, why = await claims_in(access, namespace)
        missing += why if claims is None else []

    async def read_histories() -> Sequence[NodeHistory]:
        agents = await agents_of(access, arguments.agents_namespace)
        return await histories_of(pod, partial(agents.read, pod.node_name, kind=NodeHistory))

    # Without the right to list pods no agent is found.
    asked = raw_pods is not None and on_gpus(pod, status, resources)
    histories = await _unless_unread(read_histories(), missing) if asked else None
    views = None if found is None else found.views
    most = MOST_EXPLAINED if not arguments.all_nodes else sys.maxsize
    told, answers = await explained(
        access.client, pod, status, resources, views, most=most, claims=claims, histories=histories
    )
    told += [f"The explanation is incomplete: {'; '.join(missing)} ({_RIGHTS})."] if missing else []
    if answers and (room := width(0)) and not arguments.all_nodes:
        rows = sum(1 + max(0, columns(line) - 1) // room for line in told)
        return [*told, *explain_briefly(answers, shutil.get_terminal_size().lines - rows - 1)], OK
    return [*told, *(explain(answers, most) if answers else ())], OK


async def _prices(arguments: argparse.Namespace, access: Access, resources: Sequence[Resource]) -> Output:
    document, study = lesson_of(*await access.every_node_and_pod("prices are learned from all of them"), resources)
    if arguments.output == "json":
        return json.dumps(document, indent=2).splitlines(), OK
    return price_lines(document, study, width()), OK


async def _doctor(arguments: argparse.Namespace, access: Access, resources: Sequence[Resource]) -> Output:
    """Examine the cluster, as far as the rights of the user reach.

    Raises:
        ApiError: nodes or pods cannot be read for another reason than a missing right, or not even the pods of the
            user's namespace can.
    """
    missing: list[str] = []
    raw_nodes = await _if_allowed(access, NODES, (), missing)
    raw_pods = await _if_allowed(access, PODS, NOT_ENDED, missing)
    namespace = ""
    if raw_pods is None:
        namespace = access.namespace
        raw_pods = await access.items(PODS, NOT_ENDED, namespace=namespace)
    symptoms = await symptoms_in(access, resources, raw_nodes or (), raw_pods, arguments.agents_namespace)
    if missing:
        pods = [pod for pod, _ in gpu_pods(raw_pods, resources)]
        found = examine_partly(symptoms, pods, missing, GRANT, nodes=raw_nodes is not None, namespace=namespace)
    else:
        found = examine(CHECKS, symptoms)
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


_COMMANDS: Mapping[str, Callable[[argparse.Namespace, Access, Sequence[Resource]], Awaitable[Output]]] = {
    "overview": overview,
    "top": history,
    "incident": incidents,
    "why": _why,
    "resize": resize,
    "wake": wake,
    "prices": _prices,
    "plan": plan_moves,
    "cordon": cordon,
    "uncordon": uncordon,
    "doctor": _doctor,
    "uninstall": uninstall,
}
