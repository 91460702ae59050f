"""The forms in which values of settings are written, and their parsers."""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from gpu_device_plugin.model.memory import parse_mib
from gpu_device_plugin.model.times import seconds
from gpu_device_plugin.report.rules.printing import nearest
from gpu_device_plugin.settings.knobs import Form

T = TypeVar("T")
W = TypeVar("W", bound=str)


def one_of(*choices: str) -> Form[str]:
    """Accept one of the lower-case words `choices`, in any case."""

    def read(text: str) -> str:
        word = text.lower()
        if word not in choices:
            raise ValueError(f"{text!r} is unknown; {nearest(text, choices, 'write ' + ' or '.join(choices))}")
        return word

    return Form("|".join(choices), read)


def several(shape: str, read_one: Callable[[str], T]) -> Form[tuple[T, ...]]:
    """Accept a comma-separated list of values; duplicates are dropped."""

    def read(text: str) -> tuple[T, ...]:
        words = (word.strip() for word in text.split(","))
        return tuple(dict.fromkeys(read_one(word) for word in words if word))

    return Form(f"{shape},...", read, many=True)


def some_of(*choices: W, none: str = "") -> Form[tuple[W, ...]]:
    """Accept one or more of the words `choices`; the value has them in the order of `choices`.

    Where there is a word for `none`, it alone is accepted too.
    """
    read_one = one_of(*choices)

    def read(text: str) -> tuple[W, ...]:
        if none and text.lower() == none:
            return ()
        words = several("", str).read(text)
        if none in map(str.lower, words) and none:
            raise ValueError(f"{none} stands alone; leave out {none} or the others")
        chosen = several("", read_one.read).read(text)
        if not chosen:
            raise ValueError(f"the list is empty; choose from {', '.join(choices)}")
        return tuple(choice for choice in choices if choice in chosen)

    return Form(f"{read_one.shape},..." + (f"|{none}" if none else ""), read, many=True)


def size(least_mib: int) -> Form[int]:
    """Accept an amount of memory; the value is in MiB."""

    def read(text: str) -> int:
        mib = parse_mib(text)
        if mib < least_mib:
            raise ValueError(f"{text!r} is too little; the least is {least_mib}MiB")
        return mib

    return Form("SIZE", read)


def duration(*, zero: bool = False) -> Form[float]:
    """Accept a duration, with `zero` also 0; the value is in seconds."""

    def read(text: str) -> float:
        if (found := seconds(text)) is None:
            raise ValueError(f"{text!r} is not a duration; write it like 5s, 200ms or 2m")
        if not found and not zero:
            raise ValueError(f"{text!r} is too short; it has to be longer than 0s")
        return found

    return Form("DURATION", read)


def number(least: int, most: int) -> Form[int]:
    """Accept a whole number from `least` to `most`."""

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


DRIVERS = ("auto", "nvml", "amdgpu", "xe")
"""The sources of real GPUs, as `hardware.driver` has them."""


def _hardware(text: str) -> str:
    if text in DRIVERS or text.startswith("fake:") or text.endswith((".yaml", ".yml", ".json")):
        return text
    if re.match(r"[0-9]+x", text):
        raise ValueError(f"{text!r} names no GPUs; did you mean fake:{text}?")
    raise ValueError(
        f"{text!r} names no GPUs; write auto for the GPUs of this machine, nvml, amdgpu or xe for those of one driver, "
        "fake:4xT4 for fake ones, or the path of a .yaml file that describes fake ones"
    )


GPU_SOURCE = Form("SOURCE", _hardware)


# --- Names -----------------------------------------------------------------------------------------------------------

# The kubelet accepts a resource if "requests." plus its name is a qualified name (IsExtendedResourceName in
# Kubernetes' pkg/apis/core/v1/helper): 253 characters less 9 remain for the domain.
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?", re.ASCII)


def _domain(text: str) -> str:
    if len(text) > 244 or not _DOMAIN.fullmatch(text):
        raise ValueError(
            f"{text!r} is not a domain that the kubelet accepts; use at most 244 lower-case letters, digits, "
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
            f"{text!r} is not a resource name that the kubelet accepts; use at most 63 letters, digits, dashes, "
            "underscores and dots, a letter or digit first and last, and write the domain in the setting domain"
        )
    return text


RESOURCE_NAME = Form("NAME", _resource_name)


def object_name(what: str, otherwise: str) -> Form[str]:
    """Accept the name of an API object of kind `what`, or an empty text; `otherwise` is the advice of the error."""

    def read(text: str) -> str:
        if text and (len(text) > 253 or not _DOMAIN.fullmatch(text)):
            raise ValueError(f"{text!r} is not a valid name of a {what}; {otherwise}")
        return text

    return Form("NAME", read)


# --- Addresses -------------------------------------------------------------------------------------------------------


def _url(text: str) -> str:
    if text and not re.fullmatch(r"https?://[!-~]{1,2048}", text):
        raise ValueError(f"{text!r} is no address of a page; begin it with http:// or https://")
    return text


OPTIONAL_URL = Form("URL", _url)


def api_server(*words: str) -> Form[str]:
    """Accept a way to reach the Kubernetes API: one of `words`, the path of a kubeconfig, or a URL."""

    def read(text: str) -> str:
        if "://" in text:
            if not re.match(r"https?://[^/]", text):
                raise ValueError(f"{text!r} is not the URL of an API server; begin it with http:// or https://")
        # A path must contain a slash, so that a mistyped word is not mistaken for a file.
        elif text not in words and "/" not in text:
            other = f"write {', '.join(words)}, the path of a kubeconfig (with a / in it), or an http:// address"
            raise ValueError(f"{text!r} does not name an API server; {nearest(text, words, other)}")
        return text

    return Form("|".join((*words, "PATH", "URL")), read)


class Address(NamedTuple):
    """An address to listen on."""

    host: str
    """An IP address; empty: all addresses of this machine."""
    port: int
    """0: any free port."""


_PORT = number(0, 65535)


def _address(text: str) -> Address:
    match = re.fullmatch(r"(?:\[([^]%]+)]|([^:]*)):([0-9]{1,5})", text, re.ASCII)
    if match:
        with contextlib.suppress(ValueError):
            if host := match[1] or match[2]:
                (ipaddress.IPv6Address if match[1] else ipaddress.IPv4Address)(host)
            return Address(host, _PORT.read(match[3]))
    raise ValueError(
        f"{text!r} is not an address to listen on; write it like 0.0.0.0:9445, [::]:9445, or :9445 for all addresses"
    )


ADDRESS = Form("ADDRESS", _address)
OPTIONAL_ADDRESS = Form("ADDRESS", lambda text: None if text in {"", "off"} else _address(text))
