"""Where settings are written, and how they are read there: flags, variables of the environment, files."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from gpu_device_plugin import files
from gpu_device_plugin.core.contract.keys import DEFAULT_PROFILE
from gpu_device_plugin.core.contract.variables import MEMORY_LIMIT
from gpu_device_plugin.settings.knobs import (
    ENVIRONMENT_PREFIX,
    PROGRAM,
    Settings,
    SettingsError,
    flag,
    knobs_of,
    nearest,
    refuse,
    variable,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gpu_device_plugin.settings.knobs import Form, Knob

S = TypeVar("S", bound=Settings)

# For every Service of its namespace a pod gets variables named after it, and the original extender's Service is called
# gpushare-schd-extender. They are not ours.
_SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_CONFIG_VARIABLE = ENVIRONMENT_PREFIX + "CONFIG"
# A container with a part of a GPU has the second one, and somebody may run a program of ours in it.
_NO_SETTINGS = frozenset({_CONFIG_VARIABLE, MEMORY_LIMIT})

_SUFFIX = ".yaml"
_LARGEST = 1 << 16
"""Bytes of a file of settings: many times what all of them take, and read within a second or two."""


class _Written(NamedTuple):
    """A setting as it was found somewhere."""

    name: str
    where: str
    text: str
    instead: str = ""
    """What to write in the place of a former name; empty: this is the present one."""


@dataclass(frozen=True, slots=True)
class Text:
    """A file of settings."""

    path: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Texts:
    """The file that ``config`` names, or the files of that directory, as they were at one moment."""

    default: Text | None = None
    """What applies everywhere; None: nothing is written."""
    folder: str = ""
    """The directory; empty: there is none, and so no profile."""
    profiles: Mapping[str, Text] = field(default_factory=dict)
    """By name: what is added where somebody chooses it, and beats the default."""


@dataclass(frozen=True, slots=True)
class Sources(Generic[S]):
    """Where settings come from; read again on demand.

    A flag beats the environment, which beats the file. Where there is a directory of them, a profile beats the default.
    """

    make: type[S]
    """The settings to read."""
    flags: Mapping[str, str]
    """Text by a name of the setting; ``config`` is the file or directory."""
    environ: Mapping[str, str]
    others: tuple[Knob, ...] = ()
    """Settings of other programs: passed over in the environment and the file, so that one of each can serve all."""

    @property
    def config(self) -> str:
        """The file or directory of settings; empty: there is none."""
        return self.flags.get("config", self.environ.get(_CONFIG_VARIABLE, ""))

    def texts(self) -> Texts:
        """Return what is written in files now. Of a directory, as a ConfigMap is mounted, hidden entries are none.

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
                f"{where}: there is no file of settings in {path}; name it {DEFAULT_PROFILE}{_SUFFIX} there, where it "
                "may be empty, or name the right directory"
            )
        return Texts(profiles.pop(DEFAULT_PROFILE, None), self.config, profiles)

    def read(self, profile: str = "", texts: Texts | None = None) -> S:
        """Read every source.

        Args:
            profile: one of the directory's; empty: none.
            texts: what the files say; None: what they say now.

        Raises:
            SettingsError: something in them cannot be used; it names all that cannot.
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
            # A value that cannot be read contradicts nothing.
            for part in error.parts:
                if unread.isdisjoint(part.names):
                    places = (written[name].where if name in written else f"{name} (by default)" for name in part.names)
                    problems.append(SettingsError(f"{' and '.join(places)}: {part}"))
            refuse(problems)
            raise
        refuse(problems)
        return made

    def renamed(self, texts: Texts) -> tuple[str, ...]:
        """Return a warning for each place in which a setting of ours stands under a former name."""
        problems: list[SettingsError] = []  # `read` raises them
        every = [*self._entries(texts.default, problems)]
        for profile in texts.profiles.values():
            every += self._entries(profile, problems, profile=True)
        ours = {knob.name for knob in knobs_of(self.make)}
        return tuple(
            f"{each.where}: this name goes with the next release; write {each.instead}"
            for each in (*every, *self._environment(problems), *self._flags())
            if each.instead and each.name in ours
        )

    @property
    def _known(self) -> dict[str, Knob]:
        """Every setting that may be written here, by its names, the former before the present; ours beat others'."""
        knobs = (*self.others, *knobs_of(self.make))
        return {name: each for each in knobs for name in (*each.formerly, each.name)}

    @property
    def _help(self) -> str:
        return f"see {PROGRAM} {self.make.COMMAND} --help"

    def _flags(self) -> Iterator[_Written]:
        for name, knob in self._known.items():
            if name in self.flags:
                yield _Written(knob.name, flag(name), self.flags[name], knob.flag if name != knob.name else "")

    def _environment(self, problems: list[SettingsError]) -> Iterator[_Written]:
        for each in knobs_of(self.make):
            if each.also in self.environ:
                yield _Written(each.name, each.also, self.environ[each.also])
        known = {variable(name): knob for name, knob in self._known.items()}
        for name, knob in known.items():
            if name in self.environ:
                yield _Written(knob.name, name, self.environ[name], knob.variable if name != knob.variable else "")
        for name in self.environ:
            if (
                name.startswith(ENVIRONMENT_PREFIX)
                and name not in known
                and name not in _NO_SETTINGS
                and not _SERVICE_LINK.fullmatch(name)
            ):
                hint = nearest(
                    name,
                    (each.variable for each in known.values()),
                    f"unset it, or {self._help}",
                    prefix=ENVIRONMENT_PREFIX,
                )
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
                names = (each.name for each in known.values())
                # It may be written as its flag or its variable is.
                plain = name.removeprefix(ENVIRONMENT_PREFIX).lstrip("-").replace("-", "_")
                hint = nearest(plain, names, f"remove it, or {self._help}")
                wrong = f"there is no such setting; {hint}"
            elif knob.name in seen:
                wrong = "it is set twice in this file; remove one of the lines"
            elif profile and not knob.in_profile:
                wrong = f"an agent needs it before it knows its profile; write it in {DEFAULT_PROFILE}{_SUFFIX}"
            elif (text := _text(value, knob.form)) is None:
                many = "words or a list of words" if knob.form.many else "a single value"
                wrong = f"{many} is needed here, written like {knob.form.shape}"
            else:
                yield _Written(knob.name, where, text, knob.name if name != knob.name else "")
            if wrong:
                problems.append(SettingsError(f"{where}: {wrong}"))
            seen.add(knob.name if knob else name)


def _text(value: Any, form: Form[Any]) -> str | None:
    """Return what stands behind a name as one text, None if it is something else than words."""
    if isinstance(value.value, str):
        return value.value
    if form.many and all(isinstance(getattr(item, "value", None), str) for item in value.value):
        return ",".join(item.value for item in value.value)
    return None


def _in_directory(directory: Path) -> dict[str, Text]:
    """Return the files of settings in a directory by their names without suffix, all as they were at one moment.

    Raises:
        OSError: one of them cannot be read.
        SettingsError: one is named so that nobody would read it.
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
    """Return where the files of a directory are that belong together.

    A mounted ConfigMap is links by way of one, ..data. When it changes that one is replaced, and then what it led to is
    removed (Kubernetes' pkg/volume/util/atomic_writer.go): a reader that follows link by link gets some of each.
    """
    try:
        return directory / (directory / "..data").readlink()
    except OSError:
        return directory


def _refuse_mistaken(directory: Path, names: Iterable[str]) -> None:
    """Raise SettingsError where a name is almost that of the default: what it says would silently not count."""
    for name in names:
        stem, _, suffix = name.lower().rpartition(".")
        if stem == DEFAULT_PROFILE and suffix in {"yaml", "yml", "json"} and name != DEFAULT_PROFILE + _SUFFIX:
            raise SettingsError(
                f"{directory / name}: it is not read under this name; call it {DEFAULT_PROFILE}{_SUFFIX}"
            )


def _lines(file: Text) -> list[tuple[Any, Any]]:
    """Return what stands before and after each colon of a file, as nodes of YAML that know their line."""
    import yaml  # noqa: PLC0415 - a megabyte that only those pay who have a file

    path = file.path
    try:
        text = file.content.decode()
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: it is not UTF-8 text; write it anew as such") from error
    if path.endswith(".json"):
        text = text.replace("\t", " ")  # the one thing in which JSON is not YAML; inside a string it is forbidden
    try:
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    # Beside its own errors PyYAML lets those through of a "\U0011FFFF" that is no character, and of a [[[[... too deep.
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        why = getattr(error, "problem", None) or "the text cannot be parsed"
        raise SettingsError(f"{path}{line}: this is not YAML: {why}; correct it there") from error
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode):
        raise SettingsError(f"{path}: a file of settings has lines like policy: spread, and this one has not")
    found: list[tuple[Any, Any]] = root.value
    if {"apiVersion", "kind"} <= {key.value for key, _ in found if isinstance(key.value, str)}:
        raise SettingsError(
            f"{path}: this is an object of the Kubernetes API; of a ConfigMap write here only what stands behind "
            f"{DEFAULT_PROFILE}{_SUFFIX}, with lines like policy: spread"
        )
    return found
