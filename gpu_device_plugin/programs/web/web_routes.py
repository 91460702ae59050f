"""The routes of the page: static files for everybody, data for callers with a valid token, read when they ask."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any
from urllib.parse import unquote

import msgspec

from gpu_device_plugin import __version__
from gpu_device_plugin.aio.http import JSON, Page, Request, Route, Stream
from gpu_device_plugin.aio.turns import Turns
from gpu_device_plugin.aio.waiting import wait_within
from gpu_device_plugin.features.history import contract
from gpu_device_plugin.features.report_features import REPORT, ReportParts
from gpu_device_plugin.kubernetes.agent_reader import AgentUnreadableError
from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.errors import ApiError, Call, ForbiddenError, NotFoundError
from gpu_device_plugin.kubernetes.objects.decoding import PODS, UnreadableObjectError
from gpu_device_plugin.kubernetes.objects.pod_details import event_documents, events, pod_and_status
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.programs.web.callers import ALL_NAMESPACES, Callers, CallerScope
from gpu_device_plugin.programs.web.figures import AgentHistory, seen_history, seen_summary
from gpu_device_plugin.programs.web.page_plans import PagePlans
from gpu_device_plugin.programs.web.page_state import PageState
from gpu_device_plugin.programs.web.pod_document import containers_of
from gpu_device_plugin.programs.web.streams import Streams
from gpu_device_plugin.programs.web.watched import missing_right
from gpu_device_plugin.report.rules.finding import Finding, Message, literal, note
from gpu_device_plugin.report.rules.node_answers import explain
from gpu_device_plugin.report.rules.node_view import NodeView
from gpu_device_plugin.report.rules.overview_document import node_document
from gpu_device_plugin.report.why_pod import events_of, explained, on_gpus
from gpu_device_plugin.scheduler.rules.node_constraints import SchedulingStatus

_TYPES: Mapping[str, str] = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "json": "application/json",
}
"""The files that are served, by the end of their names."""


def static_files() -> Mapping[str, Page]:
    """Return the answer for each file by its path below the page's folder, and for the empty path that of the index.

    Works wherever Python imports this package from, a zip file too. No other file can be asked for, whatever the path.
    """
    files = dict(_files(resources.files("gpu_device_plugin.programs.web") / "page", ""))
    return files | {"": files["index.html"]}


def _files(folder: Traversable, path: str) -> Iterator[tuple[str, Page]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _files(each, f"{path}{each.name}/")
        elif (content_type := _TYPES.get(each.name.rpartition(".")[2])) is not None:
            yield f"{path}{each.name}", Page(each.read_bytes(), content_type=f"{content_type}; charset=utf-8")


HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer."""

_API = "/api/v1/"
_READ = ("Host", "Authorization")
LARGEST_VIEW = 64 << 10
"""Bytes of a request that says what a reader looks at, the only one with a body."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""A name of Kubernetes: nothing else is sent to the API server."""
_NO_POD = note("no-pod-name", "This is no name of a pod; write NAMESPACE/NAME.")
_NO_NODES = note("nodes-not-shown", "Nodes are not shown: {right}.", right=missing_right(Call("list", "nodes")))
_INCIDENT = re.compile(r"[A-Za-z0-9-]{1,128}")
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_MOST_EXPLAINED = 10
_PLAN_S = 60.0
"""How long a request for a plan may take: it reads the whole cluster, and may wait for others. A right that was taken
away lasts as long, beyond the time for which answers are remembered."""
_HISTORY_S = 2.0
"""How long details of a running pod wait for its node's agent, so that a silent agent does not take them away."""
_LEARN_S = 0.3
"""How long details wait to be told whose pods the caller may see. Names that are not known by then are left out."""


class _View(msgspec.Struct):
    stream: str
    nodes: list[str]


@dataclass(frozen=True, slots=True)
class AboutPage:
    """How the page is served."""

    mode: str
    """``kubeconfig`` or ``cluster``."""
    context: str = ""
    """Of the kubeconfig."""
    hosts: frozenset[str] = frozenset()
    """The names in the header Host that are answered, so that no other site's name can lead here (DNS rebinding);
    empty: all."""
    dashboard: str = ""
    """The address that the page links to for more than the last hour; empty: none."""


@dataclass(slots=True)
class PageRoutes:
    """Answers requests."""

    callers: Callers
    page_state: PageState
    streams: Streams
    plans: PagePlans
    history: AgentHistory
    client: Client
    about: AboutPage
    parts: ReportParts = REPORT
    answer_s: float = 20.0
    """How long a request may wait for the API server. A stream begins by then."""
    files: Mapping[str, Page] = field(default_factory=static_files, repr=False)
    turns: Turns = field(default_factory=lambda: Turns(16))

    def all(self) -> tuple[Route, ...]:
        """Return the routes. None changes anything in the cluster."""
        of_features = {
            "plans/": self._data("plans/", self._plan, within_s=_PLAN_S),
            "history/": self._data("history/", self._history),
            "incidents/": self._data("incidents/", self._incidents),
        }
        return (
            self._data("session", self._session),
            self._data("live", self._live),
            self._data("nodes/", self._node),
            self._data("pods/", self._pod),
            self._data("view", self._view, method="POST"),
            *(of_features[each] for each in self.parts.routes),
            Route("GET", "/", self._file, headers=_READ),
        )

    def _data(
        self,
        path: str,
        answer: Callable[[Request, CallerScope], Awaitable[Page | Stream]],
        *,
        method: str = "GET",
        within_s: float = 0.0,
    ) -> Route:
        most_s = max(self.answer_s, within_s)

        async def checked(request: Request) -> Page | Stream:
            if (refusal := self._wrong_host(request)) is not None:
                return refusal
            try:
                async with asyncio.timeout(most_s):
                    caller = await self.callers.caller(_token(request))
                    if caller is not None:
                        return await answer(request, CallerScope(caller))
                    if self.about.mode == "cluster":
                        wanted = note("give-token", "Give the token of an account of this cluster.")
                        return _error(401, wanted, login="token")
                    text = "Open the page by the address that the command printed; it ends in a token."
                    return _error(401, note("open-by-address", text))
            except TimeoutError:
                text = "The API server did not answer within {n} s; try again."
                return _error(502, note("api-server-slow", text, n=f"{most_s:g}"))
            except (ApiError, UnreadableObjectError, AgentUnreadableError) as error:
                return self._unread(error)

        return Route(method, f"{_API}{path}", checked, headers=_READ)

    def _wrong_host(self, request: Request) -> Page | None:
        host = request.headers.get("Host", "").lower().partition(":")[0]
        if not self.about.hosts or host in self.about.hosts:
            return None
        text = "This page is served under another address; open the one that the command printed."
        return _error(403, note("other-address", text))

    def _unread(self, error: ApiError | UnreadableObjectError | AgentUnreadableError) -> Page:
        why = str(error)
        match error:
            case AgentUnreadableError():
                said = error.status, note(error.code, literal(f"{why[:1].upper()}{why[1:]}."), **error.parameters)
            case NotFoundError(call=Call(verb="get", resource="pods") as call):
                text = "There is no pod {pod} in the namespace {namespace}; it may be gone."
                said = 404, note("pod-gone", text, pod=call.name, namespace=call.namespace)
            case NotFoundError():
                said = 404, note("no-such-object", "There is no such object: {why}.", why=why)
            case ForbiddenError(call=call) if self.about.mode != "cluster":  # of the user, not of our own account
                text = "This is not shown: {right}; ask an administrator of the cluster for it."
                said = 403, note("not-shown", text, right=missing_right(call))
            case ForbiddenError():
                said = 403, note("forbidden", "{why}.", why=why)
            case ApiError():
                said = 502, note("api-server-silent", "The API server does not answer: {why}.", why=why)
            case _:
                text = "The API server's answer cannot be understood: {why}."
                said = 502, note("api-answer-unreadable", text, why=why)
        return _error(*said)

    # --- Data ---------------------------------------------------------------------------------------------------------

    async def _session(self, _request: Request, scope: CallerScope) -> Page:
        about = self.about
        session = {"version": __version__, "mode": about.mode, "user": scope.caller.user, "context": about.context}
        return _json({**session, **({"dashboard": about.dashboard} if about.dashboard else {})})

    async def _live(self, request: Request, scope: CallerScope) -> Stream:
        token = _token(request)
        parts = await self.streams.events(scope.caller, lambda: self.callers.caller(token))
        return Stream(parts, "text/event-stream")

    async def _node(self, request: Request, scope: CallerScope) -> Page:
        name = unquote(request.rest)
        await scope.learn()
        if not self.page_state.shows_nodes(scope):
            return _error(403, _NO_NODES)
        if (node := self.page_state.node(name)) is None:
            return _error(404, note("no-such-node", "There is no such node that shares GPUs."))
        await wait_within(_LEARN_S, scope.learn(node.namespaces))
        return _json({"node": node_document(scope.of(node.view))})

    async def _pod(self, request: Request, scope: CallerScope) -> Page:
        if (named := _named(request)) is None:
            return _error(400, _NO_POD)
        namespace, name = named
        await scope.learn([namespace])
        if not scope.may_see(namespace):
            return _error(403, _unseen(namespace))
        await wait_within(_LEARN_S, scope.learn(self.page_state.namespaces))  # why it waits names pods on nodes
        return _json(await self._details(namespace, name, scope))

    async def _plan(self, request: Request, scope: CallerScope) -> Page:
        if (named := _named(request)) is None:
            return _error(400, _NO_POD)
        pod = "/".join(named)
        await scope.learn()
        if not (scope.everything and scope.nodes):
            right = Call("list", "nodes") if scope.everything else Call("get", "pods")
            text = "A plan concerns all nodes and their pods: {right}."
            return _error(403, note("plan-not-shown", text, right=missing_right(right)))
        budgets = await scope.caller.may("list", "poddisruptionbudgets.policy", ALL_NAMESPACES)
        made = await self.plans.document(pod, scope.caller.user, budgets=budgets)
        if made is None:
            return _error(404, note("does-not-wait", "The pod {pod} does not wait for GPUs by its limits.", pod=pod))
        return Page(made, content_type=JSON)

    async def _history(self, request: Request, scope: CallerScope) -> Page:
        """Answer with the last hour of a GPU and its containers, of a pod, or of a namespace's containers on a node."""
        query = request.query
        namespace, _, pod = (query.get("namespace") or query.get("pod", "")).partition("/")
        await scope.learn([namespace] if namespace else ())
        nodes, position = self.page_state.shows_nodes(scope), query.get("gpu", "")
        if re.fullmatch("[0-9]{1,4}", position):
            if not nodes:
                return _error(403, _NO_NODES)
            path = contract.gpu_path(int(position))
        elif not _NAMESPACE.fullmatch(namespace):
            text = "Write history/NODE with ?gpu=POSITION, ?pod=NAMESPACE/NAME or ?namespace=NAME."
            return _error(400, note("no-history-named", text))
        elif scope.may_see(namespace):
            path = contract.namespace_path(namespace)
        else:
            return _error(403, _unseen(namespace))
        found = await self.history.read(unquote(request.rest), path, contract.NodeHistory, scope.caller.user)
        await wait_within(_LEARN_S, scope.learn({each.namespace for each in found.containers} - {ALL_NAMESPACES}))
        return _json(seen_history(found, scope.may_see, nodes=nodes, pod=pod))

    async def _incidents(self, request: Request, scope: CallerScope) -> Page:
        """Answer with the incidents of a node, or with the whole record of one, which may name all pods of the node."""
        node, _, name = unquote(request.rest).partition("/")
        path, user = contract.INCIDENTS_PATH, scope.caller.user
        await scope.learn()
        if not self.page_state.shows_nodes(scope):
            return _error(403, _NO_NODES)
        if name:
            if not scope.everything:
                text = "A record concerns all pods of a GPU: {right}."
                return _error(403, note("record-not-shown", text, right=missing_right(Call("get", "pods"))))
            if not _INCIDENT.fullmatch(name):
                return _error(
                    400, note("no-incident-name", "This is no name of an incident; incidents/NODE lists them.")
                )
            return _json(await self.history.read(node, path + name, contract.Incident, user))
        found = await self.history.read(node, path, contract.IncidentList, user)
        await wait_within(_LEARN_S, scope.learn({each.namespace for each in found.incidents} - {ALL_NAMESPACES}))
        return _json(replace(found, incidents=tuple(seen_summary(each, scope.may_see) for each in found.incidents)))

    async def _view(self, request: Request, scope: CallerScope) -> Page:
        try:
            view = msgspec.json.decode(request.body, type=_View)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            text = 'The body names no nodes that are looked at; send {"stream": "...", "nodes": ["..."]}.'
            return _error(400, note("no-nodes-named", literal(text)))
        if not await scope.caller.may("list", "nodes", ""):
            return _error(403, _NO_NODES)
        known = [name for name in view.nodes if self.page_state.node(name) is not None]
        if not self.streams.views.show(view.stream, scope.caller.user, known):
            text = "No such stream is open here; it has ended, or is another replica's."
            return _error(404, note("no-such-stream", text))
        return _json({})

    async def _file(self, request: Request) -> Page:
        found = self.files.get(request.rest)
        return (
            self._wrong_host(request) or found or _error(404, note("no-such-file", "There is nothing at this address."))
        )

    # --- One pod in full ----------------------------------------------------------------------------------------------

    async def _details(self, namespace: str, name: str, scope: CallerScope) -> dict[str, Any]:
        """Return a pod of a namespace that the caller may see, read with our own account. Users take turns.

        Raises:
            ApiError: it cannot be read.
            UnreadableObjectError: it is no pod.
        """
        ours = self.page_state.watched.cluster.resources
        async with self.turns.turn(scope.caller.user):
            raw = msgspec.Raw(await self.client.get(PODS, name, namespace=namespace))
            pod, status = pod_and_status(raw, ours)
            raw_events, unread = await self._events(namespace, pod.uid)
            status = replace(status, events=events(raw_events, status))
            nodes = self.page_state.readable if self.page_state.shows_nodes(scope) else None
        explained = await self._why(pod, status, nodes, scope)
        shown = self.page_state.node(pod.node_name) if scope.nodes else None
        fields = {
            "node": pod.node_name,
            "phase": pod.phase,
            "created": pod.created,
            "priority": pod.priority,
            "deleting": pod.deleting,
            "scheduler": status.scheduler,
        }
        return {
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
            **{key: value for key, value in fields.items() if value},
            "containers": containers_of(pod, ours, None if shown is None else scope.of(shown.view)),
            "why": explained,
            "events": event_documents(raw_events),
            **({"notes": [unread.message()]} if unread else {}),
        }

    async def _why(
        self,
        pod: Pod,
        status: SchedulingStatus,
        nodes: Sequence[NodeView] | None,
        scope: CallerScope,
    ) -> list[Message]:
        """Return what `kubectl inspect gpushare why` prints, naming the pods that the caller may see.

        `nodes` have all names; None: they cannot be read.
        """
        claims, kind = self.page_state.watched.claims_of(pod.namespace), self.parts.kind
        of_agents = [*zip(self.parts.of_agents, await self._of_agent(pod, status, scope.caller.user), strict=False)]
        now_s = time.time()
        told, answers = await explained(
            *(self.client, pod, status, self.page_state.watched.cluster.resources, nodes),
            most=_MOST_EXPLAINED,
            followed={} if claims is None or kind is None else {kind.kind.plural: claims},
            features=self.parts,
            settings=self.parts.knobs,
            slow=lambda: (
                told
                for each, read in of_agents
                for told in each.tell(read, pod.namespace, pod.name, now_s, scope.may_see)
            ),
            shown=scope.of,
        )
        return [each.message() for each in (*told, *explain(answers, _MOST_EXPLAINED))]

    async def _of_agent(self, pod: Pod, status: SchedulingStatus, user: str) -> Sequence[Any]:
        """Return what a running pod's agent tells of it; nothing: it is not needed, or the agent does not tell soon.

        Why it does not tell stands where the page draws the history.
        """
        if not on_gpus(pod, status, self.page_state.watched.cluster.resources):
            return ()

        async def read(path: str, *, kind: Any) -> Any:
            return await self.history.read(pod.node_name, path, kind, user)

        try:
            async with asyncio.timeout(_HISTORY_S):
                return [await each.read(pod, partial(read, kind=each.kind)) for each in self.parts.of_agents]
        except (AgentUnreadableError, ApiError, TimeoutError):
            return ()

    async def _events(self, namespace: str, uid: str) -> tuple[Sequence[msgspec.Raw], Finding | None]:
        try:
            return await events_of(self.client, namespace, uid), None
        except ForbiddenError:
            text = "The right to list events in the namespace {namespace} is missing."
            return (), note("no-right-to-events", text, namespace=namespace)
        except ApiError as error:
            return (), note("events-unread", "Events cannot be read: {why}.", why=str(error))


def _unseen(namespace: str) -> Finding:
    return note("pods-not-shown", "You have no right to get pods in the namespace {namespace}.", namespace=namespace)


def _named(request: Request) -> tuple[str, str] | None:
    """Return the namespace and the name of the pod that a request is about; None: it names none."""
    namespace, _, name = unquote(request.rest).partition("/")
    return (namespace, name) if _NAMESPACE.fullmatch(namespace) and _NAME.fullmatch(name) else None


def _token(request: Request) -> str:
    """Return the token of a request, empty without one. Every token consists of ASCII characters (RFC 6750)."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.isascii() else ""


def _json(document: Any) -> Page:
    return Page(msgspec.json.encode(document), content_type=JSON)


def _error(status: int, said: Finding, **more: str) -> Page:
    return Page(msgspec.json.encode({"error": said.message(), **more}), status=status, content_type=JSON)
