"""What people may write for a setting, and the values it stands for."""

from __future__ import annotations

import contextlib
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from gpu_device_plugin.core.model.memory import parse_mib
from gpu_device_plugin.settings.knobs import Form, nearest

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
W = TypeVar("W", bound=str)


def one_of(*choices: str) -> Form[str]:
    """Take one of the words `choices`, which are of small letters; others write them in capitals."""

    def read(text: str) -> str:
        word = text.lower()
        if word not in choices:
            raise ValueError(f"{text!r} is unknown; {nearest(text, choices, 'write ' + ' or '.join(choices))}")
        return word

    return Form("|".join(choices), read)


def several(shape: str, read_one: Callable[[str], T]) -> Form[tuple[T, ...]]:
    """Take any number of values, each once."""

    def read(text: str) -> tuple[T, ...]:
        words = (word.strip() for word in text.split(","))
        return tuple(dict.fromkeys(read_one(word) for word in words if word))

    return Form(f"{shape},...", read, many=True)


def some_of(*choices: W) -> Form[tuple[W, ...]]:
    """Take one or more of the words `choices`, and put them in that order."""
    read_one = one_of(*choices)

    def read(text: str) -> tuple[W, ...]:
        chosen = several("", read_one.read).read(text)
        if not chosen:
            raise ValueError(f"nothing is named; choose from {', '.join(choices)}")
        return tuple(choice for choice in choices if choice in chosen)

    return Form(f"{read_one.shape},...", read, many=True)


def size(least_mib: int) -> Form[int]:
    """Take an amount of memory; its value is in MiB."""

    def read(text: str) -> int:
        mib = parse_mib(text)
        if mib < least_mib:
            raise ValueError(f"{text!r} is too little; {least_mib}MiB is the least")
        return mib

    return Form("SIZE", read)


_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def duration(*, zero: bool = False) -> Form[float]:
    """Take a time, which may be none at all where `zero` says so; its value is in seconds."""

    def read(text: str) -> float:
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)", text, re.ASCII)
        if match is None:
            raise ValueError(f"{text!r} is not a duration; write it like 5s, 200ms or 2m")
        seconds = float(match[1]) * _SECONDS[match[2]]
        if not seconds and not zero:
            raise ValueError(f"{text!r} is too short; it has to be longer than nothing")
        return seconds

    return Form("DURATION", read)


def number(least: int, most: int) -> Form[int]:
    """Take a whole number."""

    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) or not least <= int(text) <= most:
            raise ValueError(f"{text!r} is not a whole number from {least} to {most}")
        return int(text)

    return Form("N", read)


def _switch(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.lower()]
    except KeyError:
        raise ValueError(f"{text!r} is neither true nor false") from None


SWITCH = Form("true|false", _switch)


def _path(text: str) -> Path:
    if not text.startswith("/"):
        raise ValueError(f"{text!r} is not an absolute path; begin it with /")
    return Path(text)


DIRECTORY = Form("DIR", _path)
PATH = Form("PATH", _path)
OPTIONAL_PATH = Form("PATH", lambda text: _path(text) if text else None)


# --- Names -----------------------------------------------------------------------------------------------------------

# The kubelet accepts a resource if "requests." and its name make a qualified name together (IsExtendedResourceName in
# Kubernetes' pkg/apis/core/v1/helper): 253 characters less 9 remain for the domain.
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?", re.ASCII)


def _domain(text: str) -> str:
    if len(text) > 244 or not _DOMAIN.fullmatch(text):
        raise ValueError(
            f"{text!r} is no domain that the kubelet accepts; use at most 244 lower-case letters, digits, "
            "dashes and dots, as in aliyun.com"
        )
    if text.endswith("kubernetes.io") or text.startswith("requests."):
        raise ValueError(
            f"{text!r} belongs to Kubernetes, and the kubelet refuses resources under it; "
            "use a domain of your own, as in aliyun.com"
        )
    return text


DOMAIN = Form("DOMAIN", _domain)


def _resource_name(text: str) -> str:
    if len(text) > 63 or not _NAME.fullmatch(text):
        raise ValueError(
            f"{text!r} is no resource name that the kubelet accepts; use at most 63 letters, digits, dashes, "
            "underscores and dots, a letter or digit first and last, and leave the domain to the setting domain"
        )
    return text


RESOURCE_NAME = Form("NAME", _resource_name)


def object_name(what: str, otherwise: str) -> Form[str]:
    """Take the name of an object of the Kubernetes API, a `what`, or nothing; `otherwise` says what to write."""

    def read(text: str) -> str:
        if text and (len(text) > 253 or not _DOMAIN.fullmatch(text)):
            raise ValueError(f"{text!r} is no name that a {what} can have; {otherwise}")
        return text

    return Form("NAME", read)


# --- Where something is ----------------------------------------------------------------------------------------------


def api_server(*words: str) -> Form[str]:
    """Take a way to the Kubernetes API: one of `words`, the path of a kubeconfig, or an address."""

    def read(text: str) -> str:
        if "://" in text:
            if not re.match(r"https?://[^/]", text):
                raise ValueError(f"{text!r} is no address of an API server; it begins with http:// or https://")
        # A path has a slash in it, so that a mistyped word is not taken for a file.
        elif text not in words and "/" not in text:
            other = f"write {', '.join(words)}, the path of a kubeconfig (with a / in it), or an http:// address"
            raise ValueError(f"{text!r} leads to no API server; {nearest(text, words, other)}")
        return text

    return Form("|".join((*words, "PATH", "URL")), read)


class Address(NamedTuple):
    """Where to listen."""

    host: str
    """An IP address; empty for all of this machine."""
    port: int
    """0 takes any free one."""


_PORT = number(0, 65535)


def _address(text: str) -> Address:
    match = re.fullmatch(r"(?:\[([^]]+)]|([^:]*)):([0-9]{1,5})", text, re.ASCII)
    if match:
        with contextlib.suppress(ValueError, OSError):
            if host := match[1] or match[2]:
                socket.inet_pton(socket.AF_INET6 if match[1] else socket.AF_INET, host)
            return Address(host, _PORT.read(match[3]))
    raise ValueError(
        f"{text!r} is no address to listen on; write it like 0.0.0.0:9445, [::]:9445, or :9445 for all addresses"
    )


ADDRESS = Form("ADDRESS", _address)
OPTIONAL_ADDRESS = Form("ADDRESS", lambda text: None if text in {"", "off"} else _address(text))
