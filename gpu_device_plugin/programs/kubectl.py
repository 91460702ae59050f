"""The Kubernetes API, read through raw requests of kubectl, so that every kubeconfig and every login plugin works."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlencode

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

    def namespace(self) -> str:
        """Return the namespace that kubectl uses by default: that of the context, else `default`."""
        words = ("config", "view", "--minify", "--output", "jsonpath={..namespace}")
        # It fails without a kubeconfig, as in a pod; its error would not help the user.
        done = self._run(*words, stderr=subprocess.DEVNULL)
        return done.stdout.decode(errors="replace").strip() or "default" if not done.returncode else "default"

    def user(self) -> str:
        """Return the user, as the API server knows it; else as the kubeconfig calls it; empty: neither is known."""
        for words in (
            ("auth", "whoami", "--output", "jsonpath={.status.userInfo.username}"),  # Kubernetes 1.28
            ("config", "view", "--minify", "--output", "jsonpath={.contexts[0].context.user}"),
        ):
            done = self._run(*words, stderr=subprocess.PIPE, within_s=self._answer_within_s)
            if not done.returncode and (name := done.stdout.decode(errors="replace").strip()):
                return name
        return ""

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
        done = self._run("get", "--raw", f"{path}{query}", stderr=stderr, within_s=within_s)
        if not done.returncode:
            return done.stdout
        why = how_it_ended(done.stderr or b"", done.returncode)
        if silent:
            raise ClusterUnreadableError(f"{path}: {why}")
        raise ClusterUnreadableError(
            f"kubectl could not read {path} ({why}); its message stands above. See whether "
            f"kubectl get --raw {path} works with the same flags"
        )

    def _run(
        self, *words: str, stderr: int | None = None, within_s: float | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        command = [self._program, *self._flags, *words]
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
