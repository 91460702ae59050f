"""The address of the API server and our credentials, from a service account or a kubeconfig."""

from __future__ import annotations

import base64
import binascii
import math
import ssl
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet mounts a pod's service account."""


class ClusterConfigError(ValueError):
    """The configuration of the API client is invalid; the message names the fault, its place and the remedy."""


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """The address of one API server, and the credentials for it."""

    url: str
    """``https://host:port``, without a slash at its end; behind gateways with a path."""
    ca_file: Path | None = None
    """The authorities that sign the server's certificate; None: those of the system, unless `ca_pem` has some."""
    ca_pem: str = ""
    """The same as text."""
    verify: bool = True
    token_file: Path | None = None
    """Read again every minute: the kubelet replaces it before the token expires."""
    token: str = field(default="", repr=False)
    """A token that never changes; `token_file` takes precedence over it."""
    cert_file: Path | None = None
    key_file: Path | None = None
    cert_pem: str = field(default="", repr=False)
    key_pem: str = field(default="", repr=False)
    unix_socket: Path | None = None
    """Where a proxy of the API server listens, such as ``kubectl proxy --unix-socket``; `url` is then only its name."""

    def tls(self) -> ssl.SSLContext:
        """Load the certificates. Raises ClusterConfigError."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file, cadata=self.ca_pem or None)
            # Python 3.13 turned on strict checks that certificates of many clusters fail (no Authority Key Identifier).
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            if not self.verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            self._load_client_certificate(context)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(str(path) for path in (self.ca_file, self.cert_file, self.key_file) if path)
            raise ClusterConfigError(
                f"the certificates for {self.url} ({files or 'given as text'}) cannot be used: {error}"
            ) from error
        return context

    def _load_client_certificate(self, context: ssl.SSLContext) -> None:
        if not self.cert_pem and not self.key_pem:
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file)
            return
        # Python's ssl module reads a key only from a file. The folder is private (mode 0700) and short-lived.
        with tempfile.TemporaryDirectory() as folder:
            pem, key = Path(folder, "client.pem"), Path(folder, "key.pem")
            pem.write_text(self.cert_pem, encoding="ascii")
            key.write_text(self.key_pem, encoding="ascii")
            context.load_cert_chain(self.cert_file or pem, self.key_file or key)


def in_cluster(environ: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> ClusterConfig:
    """Use the service account of our pod, which is mounted at `folder`. Raises ClusterConfigError."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise ClusterConfigError(
            "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: this is not a pod of a cluster; "
            "outside of a cluster, give the path of a kubeconfig: --api=PATH"
        )
    for name in ("token", "ca.crt"):
        if not (folder / name).is_file():
            raise ClusterConfigError(f"{folder / name} is missing; set automountServiceAccountToken: true on the pod")
    address = f"[{host}]" if ":" in host else host
    return ClusterConfig(f"https://{address}:{port}", ca_file=folder / "ca.crt", token_file=folder / "token")


def config_for(api: str, environ: Mapping[str, str]) -> ClusterConfig:
    """Return the configuration for the API server that the setting `api` names.

    It is ``auto`` or ``in-cluster`` for the service account of our pod, a URL, or the path of a kubeconfig.
    Raises ClusterConfigError.
    """
    if api in {"auto", "in-cluster"}:
        return in_cluster(environ)
    if api.startswith(("http://", "https://")):
        return ClusterConfig(url=api.rstrip("/"))
    return from_kubeconfig(Path(api))


def config_if_any(api: str, environ: Mapping[str, str]) -> ClusterConfig | None:
    """Return the same; None for ``off``, and for ``auto`` outside of a pod with a service account.

    Raises ClusterConfigError.
    """
    mounted = (SERVICE_ACCOUNT / "token").exists() and "KUBERNETES_SERVICE_HOST" in environ
    if api == "off" or (api == "auto" and not mounted):
        return None
    return config_for(api, environ)


_NOT_SUPPORTED = {
    "exec": "logs in through a plugin (exec)",
    "auth-provider": "logs in through an auth-provider",
    "username": "logs in with a password",
    "proxy-url": "is reached through a proxy (proxy-url)",
    "tls-server-name": "presents itself under another name (tls-server-name)",
    "as": "impersonates another user (as)",
}


def from_kubeconfig(path: Path) -> ClusterConfig:
    """Use the current context of a kubeconfig, with a token or a client certificate; of equal names the first counts.

    Login plugins are not run: a long-running program needs permanent credentials, such as those of a service account.
    Raises ClusterConfigError.
    """
    parsed = _parsed(path)
    chosen = _entry(path, parsed, "context", parsed.get("current-context"))
    cluster = _entry(path, parsed, "cluster", chosen.values.get("cluster"))
    user = _entry(path, parsed, "user", chosen.values["user"]) if chosen.values.get("user") else _Entry(path, {})
    for key, what in _NOT_SUPPORTED.items():
        if cluster.values.get(key) or user.values.get(key):
            names = f"cluster {chosen.values.get('cluster')!r} with user {chosen.values.get('user')!r}"
            raise ClusterConfigError(
                f"kubeconfig {path}: {names} {what}, which "
                "is not supported; make a kubeconfig with the token of a service account"
            )
    url = str(cluster.values.get("server") or "").rstrip("/")
    if not url.startswith(("https://", "http://")):
        raise ClusterConfigError(f"kubeconfig {path}: cluster {chosen.values.get('cluster')!r} has no https:// server")
    ca_file, ca_pem = cluster.file_or_text("certificate-authority")
    cert_file, cert_pem = user.file_or_text("client-certificate")
    key_file, key_pem = user.file_or_text("client-key")
    return ClusterConfig(
        url,
        ca_file=ca_file,
        ca_pem=ca_pem,
        verify=not cluster.values.get("insecure-skip-tls-verify"),
        token=str(user.values.get("token") or ""),
        token_file=user.path_of("tokenFile"),
        cert_file=cert_file,
        key_file=key_file,
        cert_pem=cert_pem,
        key_pem=key_pem,
    )


def _parsed(path: Path) -> Mapping[str, Any]:
    """Return what a kubeconfig says. Raises ClusterConfigError."""
    import yaml  # noqa: PLC0415 - programs inside a cluster do not need it, and it costs 1 MB

    try:
        # As kubectl does: UTF-16 is read, too, and of several documents the first. Only libyaml, from which its parser
        # was made, passes over the tabs of an indented kubeconfig in JSON.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        content = path.read_bytes()
        parsed: Any = next(yaml.load_all(content, loader), None)
    except (OSError, yaml.reader.ReaderError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        advice = "is it the path that kubectl uses?"
        if path.parts[:1] == ("~",):
            advice = "a shell replaces ~ only at the beginning of a word, not after ="
        raise ClusterConfigError(f"kubeconfig {path} cannot be read: {why}; {advice}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        last = content.count(b"\n")
        where = f", line {min(mark.line, last) + 1}" if mark is not None else ""
        raise ClusterConfigError(f"kubeconfig {path} is not YAML{where}") from None  # its text quotes credentials
    return parsed if isinstance(parsed, dict) else {}


@dataclass(frozen=True, slots=True)
class _Entry:
    """A context, cluster or user."""

    path: Path
    """Of its kubeconfig."""
    values: Mapping[str, Any]

    def path_of(self, key: str) -> Path | None:
        """Resolve a path relative to the kubeconfig's folder, like kubectl."""
        return self.path.parent / str(self.values[key]) if self.values.get(key) else None

    def file_or_text(self, key: str) -> tuple[Path | None, str]:
        """Return the path of a certificate or key, or its text, which counts if there are both, as for kubectl."""
        text = self._text_of(f"{key}-data")
        return (None if text else self.path_of(key)), text

    def _text_of(self, key: str) -> str:
        data = self.values.get(key) or b""
        try:
            coded = data if isinstance(data, bytes) else str(data).encode("ascii")  # bytes are YAML's !!binary
            # Go, in which kubectl is written, passes over line breaks in base64, and over nothing else.
            text = base64.b64decode(coded.translate(None, b"\r\n"), validate=True)
        except (binascii.Error, UnicodeEncodeError):
            raise ClusterConfigError(f"kubeconfig {self.path}: {key} is not a certificate in base64") from None
        return text.decode("ascii", errors="ignore")  # only comments beside the PEM blocks have other characters


def _entry(path: Path, parsed: Mapping[str, Any], kind: str, name: Any) -> _Entry:
    """Return the context, cluster or user of a name. Raises ClusterConfigError."""
    if not name:
        raise ClusterConfigError(
            f"kubeconfig {path} names no {kind} to use; choose one with kubectl config use-context, or give "
            "the path of another file"
        )
    entries = parsed.get(f"{kind}s")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("name") == str(name) and isinstance(entry.get(kind), dict):
            return _Entry(path, entry[kind])
    raise ClusterConfigError(f"kubeconfig {path} has no {kind} named {str(name)!r}")


class Credentials:
    """The bearer token, reread when it gets old, and the certificates."""

    def __init__(self, config: ClusterConfig, longest_s: float) -> None:
        """Read both as `config` says; a token file is read again after `longest_s` seconds."""
        self._config = config
        self._longest_s = longest_s
        self._token = config.token
        self._token_read_at = -math.inf
        self._tls: ssl.SSLContext | None = None

    def token(self) -> str:
        """Return the token; empty if there is none. OSError, UnicodeDecodeError: its file does not contain one."""
        file = self._config.token_file
        if file is not None and time.monotonic() - self._token_read_at >= self._longest_s:
            self._token = file.read_text(encoding="ascii").strip()
            self._token_read_at = time.monotonic()
        return self._token

    def token_changed(self) -> bool:
        """Return whether the file contains a new token, other than the last one used."""
        before, self._token_read_at = self._token, -math.inf
        try:
            return self.token() != before
        except (OSError, UnicodeDecodeError):
            return False

    def tls(self) -> ssl.SSLContext | bool:
        """Return aiohttp's `ssl` argument; the files are read once, until `forget_tls`. Raises ClusterConfigError."""
        if not self._config.url.startswith("https:"):
            return True
        if self._tls is None:
            self._tls = self._config.tls()
        return self._tls

    def forget_tls(self) -> None:
        """Make the next call reload the certificates: an authority is rotated by replacing its file."""
        self._tls = None
