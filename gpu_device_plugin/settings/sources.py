"""Read settings from their sources: flags, environment variables and files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from gpu_device_plugin import files
from gpu_device_plugin.model.contract.keys import CONFIG_LABEL, DEFAULT_PROFILE
from gpu_device_plugin.model.contract.variables import COMPUTE_LIMIT, LIMITS, MEMORY_GUARANTEED, MEMORY_LIMIT
from gpu_device_plugin.report.rules.printing import nearest
from gpu_device_plugin.settings.knobs import (
    ENVIRONMENT_PREFIX,
    PROGRAM,
    Form,
    Knob,
    Settings,
    SettingsError,
    knobs_of,
    refuse,
)

S = TypeVar("S", bound=Settings)

# A pod gets environment variables for every Service of its namespace, named after it. The original extender's Service
# is gpushare-schd-extender, so its variables have our prefix and are no settings.
_SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_CONFIG_VARIABLE = ENVIRONMENT_PREFIX + "CONFIG"
# Containers with a part of a GPU have the others, and a program of ours may run in one of them.
_NO_SETTINGS = frozenset({_CONFIG_VARIABLE, MEMORY_LIMIT, MEMORY_GUARANTEED, COMPUTE_LIMIT, LIMITS})

_SUFFIX = ".yaml"
_LARGEST = 1 << 16
"""Most bytes of a file of settings: many times the size of all settings, and parsed within a second or two."""


class _Written(NamedTuple):
    """A setting as found in one of the sources."""

    name: str
    where: str
    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """A file of settings."""

    path: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Texts:
    """The file that ``config`` names, or the files of that directory, as they were at one moment."""

    default: Text | None = None
    """The file that applies everywhere; None: there is none."""
    folder: str = ""
    """The directory; empty: there is no directory, and so no profile."""
    profiles: Mapping[str, Text] = field(default_factory=dict)
    """The files of profiles, by name; the settings of a chosen profile override the default file."""


@dataclass(frozen=True, slots=True)
class Sources(Generic[S]):
    """The sources of a program's settings; read again on demand.

    A flag overrides the environment, which overrides the file. In a directory, a profile overrides the default file.
    """

    make: type[S]
    """The settings to read."""
    flags: Mapping[str, str]
    """Text by a name of the setting; ``config`` is the file or directory."""
    environ: Mapping[str, str]
    others: tuple[Knob, ...] = ()
    """Settings of other programs, ignored in the environment and the file, so that one of each can serve all."""

    @property
    def config(self) -> str:
        """The file or directory of settings; empty: there is none."""
        return self.flags.get("config", self.environ.get(_CONFIG_VARIABLE, ""))

    def texts(self) -> Texts:
        """Return the current content of the files. Hidden entries of a directory, as of a ConfigMap, are skipped.

        Raises:
            SettingsError: they cannot be read.
        """
        if not self.config:
            return Texts()
        path = Path(self.config)
        where = "--config" if "config" in self.flags else _CONFIG_VARIABLE
        try:
            if not path.is_dir():
                return Texts(Text(self.config, files.read(path, _LARGEST)[0]))
            profiles = _in_directory(path)
        except OSError as error:
            raise SettingsError(
                f"{where}: cannot read {error.filename or path}: {error.strerror}; name a YAML or JSON file, or a "
                f"directory with {DEFAULT_PROFILE}{_SUFFIX}"
            ) from error
        if not profiles:
            raise SettingsError(
                f"{where}: there is no file of settings in {path}; create {DEFAULT_PROFILE}{_SUFFIX} there, which may "
                "be empty, or name the right directory"
            )
        return Texts(profiles.pop(DEFAULT_PROFILE, None), self.config, profiles)

    def read(self, profile: str = "", texts: Texts | None = None) -> S:
        """Read every source, with a profile of the directory, if any; without `texts` the current content of the files.

        Raises:
            SettingsError: a setting cannot be used; the message lists all of these.
        """
        texts = self.texts() if texts is None else texts
        problems: list[SettingsError] = []
        every = [*self._entries(texts.default, problems)]
        if profile:
            every += self._entries(texts.profiles[profile], problems, profile=True)
        every += [*self._environment(problems), *self._flags()]
        written = {each.name: each for each in every}
        values: dict[str, Any] = {}
        unread: set[str] = set()
        ours = {each.name: each for each in knobs_of(self.make)}
        for name, each in written.items():
            if name in ours:
                try:
                    values[ours[name].field] = ours[name].form.read(each.text)
                except ValueError as error:
                    unread.add(name)
                    problems.append(SettingsError(f"{each.where}: {error}"))
        try:
            made = self.make(**values)
        except SettingsError as error:
            # A setting with an unreadable value has its default here, whose contradictions say nothing.
            for part in error.parts:
                if unread.isdisjoint(part.names):
                    places = (written[name].where if name in written else f"{name} (by default)" for name in part.names)
                    problems.append(SettingsError(f"{' and '.join(places)}: {part}"))
            refuse(problems)
            raise
        refuse(problems)
        return made

    @property
    def _known(self) -> dict[str, Knob]:
        """Every setting that is accepted here, by its name; ours override those of others."""
        return {each.name: each for each in (*self.others, *knobs_of(self.make))}

    @property
    def _help(self) -> str:
        return f"see {PROGRAM} {self.make.COMMAND} --help"

    def _flags(self) -> Iterator[_Written]:
        for name, knob in self._known.items():
            if name in self.flags:
                yield _Written(name, knob.flag, self.flags[name])

    def _environment(self, problems: list[SettingsError]) -> Iterator[_Written]:
        for each in knobs_of(self.make):
            if each.also in self.environ:
                yield _Written(each.name, each.also, self.environ[each.also])
        known = {knob.variable: knob for knob in self._known.values()}
        for name, knob in known.items():
            if name in self.environ:
                yield _Written(knob.name, name, self.environ[name])
        for name in self.environ:
            if (
                name.startswith(ENVIRONMENT_PREFIX)
                and name not in known
                and name not in _NO_SETTINGS
                and not _SERVICE_LINK.fullmatch(name)
            ):
                hint = nearest(name, known, f"unset it, or {self._help}", prefix=ENVIRONMENT_PREFIX)
                problems.append(SettingsError(f"{name}: there is no such setting; {hint}"))

    def _entries(
        self, file: Text | None, problems: list[SettingsError], *, profile: bool = False
    ) -> Iterator[_Written]:
        """Yield the settings of a file. Values stay text: to YAML ``off`` would be false."""
        if file is None:
            return
        known = self._known
        seen: set[str] = set()
        try:
            lines = _lines(file)
        except SettingsError as error:
            problems.append(error)
            return
        for key, value in lines:
            name = str(key.value)
            where = f"{file.path}, line {key.start_mark.line + 1}, {name}"
            knob = known.get(name)
            wrong = ""
            if knob is None:
                # It may be written like its flag or its variable.
                plain = name.removeprefix(ENVIRONMENT_PREFIX).lstrip("-").replace("-", "_")
                hint = nearest(plain, known, f"remove it, or {self._help}")
                wrong = f"there is no such setting; {hint}"
            elif name in seen:
                wrong = "this file sets it twice; remove one of the lines"
            elif profile and not knob.in_profile:
                wrong = f"an agent needs this before it knows its profile; write it in {DEFAULT_PROFILE}{_SUFFIX}"
            elif (text := _text(value, knob.form)) is None:
                many = "text or a list of texts" if knob.form.many else "a single value"
                wrong = f"{many} is needed here, written like {knob.form.shape}"
            else:
                yield _Written(name, where, text)
            if wrong:
                problems.append(SettingsError(f"{where}: {wrong}"))
            seen.add(name)


def settings_for(sources: Sources[S], texts: Texts, label: str) -> S:
    """Return the settings of a node whose label has this value, empty if it has no label.

    Raises:
        SettingsError: the label names no profile, or a setting cannot be used.
    """
    if not texts.folder or label in {"", DEFAULT_PROFILE}:
        return sources.read(texts=texts)
    if label not in texts.profiles:
        hint = nearest(label, texts.profiles, "correct the label, or add the file")
        raise SettingsError(
            f"the node label {CONFIG_LABEL}={label} names no profile: there is no {label}.yaml in {texts.folder}; "
            f"{hint}"
        )
    return sources.read(label, texts)


def _text(value: Any, form: Form[Any]) -> str | None:
    """Return the value of a setting as one text, None if it is neither a scalar nor an accepted list of scalars."""
    if isinstance(value.value, str):
        return value.value
    if form.many and all(isinstance(getattr(item, "value", None), str) for item in value.value):
        return ",".join(item.value for item in value.value)
    return None


def _in_directory(directory: Path) -> dict[str, Text]:
    """Return the files of settings in a directory by their names without suffix, all as they were at one moment.

    Raises:
        OSError: a file cannot be read.
        SettingsError: the name of a file is almost that of the default, so it would be ignored.
    """
    while True:
        version = _version(directory)
        try:
            names = sorted(path.name for path in version.iterdir())
            _refuse_mistaken(directory, names)
            found = {
                name.removesuffix(_SUFFIX): Text(str(directory / name), files.read(version / name, _LARGEST)[0])
                for name in names
                if name.endswith(_SUFFIX) and not name.startswith(".")
            }
        except FileNotFoundError:
            if version == _version(directory):
                raise
        else:
            if version == _version(directory):
                return found


def _version(directory: Path) -> Path:
    """Return the directory that holds one consistent version of a directory's files.

    A mounted ConfigMap consists of links through one link, ..data. An update replaces that link, and then removes its
    former target (Kubernetes' pkg/volume/util/atomic_writer.go): following the links one by one could mix versions.
    """
    try:
        return directory / (directory / "..data").readlink()
    except OSError:
        return directory


def _refuse_mistaken(directory: Path, names: Iterable[str]) -> None:
    """Raise SettingsError if a name is almost that of the default: its settings would silently be ignored."""
    for name in names:
        stem, _, suffix = name.lower().rpartition(".")
        if stem == DEFAULT_PROFILE and suffix in {"yaml", "yml", "json"} and name != DEFAULT_PROFILE + _SUFFIX:
            raise SettingsError(
                f"{directory / name}: a file of this name is ignored; rename it to {DEFAULT_PROFILE}{_SUFFIX}"
            )


def composed(where: str, content: bytes) -> Any:
    """Return the root of a file of YAML as a node that knows its line, None where it is empty; values stay text.

    Raises:
        SettingsError: it is none; the message begins with `where`.
    """
    import yaml  # noqa: PLC0415 - a megabyte that only programs with a file need

    try:
        return yaml.compose(content.decode(), Loader=yaml.BaseLoader)
    except UnicodeDecodeError as error:
        raise SettingsError(f"{where}: this is not UTF-8 text; save it as UTF-8") from error
    # Besides its own errors PyYAML lets through those of "\U0011FFFF", which is no character, and of [[[[... too deep.
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        why = getattr(error, "problem", None) or "the text cannot be parsed"
        raise SettingsError(f"{where}{line}: this is not valid YAML: {why}; correct it there") from error


def _lines(file: Text) -> list[tuple[Any, Any]]:
    path = file.path
    # Tabs are JSON and not YAML; inside a JSON string they are forbidden.
    root = composed(path, file.content.replace(b"\t", b" ") if path.endswith(".json") else file.content)
    if root is None:
        return []
    if root.id != "mapping":
        raise SettingsError(f"{path}: this is not a file of settings; write lines like policy: spread")
    found: list[tuple[Any, Any]] = root.value
    if {"apiVersion", "kind"} <= {key.value for key, _ in found if isinstance(key.value, str)}:
        raise SettingsError(
            f"{path}: this is an object of the Kubernetes API; of a ConfigMap write here only the value of the key "
            f"{DEFAULT_PROFILE}{_SUFFIX}, with lines like policy: spread"
        )
    return found
