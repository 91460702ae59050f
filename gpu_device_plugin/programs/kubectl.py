"""The Kubernetes API, read through raw requests of kubectl, so that every kubeconfig and every login plugin works."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from gpu_device_plugin.cluster.client.errors import Call
from gpu_device_plugin.cluster.objects.decoding import NODES, NOT_ENDED, PODS, Page
from gpu_device_plugin.core.report.finding import Unknown
from gpu_device_plugin.view.objects import decoded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

T = TypeVar("T")

_PAGE = 500
"""Objects per request, as kubectl's own --chunk-size."""


NO_SUCH_PATH = "the server could not find the requested resource"
"""As kubectl says that the API server, or a pod behind it, does not know a path (404)."""
MISSING_RIGHT = "right-missing"
"""The code of the finding that the reader lacks a right."""
GRANT = (
    "an administrator gives it with the ClusterRole gpushare-viewer (deploy/viewer.yaml): "
    "kubectl create clusterrolebinding gpushare-viewer --clusterrole=gpushare-viewer --user=USER"
)
"""How a right comes that a reader lacks."""


class ClusterUnreadableError(Exception):
    """The cluster could not be read. The message is for the user and says what to do."""


def not_run(program: str, error: OSError) -> str:
    """Return why kubectl cannot be started, and what to do."""
    why = "is not on the PATH" if isinstance(error, FileNotFoundError) else os.strerror(error.errno or 0)
    return f"{program}: {why}; the cluster is read through it: install it (https://kubernetes.io/docs/tasks/tools/)"


def how_it_ended(said: bytes, code: int | None) -> str:
    """Return the last line of what kubectl said, if it was read; else its exit code, or the signal that ended it."""
    if lines := said.decode(errors="replace").strip().splitlines():
        return lines[-1]
    return f"exit code {code}" if code is None or code >= 0 else f"ended by {signal.Signals(-code).name}"


# --- What is selected -------------------------------------------------------------------------------------------------


CONFIG = ("config", "view", "--output=json")
"""Prints all of kubectl's configuration, merged of all its files, and without credentials."""


class _Context(msgspec.Struct):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _Cluster(msgspec.Struct):
    server: str = ""
    tls_server_name: str = msgspec.field(name="tls-server-name", default="")


class _NamedContext(msgspec.Struct):
    name: str = ""
    context: _Context = msgspec.field(default_factory=_Context)


class _NamedCluster(msgspec.Struct):
    name: str = ""
    cluster: _Cluster = msgspec.field(default_factory=_Cluster)


class _Config(msgspec.Struct):
    current_context: str = msgspec.field(name="current-context", default="")
    contexts: list[_NamedContext] | None = None
    clusters: list[_NamedCluster] | None = None


class Selected(NamedTuple):
    """What kubectl's configuration and flags select; empty where they do not say."""

    context: str = ""
    user: str = ""
    """As the configuration calls it."""
    namespace: str = ""
    path: str = ""
    """Of the Kubernetes API on its server: of Rancher it is ``/k8s/clusters/NAME``, of most servers empty."""
    root: tuple[str, ...] = ()
    """Flags with which kubectl addresses the root of the server, if the API has a path there."""


def selected(config: bytes, flags: Sequence[str]) -> Selected:
    """Return what these flags of kubectl select of its configuration, as `CONFIG` prints it."""
    try:
        parsed = msgspec.json.decode(config, type=_Config)
    except (msgspec.DecodeError, UnicodeDecodeError):  # without a configuration, as in a pod
        parsed = _Config()
    given = dict(flag.removeprefix("--").partition("=")[::2] for flag in flags)  # of several the last, as in kubectl
    name = given.get("context") or parsed.current_context
    context = next((each.context for each in parsed.contexts or () if each.name == name), _Context())
    wanted = given.get("cluster") or context.cluster
    cluster = next((each.cluster for each in parsed.clusters or () if each.name == wanted), _Cluster())
    # kubectl forgets the name of the certificate with the server (client-go's tools/clientcmd/client_config.go).
    certified = given.get("tls-server-name") or ("" if given.get("server") else cluster.tls_server_name)
    path, root = _at(given.get("server") or cluster.server, certified)
    return Selected(name, given.get("user") or context.user, context.namespace, path, root)


def _at(server: str, certified: str) -> tuple[str, tuple[str, ...]]:
    """Return the path of a server, without a slash at its end, and the flags for its root; empty if it has none."""
    try:
        parts = urlsplit(server)
    except ValueError:  # kubectl says that it is no address
        return "", ()
    segments = [segment for segment in parts.path.split("/") if segment not in {"", "."}]
    if not segments or parts.scheme not in {"http", "https"}:
        return "", ()
    root = f"--server={parts.scheme}://{parts.netloc}"
    return "".join(f"/{segment}" for segment in segments), (
        (root, f"--tls-server-name={certified}") if certified else (root,)
    )


# --- kubectl ----------------------------------------------------------------------------------------------------------


class Kubectl:
    """kubectl, with the flags that select a cluster. Its stderr goes to ours.

    Login plugins ask for a password or show an address there, and wait. Without kubectl every method raises
    ClusterUnreadableError.
    """

    def __init__(self, flags: Sequence[str], program: str = "kubectl", *, answer_within_s: float = 20.0) -> None:
        """Use `program` with these flags. Only optional reads time out, since a login may take long."""
        self._flags = tuple(flags)
        self._program = program
        self._answer_within_s = answer_within_s
        self._running: subprocess.Popen[bytes] | None = None

    def abandon(self) -> None:
        """End the request for which another thread waits, if any."""
        if (running := self._running) is not None:
            running.kill()

    @cached_property
    def _selected(self) -> Selected:
        # What kubectl says if it cannot read its configuration, it says again at the first request.
        done = self._run(*CONFIG, stderr=subprocess.DEVNULL, within_s=self._answer_within_s)
        return selected(b"" if done.returncode else done.stdout, self._flags)

    def namespace(self) -> str:
        """Return the namespace that kubectl uses by default: that of the context, else `default`."""
        return self._selected.namespace or "default"

    def user(self) -> str:
        """Return the user, as the API server knows it; else as the kubeconfig calls it; empty: neither is known."""
        words = ("auth", "whoami", "--output", "jsonpath={.status.userInfo.username}")  # Kubernetes 1.28
        done = self._run(*words, stderr=subprocess.PIPE, within_s=self._answer_within_s)
        name = "" if done.returncode else done.stdout.decode(errors="replace").strip()
        return name or self._selected.user

    def nodes_and_pods(self) -> bytes:
        """Return all nodes and pods as one list in JSON.

        Raises:
            ClusterUnreadableError: they cannot be read; kubectl's message is already on stderr.
        """
        done = self._run("get", "nodes,pods", "--all-namespaces", "--output=json")
        if done.returncode:
            raise ClusterUnreadableError(
                f"kubectl could not list nodes and pods ({how_it_ended(b'', done.returncode)}); its message stands "
                "above. See whether kubectl get nodes,pods -A works; you need the right to list both in the whole "
                "cluster"
            )
        return done.stdout

    def one(self, path: str) -> msgspec.Raw:
        """Return one object; needs the right to get it, not to list.

        Raises:
            ClusterUnreadableError: it cannot be read or does not exist; kubectl's message is already on stderr.
        """
        return msgspec.Raw(self._get(path))

    def denied(self, resource: str) -> str:
        """Return the missing right to list a resource of the core group in the whole cluster; empty: it is there."""
        try:
            self.raw(f"/api/v1/{resource}?limit=1")
        except ClusterUnreadableError as error:
            denied = unread(error)
            return str(denied) if denied.code == MISSING_RIGHT else ""
        return ""

    @contextmanager
    def needing(self, *resources: str, why: str) -> Iterator[None]:
        """Read what needs the rights to list these resources of the core group; if one is missing, say that, and why.

        Raises:
            ClusterUnreadableError: by the block.
        """
        try:
            yield
        except ClusterUnreadableError:
            lacking = next(filter(None, map(self.denied, resources)), "")
            if not lacking:
                raise
            raise ClusterUnreadableError(f"{lacking}: {why}; {GRANT}") from None

    def every_node_and_pod(self, why: str) -> tuple[list[msgspec.Raw], list[msgspec.Raw]]:
        """Return all nodes and all pods that have not ended; `why` says in the error what all of them are needed for.

        Raises:
            ClusterUnreadableError: they cannot be read.
        """
        with self.needing("nodes", "pods", why=why):
            return self.items(NODES.path()), self.items(PODS.path(), NOT_ENDED)

    def items(
        self, path: str, fields: Sequence[str] = (), *, labels: str = "", optional: bool = False
    ) -> list[msgspec.Raw]:
        """Return all objects of a kind that match all field selectors, and a label selector as kubectl's ``-l``.

        For `optional` objects kubectl's stderr is not shown: only after a call that may log in.

        Raises:
            ClusterUnreadableError: they cannot be read; with `optional` the message is kubectl's.
        """
        query = {"fieldSelector": ",".join(fields)} if fields else {}
        query |= {"labelSelector": labels} if labels else {}
        found: list[msgspec.Raw] = []
        following: dict[str, str] = {}
        try:
            while True:
                page = self._page(path, {**query, "limit": _PAGE, **following}, optional=optional)
                found += page.items or []
                if not page.metadata.continue_:
                    return found
                following = {"continue": page.metadata.continue_}
        except ClusterUnreadableError:
            if not following:
                raise
            # The API server keeps a list for some minutes. A slower reader has to fetch it in one piece.
            return self._page(path, query, optional=optional).items or []

    def raw(self, path: str) -> bytes:
        """Return the API server's answer for a path that may be missing or forbidden.

        Raises:
            ClusterUnreadableError: it cannot be read; the message is kubectl's, whose stderr is not shown.
        """
        return self._get(path, silent=True, within_s=self._answer_within_s)

    def patch(
        self, resource: str, name: str, patch: object, *, subresource: str = "", how: str = "merge", namespace: str = ""
    ) -> None:
        """Change an object of a namespace, or of the cluster, by a merge patch, or a ``strategic`` one.

        Raises:
            ClusterUnreadableError: it was not changed, or the outcome is unknown; the message is kubectl's.
        """
        beneath = [f"--subresource={subresource}"] if subresource else []
        beneath += [f"--namespace={namespace}"] if namespace else []
        written = msgspec.json.encode(patch).decode()
        words = ["patch", resource, name, *beneath, f"--type={how}", "-p", written]
        done = self._run(*words, stderr=subprocess.PIPE, within_s=self._answer_within_s)
        if done.returncode:
            raise ClusterUnreadableError(f"{resource} {name}: {how_it_ended(done.stderr, done.returncode)}")

    def _page(self, path: str, query: Mapping[str, object], *, optional: bool) -> Page:
        page = self._get(path, f"?{urlencode(query)}" if query else "", silent=optional)
        try:
            return msgspec.json.decode(page, type=Page)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise ClusterUnreadableError(
                f"the output of kubectl get --raw {path} is no list of the Kubernetes API; run it to see its output, "
                "and check whether the kubectl on the PATH is the real one"
            ) from None

    def _get(self, path: str, query: str = "", *, silent: bool = False, within_s: float | None = None) -> bytes:
        """Return the answer for a path; `silent`: kubectl's stderr is not shown, but the message of the error."""
        stderr = subprocess.PIPE if silent else None
        # kubectl before 1.34 leaves the path of the server out of raw requests, and later ones put it before them
        # (kubernetes#131165). From the root of the server, all of them ask for the same.
        at = f"{self._selected.path}{path}"
        done = self._run(*("get", "--raw", f"{at}{query}"), flags=self._selected.root, stderr=stderr, within_s=within_s)
        if not done.returncode:
            return done.stdout
        why = how_it_ended(done.stderr or b"", done.returncode)
        if silent:
            raise ClusterUnreadableError(f"{path}: {why}")
        raise ClusterUnreadableError(
            f"kubectl could not read {path} ({why}); its message stands above. See whether "
            f"{' '.join(('kubectl', *self._selected.root))} get --raw {at} works with the same flags"
        )

    def _run(
        self, *words: str, flags: Sequence[str] = (), stderr: int | None = None, within_s: float | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run kubectl; of `flags` that are given twice the later one counts."""
        command = [self._program, *self._flags, *flags, *words]
        try:
            # The program is what the user calls kubectl, and no shell reads the words.
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr) as running:  # noqa: S603
                self._running = running
                try:
                    out, said = running.communicate(timeout=within_s)
                except BaseException:
                    running.kill()
                    raise
                finally:
                    self._running = None
                return subprocess.CompletedProcess(command, running.returncode, out, said)
        except subprocess.TimeoutExpired as error:
            raise ClusterUnreadableError(f"{' '.join(words[:3])}: no answer within {within_s:g} s") from error
        except OSError as error:
            raise ClusterUnreadableError(not_run(self._program, error)) from error


def items(kubectl: Kubectl, path: str, kind: type[T]) -> list[T]:
    """Return all objects of a list that may be missing or forbidden.

    Raises:
        ClusterUnreadableError: it cannot be read; the message is kubectl's.
        UnreadableObjectError: one of them is not of this kind.
    """
    return [decoded(item, kind) for item in decoded(kubectl.raw(path), Page).items or ()]


def unread(error: Exception) -> Unknown:
    """Return the missing right if a read failed for one; else the message of the failure."""
    # As Kubernetes writes it (ForbiddenMessage in its apiserver/pkg/endpoints/handlers/responsewriters/errors.go).
    why = str(error)
    denied = re.search(r'cannot (\w+) resource "([^"]+)" in API group "([^"]*)"(?: in the namespace "([^"]+)")?', why)
    if denied is None:
        return Unknown("unreadable", "{problem}", problem=why)
    verb, resource, group, namespace = denied.groups()
    return Unknown(
        MISSING_RIGHT,
        "{problem}",
        "ask an administrator of the cluster for it; docs/doctor.md has the commands that grant all rights needed here",
        problem=Call(verb, resource, group, namespace or "").missing_right,
    )


def readable_items(kubectl: Kubectl, path: str, fields: Sequence[str], missing: list[str]) -> list[msgspec.Raw] | None:
    """Return all objects of a kind, or None if they cannot be read, and add the reason to `missing`."""
    try:
        return kubectl.items(path, fields, optional=True)
    except ClusterUnreadableError as error:
        missing.append(str(unread(error)))
        return None
