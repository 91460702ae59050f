"""Settings as people meet them: declared once, written as flags, variables or lines of a file, and read with care."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from gpu_device_plugin import files
from gpu_device_plugin.core.contract.keys import DEFAULT_PROFILE
from gpu_device_plugin.core.contract.variables import MEMORY_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from dataclasses import Field

T = TypeVar("T")

ENVIRONMENT_PREFIX = "GPUSHARE_"
PROGRAM = "gpu-device-plugin"
_MOST_TOLD = 10
"""So many things that are wrong are told of at once; the others are counted."""


class UsageError(Exception):
    """Something a person wrote cannot be used. The message is one line that says what, where and what to do."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """What is wrong, each thing for itself."""
        return (str(self),)


class SettingsError(UsageError):
    """A setting cannot be used, alone or beside another one."""

    def __init__(self, sentence: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(sentence)
        self.names = names
        """The settings that contradict each other, where the message does not say yet where they were written."""
        self.parts: tuple[SettingsError, ...] = (self,)
        """Each thing that is wrong."""


class SeveralSettingsError(SettingsError):
    """More than one thing is wrong with settings, and whoever mends them is told of all at once."""

    def __init__(self, parts: tuple[SettingsError, ...]) -> None:
        numbered = " ".join(f"({number}) {each}" for number, each in enumerate(_told(parts), 1))
        super().__init__(f"{len(parts)} things are wrong: {numbered}")
        self.parts = parts

    @property
    def sentences(self) -> tuple[str, ...]:
        """What is wrong, each thing for itself; the last counts what is left out."""
        return _told(self.parts)


def _told(parts: tuple[SettingsError, ...]) -> tuple[str, ...]:
    more = len(parts) - _MOST_TOLD
    left_out = (f"{more} more {'is' if more == 1 else 'are'} wrong; correct these first",) if more > 0 else ()
    return (*map(str, parts[:_MOST_TOLD]), *left_out)


def refuse(problems: Iterable[SettingsError]) -> None:
    """Raise what is wrong with settings, if anything is.

    Raises:
        SettingsError: there are problems.
    """
    match tuple(problems):
        case []:
            return
        case [problem]:
            raise problem
        case several:
            raise SeveralSettingsError(several)


def nearest(word: str, known: Iterable[str], otherwise: str, *, prefix: str = "") -> str:
    """Ask whether the known word most like `word` was meant; return `otherwise` where none is like it.

    A `prefix` that all of them have is no likeness, and another case is no difference.
    """
    stems = {name.removeprefix(prefix).lower(): name for name in known}
    found = difflib.get_close_matches(word.removeprefix(prefix).lower(), stems, n=1)
    return f"did you mean {stems[found[0]]}?" if found else otherwise


# --- Declaring them --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Form(Generic[T]):
    """How values of one type are written."""

    shape: str
    """What stands for a value in a usage text, for example ``SIZE``."""
    read: Callable[[str], T]
    """From what was written to the value. Its ValueError continues the sentence "where it was written: "."""
    many: bool = False
    """Several values: with commas between them, in a file also as a list."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting as people meet it."""

    field: str
    """Its attribute among the settings, unit included."""
    default: str
    """As one would write it."""
    form: Form[Any]
    help: str
    live: bool
    """A change takes effect when the configuration is read again, without a restart of the program."""
    also: str
    """Another variable that is read, which Kubernetes' own manifests use; empty: none."""
    in_profile: bool
    """A profile may set it. Not what a program needs before it can know its profile."""

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


def knob(
    default: str, form: Form[T], description: str, *, live: bool = False, also: str = "", in_profile: bool = True
) -> T:
    """Declare a setting as a field of a dataclass; `Knob` says what the arguments are."""
    metadata = {
        "default": default,
        "form": form,
        "help": description,
        "live": live,
        "also": also,
        "in_profile": in_profile,
    }
    made: T = field(default=form.read(default), metadata=metadata)
    return made


class Settings(Protocol):
    """The settings of one program: a frozen dataclass, each field of which a `knob` has made."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    COMMAND: ClassVar[str]
    """What starts the program."""


S = TypeVar("S", bound=Settings)


def knobs_of(settings: Settings | type[Settings]) -> tuple[Knob, ...]:
    """Return every setting, in the order in which they are explained."""
    return tuple(Knob(field=each.name, **each.metadata) for each in fields(settings))


# --- Where they are read ---------------------------------------------------------------------------------------------

# For every Service of its namespace a pod gets variables named after it, and the original extender's Service is called
# gpushare-schd-extender. They are not ours.
_SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_CONFIG_VARIABLE = ENVIRONMENT_PREFIX + "CONFIG"
# A container with a part of a GPU has the second one, and somebody may run a program of ours in it.
_NO_SETTINGS = frozenset({_CONFIG_VARIABLE, MEMORY_LIMIT})

_SUFFIX = ".yaml"
_LARGEST = 1 << 16
"""Bytes of a file of settings: many times what all of them take, and read within a second or two."""

_Written = tuple[str, str]
"""Where something was written, and the text itself."""


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
    """Text by the setting's name; ``config`` is the file or directory."""
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
            SettingsError: something in them cannot be used; it tells of all that cannot.
        """
        texts = self.texts() if texts is None else texts
        problems: list[SettingsError] = []
        written = dict(self._entries(texts.default, problems))
        if profile:
            written |= self._entries(texts.profiles[profile], problems, profile=True)
        written |= {**dict(self._environment(problems)), **dict(self._flags())}
        values: dict[str, Any] = {}
        unread: set[str] = set()
        ours = {each.name: each for each in knobs_of(self.make)}
        for name, (where, text) in written.items():
            if name in ours:
                try:
                    values[ours[name].field] = ours[name].form.read(text)
                except ValueError as error:
                    unread.add(name)
                    problems.append(SettingsError(f"{where}: {error}"))
        try:
            made = self.make(**values)
        except SettingsError as error:
            # What cannot be read contradicts nothing.
            for part in error.parts:
                if unread.isdisjoint(part.names):
                    places = (written[name][0] if name in written else f"{name} (by default)" for name in part.names)
                    problems.append(SettingsError(f"{' and '.join(places)}: {part}"))
            refuse(problems)
            raise
        refuse(problems)
        return made

    @property
    def _known(self) -> dict[str, Knob]:
        """Every setting that may be written here, by name; ours come before those of others."""
        return {each.name: each for each in (*self.others, *knobs_of(self.make))}

    @property
    def _help(self) -> str:
        return f"see {PROGRAM} {self.make.COMMAND} --help"

    def _flags(self) -> Iterator[tuple[str, _Written]]:
        known = self._known
        for name, text in self.flags.items():
            if name != "config":
                yield name, (known[name].flag, text)

    def _environment(self, problems: list[SettingsError]) -> Iterator[tuple[str, _Written]]:
        for each in knobs_of(self.make):
            if each.also in self.environ:
                yield each.name, (each.also, self.environ[each.also])
        known = {each.variable: each.name for each in self._known.values()}
        for variable, text in self.environ.items():
            if variable in known:
                yield known[variable], (variable, text)
            elif (
                variable.startswith(ENVIRONMENT_PREFIX)
                and variable not in _NO_SETTINGS
                and not _SERVICE_LINK.fullmatch(variable)
            ):
                hint = nearest(variable, known, f"unset it, or {self._help}", prefix=ENVIRONMENT_PREFIX)
                problems.append(SettingsError(f"{variable}: there is no such setting; {hint}"))

    def _entries(
        self, file: Text | None, problems: list[SettingsError], *, profile: bool = False
    ) -> Iterator[tuple[str, _Written]]:
        """Yield what a file says of each setting. Values stay text: to YAML ``off`` would be false."""
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
            wrong = ""
            if name not in known:
                hint = nearest(_plain(name), known, f"remove it, or {self._help}")
                wrong = f"there is no such setting; {hint}"
            elif name in seen:
                wrong = "it is set twice in this file; remove one of the lines"
            elif profile and not known[name].in_profile:
                wrong = f"an agent needs it before it knows its profile; write it in {DEFAULT_PROFILE}{_SUFFIX}"
            elif (text := _text(value, known[name].form)) is None:
                many = "words or a list of words" if known[name].form.many else "a single value"
                wrong = f"{many} is needed here, written like {known[name].form.shape}"
            else:
                yield name, (where, text)
            if wrong:
                problems.append(SettingsError(f"{where}: {wrong}"))
            seen.add(name)


def _plain(name: str) -> str:
    """Return a name in a file as it is meant that is written as its flag or its variable is."""
    return name.removeprefix(ENVIRONMENT_PREFIX).lstrip("-").replace("-", "_")


def _text(value: Any, form: Form[Any]) -> str | None:
    """Return what stands behind a name as one text, None if it is something else than words."""
    if isinstance(value.value, str):
        return value.value
    if form.many and _is_list_of_words(value.value):
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
    removed (Kubernetes' pkg/volume/util/atomic_writer.go): whoever follows link by link reads some of each.
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


def _is_list_of_words(nodes: Iterable[Any]) -> bool:
    return all(isinstance(getattr(node, "value", None), str) for node in nodes)


# --- Reading them again ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reload(Generic[S]):
    """What became of a changed configuration while the program was running."""

    settings: S
    """What runs from now on: the old settings with every change that needs no restart."""
    applied: tuple[str, ...]
    """Names of the settings that changed."""
    waiting: tuple[str, ...]
    """Names of those whose change needs a restart."""

    @property
    def sentence(self) -> str:
        """What happened, for a log."""
        unchanged = "" if self.applied or self.waiting else ", and nothing in it has changed"
        return f"the configuration was read again{unchanged}"

    @property
    def changes(self) -> dict[str, list[str]]:
        """What became of the settings that changed, as fields of a line of a log."""
        kinds = {"applied": list(self.applied), "waiting": list(self.waiting)}
        return {kind: names for kind, names in kinds.items() if names}


def reload(running: S, wanted: S) -> Reload[S]:
    """Say which of the wanted changes can be applied now."""
    changed = [each for each in knobs_of(running) if getattr(running, each.field) != getattr(wanted, each.field)]
    now = {each.field: getattr(wanted, each.field) for each in changed if each.live}
    return Reload(
        settings=replace(running, **now),
        applied=tuple(each.name for each in changed if each.live),
        waiting=tuple(each.name for each in changed if not each.live),
    )


def table(knobs: Iterable[Knob]) -> str:
    """Return settings as rows of a Markdown table, for the documentation."""
    rows = ["| Flag | Environment | Default | Changes at once | Meaning |", "|---|---|---|---|---|"]
    rows += [
        f"| `{each.flag}` | `{each.variable}` | {f'`{each.default}`' if each.default else 'empty'} "
        f"| {'yes' if each.live else 'after a restart'} | {each.help} |"
        for each in knobs
    ]
    return "\n".join(rows) + "\n"
