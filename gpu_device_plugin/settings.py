"""Every knob of the node agent: its default, its meaning, and what a person may write for it."""

from __future__ import annotations

import contextlib
import difflib
import re
import socket
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from gpu_device_plugin.core.memory import parse_mib
from gpu_device_plugin.core.policy import POLICIES
from gpu_device_plugin.core.resources import Kind, Resource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

T = TypeVar("T")

ENVIRONMENT_PREFIX = "GPUSHARE_"
DELIVERIES = ("envvar", "device-specs", "cdi")
"""The ways in which a GPU can be handed to a container."""


class UsageError(Exception):
    """Something a person wrote cannot be used. The message is one line that says what, where and what to do."""


class SettingsError(UsageError):
    """A setting cannot be used, alone or beside another one."""

    def __init__(self, sentence: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(sentence)
        self.names = names
        """The settings that contradict each other, where the message does not say yet where they were written."""


def nearest(word: str, known: Iterable[str], otherwise: str, *, prefix: str = "") -> str:
    """Ask whether the known word most like `word` was meant; return `otherwise` where none is like it.

    A `prefix` that all of them have is no likeness.
    """
    found = difflib.get_close_matches(word.removeprefix(prefix), [name.removeprefix(prefix) for name in known], n=1)
    return f"did you mean {prefix}{found[0]}?" if found else otherwise


# --- What people write, and the values it stands for -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Form(Generic[T]):
    """How values of one type are written."""

    shape: str
    """What stands for a value in a usage text, for example ``SIZE``."""
    read: Callable[[str], T]
    """From what was written to the value. Its ValueError continues the sentence "where it was written: "."""
    many: bool = False
    """Several values: with commas between them, in a file also as a list."""


def _one_of(*choices: str) -> Form[str]:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text!r} is unknown; {nearest(text, choices, 'write ' + ' or '.join(choices))}")
        return text

    return Form("|".join(choices), read)


def _several(shape: str, read_one: Callable[[str], T]) -> Form[tuple[T, ...]]:
    def read(text: str) -> tuple[T, ...]:
        words = (word.strip() for word in text.split(","))
        return tuple(dict.fromkeys(read_one(word) for word in words if word))

    return Form(f"{shape},...", read, many=True)


def _some_of(*choices: str) -> Form[tuple[str, ...]]:
    read_one = _one_of(*choices)

    def read(text: str) -> tuple[str, ...]:
        chosen = _several("", read_one.read).read(text)
        if not chosen:
            raise ValueError(f"nothing is named; choose from {', '.join(choices)}")
        return tuple(choice for choice in choices if choice in chosen)

    return Form(f"{read_one.shape},...", read, many=True)


def _kinds() -> Form[tuple[Kind, ...]]:
    names = _some_of(*Kind)
    return Form(names.shape, lambda text: tuple(Kind(name) for name in names.read(text)), many=True)


def _size(least_mib: int) -> Form[int]:
    def read(text: str) -> int:
        mib = parse_mib(text)
        if mib < least_mib:
            raise ValueError(f"{text!r} is too little; {least_mib}MiB is the least")
        return mib

    return Form("SIZE", read)


_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def _duration(*, zero: bool = False) -> Form[float]:
    def read(text: str) -> float:
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)", text, re.ASCII)
        if match is None:
            raise ValueError(f"{text!r} is not a duration; write it like 5s, 200ms or 2m")
        seconds = float(match[1]) * _SECONDS[match[2]]
        if not seconds and not zero:
            raise ValueError(f"{text!r} is too short; it has to be longer than nothing")
        return seconds

    return Form("DURATION", read)


def _number(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) or not least <= int(text) <= most:
            raise ValueError(f"{text!r} is not a whole number from {least} to {most}")
        return int(text)

    return read


def _switch(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.lower()]
    except KeyError:
        raise ValueError(f"{text!r} is neither true nor false") from None


def _hardware(text: str) -> str:
    if text == "nvml" or text.startswith("fake:") or text.endswith((".yaml", ".yml", ".json")):
        return text
    raise ValueError(
        f"{text!r} names no GPUs; write nvml for those of this machine, fake:4xT4 for invented ones, "
        "or the path of a .yaml file that describes some"
    )


def _gpu_name(text: str) -> str:
    if re.fullmatch(r"[0-9]{1,3}|GPU-[0-9a-fA-F-]{36}", text, re.ASCII):
        return text
    raise ValueError(f"{text!r} is neither a GPU's index nor its UUID, as nvidia-smi -L prints them")


def _directory(text: str) -> Path:
    if not text.startswith("/"):
        raise ValueError(f"{text!r} is not an absolute path; begin it with /")
    return Path(text)


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


def _resource_name(text: str) -> str:
    if len(text) > 63 or not _NAME.fullmatch(text):
        raise ValueError(
            f"{text!r} is no resource name that the kubelet accepts; use at most 63 letters, digits, dashes, "
            "underscores and dots, a letter or digit first and last, and leave the domain to the setting domain"
        )
    return text


def _node_name(text: str) -> str:
    if text and (len(text) > 253 or not _DOMAIN.fullmatch(text)):
        raise ValueError(f"{text!r} is no name that a node can have; use the one that kubectl get nodes shows")
    return text


def _cdi_kind(text: str) -> str:
    if re.fullmatch(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?", text, re.ASCII):
        return text
    raise ValueError(f"{text!r} is not a CDI vendor and class; write it like nvidia.com/gpu")


def _api(text: str) -> str:
    words = ("auto", "off", "in-cluster")
    if "://" in text:
        if not re.match(r"https?://[^/]", text):
            raise ValueError(f"{text!r} is no address of an API server; it begins with http:// or https://")
    # A path has a slash in it, so that a mistyped word is not taken for a file.
    elif text not in words and "/" not in text:
        other = f"write {', '.join(words)}, the path of a kubeconfig (with a / in it), or an http:// address"
        raise ValueError(f"{text!r} leads to no API server; {nearest(text, words, other)}")
    return text


class Address(NamedTuple):
    """Where to listen."""

    host: str
    """An IP address; empty for all of this machine."""
    port: int
    """0 takes any free one."""


def _address(text: str) -> Address | None:
    if not text:
        return None
    match = re.fullmatch(r"(?:\[([^]]+)]|([^:]*)):([0-9]{1,5})", text, re.ASCII)
    if match:
        with contextlib.suppress(ValueError, OSError):
            if host := match[1] or match[2]:
                socket.inet_pton(socket.AF_INET6 if match[1] else socket.AF_INET, host)
            return Address(host, _number(0, 65535)(match[3]))
    raise ValueError(
        f"{text!r} is no address to listen on; write it like 0.0.0.0:9445, [::]:9445, or :9445 for all addresses"
    )


# --- The settings ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting as people meet it."""

    field: str
    """Its attribute in `NodeSettings`, unit included."""
    default: str
    """As one would write it."""
    form: Form[Any]
    help: str
    live: bool
    """A change takes effect when the configuration is read again, without a restart of the plugin."""

    @property
    def name(self) -> str:
        """Its name in a file. People write the unit with the value, so the name has none."""
        return self.field.removesuffix("_mib").removesuffix("_s")

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return ENVIRONMENT_PREFIX + self.name.upper()


def _knob(default: str, form: Form[T], description: str, *, live: bool = False) -> T:
    made: T = field(
        default=form.read(default), metadata={"default": default, "form": form, "help": description, "live": live}
    )
    return made


_XIDS = _several("XID", _number(1, 9999))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Everything one can choose about a node agent. Read once, frozen afterwards.

    Raises:
        SettingsError: two of them contradict each other.
    """

    gpus: str = _knob(
        "nvml",
        Form("SOURCE", _hardware),
        "Where the GPUs come from: nvml (those of this machine), fake:4xT4 or fake:2xH200-141GiB,1xA10 (invented "
        "ones), or the path of a .yaml file that describes GPUs and what happens to them.",
    )
    exclude_gpus: tuple[str, ...] = _knob(
        "",
        _several("GPU", _gpu_name),
        "GPUs to leave alone, by UUID or index. Prefer UUIDs: an index shifts when a GPU disappears.",
    )
    share_size_mib: int = _knob(
        "1GiB",
        _size(1),
        "GPU memory that one unit of the memory resource stands for, the same on every GPU of the node.",
    )
    reserve_mib: int = _knob(
        "0MiB", _size(0), "Memory kept back on every GPU, besides what the driver reserves for itself."
    )
    domain: str = _knob("aliyun.com", Form("DOMAIN", _domain), "Domain of both resource names.")
    memory_resource: str = _knob(
        "gpu-mem", Form("NAME", _resource_name), "Name of the resource that counts shares of GPU memory."
    )
    count_resource: str = _knob(
        "gpu-count", Form("NAME", _resource_name), "Name of the resource that counts whole GPUs."
    )
    resources: tuple[Kind, ...] = _knob(
        "memory,count",
        _kinds(),
        "Which resources are offered. Offer memory alone beside the original gpushare scheduler extender, which "
        "knows nothing of whole GPUs.",
    )
    policy: str = _knob(
        "binpack",
        _one_of(*POLICIES),
        "Which GPU of the node a pod gets: binpack fills one GPU before the next, spread takes the emptiest.",
        live=True,
    )
    devices: tuple[str, ...] = _knob(
        "envvar",
        _some_of(*DELIVERIES),
        "How GPUs reach a container: envvar (NVIDIA_VISIBLE_DEVICES, for the nvidia runtime), device-specs (the "
        "/dev/nvidia* nodes too, so that containers keep their GPU over a systemctl daemon-reload), cdi (by CDI name).",
        live=True,
    )
    cdi_kind: str = _knob(
        "nvidia.com/gpu",
        Form("VENDOR/CLASS", _cdi_kind),
        "What stands before the = in the CDI names of the GPUs.",
        live=True,
    )
    pre_start: bool = _knob(
        "false", Form("true|false", _switch), "Have the kubelet call PreStartContainer before each container."
    )
    device_plugin_dir: Path = _knob(  # noqa: RUF009 - makes a dataclasses.field
        "/var/lib/kubelet/device-plugins",
        Form("DIR", _directory),
        "Where the kubelet listens for device plugins and keeps its checkpoint.",
    )
    pod_resources_socket: Path = _knob(  # noqa: RUF009 - makes a dataclasses.field
        "/var/lib/kubelet/pod-resources/kubelet.sock",
        Form("PATH", _directory),
        "Where the kubelet tells which container holds which device.",
    )
    node_name: str = _knob(
        "", Form("NAME", _node_name), "Name of this node in the Kubernetes API. NODE_NAME is read too."
    )
    api: str = _knob(
        "auto",
        Form("auto|off|in-cluster|PATH|URL", _api),
        "How the Kubernetes API is reached: in-cluster (the pod's service account), the path of a kubeconfig, an "
        "http:// address, off, or auto: in-cluster where a service account is mounted, else off.",
    )
    http: Address | None = _knob(  # noqa: RUF009 - makes a dataclasses.field
        "",
        Form("ADDRESS", _address),
        "Where /metrics, /healthz and /readyz are served, for example 0.0.0.0:9445, or :9445 for every address. "
        "Empty: nowhere.",
    )
    ignored_xids: tuple[int, ...] = _knob(
        "", _XIDS, "XID errors that never make a GPU unhealthy, besides those known to be the application's.", live=True
    )
    fatal_xids: tuple[int, ...] = _knob(
        "", _XIDS, "XID errors that always make a GPU unhealthy, besides those known to be serious.", live=True
    )
    row_remap_pending: str = _knob(
        "warn",
        _one_of("warn", "unhealthy"),
        "What a GPU is that needs a reset to finish repairing its memory: worth a warning, or unhealthy.",
        live=True,
    )
    probe_interval_s: float = _knob("10s", _duration(), "How often every GPU is asked how it is.", live=True)
    nvml_timeout_s: float = _knob(
        "5s", _duration(), "How long NVML may take for one answer before its process is replaced.", live=True
    )
    blind_after_s: float = _knob(
        "60s", _duration(), "How long GPUs are offered although nobody could ask how they are.", live=True
    )
    reconcile_interval_s: float = _knob(
        "10s", _duration(), "How often what we gave is compared with the kubelet's own books.", live=True
    )
    process_wait_s: float = _knob(
        "60s",
        _duration(zero=True),
        "How long a freed GPU that still runs processes is kept back before it is offered all the same.",
        live=True,
    )
    refusal_limit: int = _knob(
        "10",
        Form("N", _number(0, 1_000_000)),
        "Refusals of one size within a minute after which the node shows less free memory, so that pods wait instead "
        "of failing, and an Event gives advice. 0: never.",
        live=True,
    )
    log_level: str = _knob("info", _one_of("debug", "info", "warning", "error"), "Least severe line to log.", live=True)
    log_format: str = _knob(
        "auto",
        _one_of("auto", "human", "json"),
        "Log lines for people or for machines; auto writes for people on a terminal and JSON elsewhere.",
    )

    def __post_init__(self) -> None:
        if len(self.offered) != len({resource.name for resource in self.offered}):
            raise SettingsError(
                f"both resources would be called {self.offered[0].name}; give them different names",
                ("memory_resource", "count_resource"),
            )
        if both := sorted(set(self.ignored_xids) & set(self.fatal_xids)):
            raise SettingsError(
                f"XID {both[0]} is both ignored and fatal; name it in one of them only", ("ignored_xids", "fatal_xids")
            )
        if self.blind_after_s <= self.probe_interval_s:
            raise SettingsError(
                f"GPUs asked every {self.probe_interval_s:g}s would be given up after {self.blind_after_s:g}s without "
                "an answer; let the second be longer than the first",
                ("probe_interval", "blind_after"),
            )
        if self.api not in {"auto", "off"} and not self.node_name:
            raise SettingsError(
                "the Kubernetes API is of no use to an agent that does not know its node; set node_name "
                "(in a pod: NODE_NAME from the field spec.nodeName), or api to off",
                ("api", "node_name"),
            )

    @property
    def offered(self) -> tuple[Resource, ...]:
        """The resources offered, by their full names."""
        names = {Kind.MEMORY: self.memory_resource, Kind.COUNT: self.count_resource}
        return tuple(Resource(kind, f"{self.domain}/{names[kind]}") for kind in self.resources)

    def reaches_api(self, environ: Mapping[str, str]) -> bool:
        """Whether there may be an API server to speak to; `auto` says yes in a pod."""
        return self.api != "off" and (self.api != "auto" or "KUBERNETES_SERVICE_HOST" in environ)


KNOBS = tuple(Knob(field=each.name, **each.metadata) for each in fields(NodeSettings))
"""Every setting, in the order in which they are explained."""

_BY_NAME = {knob.name: knob for knob in KNOBS}


# --- Where settings are read -----------------------------------------------------------------------------------------

# For every Service of its namespace a pod gets variables named after it, and the original extender's Service is called
# gpushare-schd-extender. They are not ours.
_SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")

_Written = tuple[str, str]
"""Where something was written, and the text itself."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where settings come from; read again on demand. A flag beats the environment, which beats the file."""

    flags: Mapping[str, str]
    """Text by the setting's name; ``config`` is the file."""
    environ: Mapping[str, str]

    def read(self) -> NodeSettings:
        """Read every source now.

        Raises:
            SettingsError: something in them cannot be used.
        """
        written = {**dict(self._file()), **dict(self._environment()), **dict(self._flags())}
        values: dict[str, Any] = {}
        for knob in KNOBS:
            if knob.name in written:
                where, text = written[knob.name]
                try:
                    values[knob.field] = knob.form.read(text)
                except ValueError as error:
                    raise SettingsError(f"{where}: {error}") from error
        try:
            return NodeSettings(**values)
        except SettingsError as error:
            places = (written[name][0] if name in written else f"{name} (by default)" for name in error.names)
            raise SettingsError(f"{' and '.join(places)}: {error}") from error

    def _flags(self) -> Iterator[tuple[str, _Written]]:
        for name, text in self.flags.items():
            if name != "config":
                yield name, (_BY_NAME[name].flag, text)

    def _environment(self) -> Iterator[tuple[str, _Written]]:
        if "NODE_NAME" in self.environ:
            yield "node_name", ("NODE_NAME", self.environ["NODE_NAME"])
        known = {knob.variable: knob.name for knob in KNOBS}
        for variable, text in self.environ.items():
            if variable in known:
                yield known[variable], (variable, text)
            elif (
                variable.startswith(ENVIRONMENT_PREFIX)
                and variable != _CONFIG_VARIABLE
                and not _SERVICE_LINK.fullmatch(variable)
            ):
                other = "unset it, or see gpu-device-plugin node --help"
                hint = nearest(variable, known, other, prefix=ENVIRONMENT_PREFIX)
                raise SettingsError(f"{variable}: there is no such setting; {hint}")

    def _file(self) -> Iterator[tuple[str, _Written]]:
        where = "--config" if "config" in self.flags else _CONFIG_VARIABLE
        path = self.flags.get("config", self.environ.get(_CONFIG_VARIABLE, ""))
        if not path:
            return
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise SettingsError(f"{where}: cannot read {path}: {why}; name a YAML or JSON file") from error
        yield from _entries(path, text)


_CONFIG_VARIABLE = ENVIRONMENT_PREFIX + "CONFIG"


def _entries(path: str, text: str) -> Iterator[tuple[str, _Written]]:
    """Yield what a file says of each setting. Values stay text: to YAML ``off`` would be false."""
    import yaml  # noqa: PLC0415 - 3 MB that only those pay who have a file

    if path.endswith(".json"):
        text = text.replace("\t", " ")  # the one thing in which JSON is not YAML; inside a JSON string it is forbidden
    try:
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        why = getattr(error, "problem", None) or "the text cannot be parsed"
        raise SettingsError(f"{path}{line}: this is not YAML: {why}; correct it there") from error
    if root is None:
        return
    if not isinstance(root, yaml.MappingNode):
        raise SettingsError(f"{path}: a file of settings has lines like policy: spread, and this one has not")
    seen: set[str] = set()
    for key, value in root.value:
        name = str(key.value)
        where = f"{path}, line {key.start_mark.line + 1}, {name}"
        if name not in _BY_NAME:
            hint = nearest(name, _BY_NAME, "remove it, or see gpu-device-plugin node --help")
            raise SettingsError(f"{where}: there is no such setting; {hint}")
        if name in seen:
            raise SettingsError(f"{where}: it is set twice in this file; remove one of the lines")
        seen.add(name)
        if isinstance(value, yaml.ScalarNode):
            yield name, (where, value.value)
        elif _BY_NAME[name].form.many and _is_list_of_words(value.value):
            yield name, (where, ",".join(item.value for item in value.value))
        else:
            many = "words or a list of words" if _BY_NAME[name].form.many else "a single value"
            raise SettingsError(f"{where}: {many} is needed here, written like {_BY_NAME[name].form.shape}")


def _is_list_of_words(nodes: Iterable[Any]) -> bool:
    return all(isinstance(getattr(node, "value", None), str) for node in nodes)


# --- Reading them again ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reload:
    """What became of a changed configuration while the agent was running."""

    settings: NodeSettings
    """What runs from now on: the old settings with every change that needs no restart."""
    applied: tuple[str, ...]
    """Names of the settings that changed."""
    waiting: tuple[str, ...]
    """Names of those whose change needs a restart."""


def reload(running: NodeSettings, wanted: NodeSettings) -> Reload:
    """Say which of the wanted changes can be applied now."""
    changed = [knob for knob in KNOBS if getattr(running, knob.field) != getattr(wanted, knob.field)]
    now = {knob.field: getattr(wanted, knob.field) for knob in changed if knob.live}
    return Reload(
        settings=replace(running, **now),
        applied=tuple(knob.name for knob in changed if knob.live),
        waiting=tuple(knob.name for knob in changed if not knob.live),
    )


def table() -> str:
    """Return every setting as rows of a Markdown table, for the documentation."""
    rows = ["| Flag | Environment | Default | Changes on SIGHUP | Meaning |", "|---|---|---|---|---|"]
    rows += [
        f"| `{knob.flag}` | `{knob.variable}` | {f'`{knob.default}`' if knob.default else 'empty'} "
        f"| {'yes' if knob.live else 'after a restart'} | {knob.help} |"
        for knob in KNOBS
    ]
    return "\n".join(rows) + "\n"
