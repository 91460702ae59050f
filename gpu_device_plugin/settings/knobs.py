"""Declare each setting once, with its name, form, description and whether a change needs a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform

T = TypeVar("T")
S = TypeVar("S", bound="Settings")

ENVIRONMENT_PREFIX = "GPUSHARE_"
PROGRAM = "gpu-device-plugin"
_MOST_LISTED = 10
"""The most errors that are listed at once; the others are counted."""


class UsageError(Exception):
    """User input cannot be used. The message is one line that names the fault, its place and its correction."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """One sentence for each error."""
        return (str(self),)


class SettingsError(UsageError):
    """Settings cannot be used. The message lists all faults, so that one round of corrections is enough."""

    def __init__(self, sentence: str, names: tuple[str, ...] = (), parts: tuple[SettingsError, ...] = ()) -> None:
        super().__init__(sentence)
        self.names = names
        """The settings that contradict each other, while the message lacks the places where they were written."""
        self.parts = parts or (self,)
        """The single errors."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """One sentence for each error; the last one counts the errors that are not listed."""
        return _listed(self.parts)


def _listed(parts: tuple[SettingsError, ...]) -> tuple[str, ...]:
    more = len(parts) - _MOST_LISTED
    left_out = (f"{more} more error{'' if more == 1 else 's'}; correct these first",) if more > 0 else ()
    return (*map(str, parts[:_MOST_LISTED]), *left_out)


def refuse(problems: Iterable[SettingsError]) -> None:
    """Raise all problems as one error.

    Raises:
        SettingsError: there is a problem.
    """
    match tuple(problems):
        case []:
            return
        case [problem]:
            raise problem
        case several:
            numbered = " ".join(f"({number}) {each}" for number, each in enumerate(_listed(several), 1))
            raise SettingsError(f"{len(several)} errors in the settings: {numbered}", parts=several)


@dataclass(frozen=True, slots=True)
class Form(Generic[T]):
    """The written form of a type of values."""

    shape: str
    """The placeholder for a value in a usage text, for example ``SIZE``."""
    read: Callable[[str], T]
    """Parses a text. Its ValueError continues a sentence that begins with the place of the text and a colon."""
    many: bool = False
    """Several values: separated by commas, in a file also as a list."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting, as users see it."""

    field: str
    """Its attribute of the settings class, with the unit."""
    default: str
    """Its default value, as a user would write it."""
    form: Form[Any]
    help: str
    live: bool
    """A change takes effect when the configuration is read again, without a restart of the program."""
    also: str
    """Another environment variable that is read, by the convention of Kubernetes manifests; empty: none."""
    in_profile: bool
    """A profile may set it. False for settings that a program needs before it knows its profile."""

    @property
    def name(self) -> str:
        """Its name in a file. Users write the unit with the value, so the name has none."""
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
    default: str,
    form: Form[T],
    description: str,
    *,
    live: bool = False,
    also: str = "",
    in_profile: bool = True,
) -> T:
    """Declare a setting as a field of a dataclass; `Knob` describes the arguments."""
    described = Knob("", default, form, description, live, also, in_profile)
    made: T = field(default=form.read(default), metadata={"knob": described})
    return made


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Settings:
    """The settings of one program, read once and then frozen. Each field is declared by `knob`.

    Whoever inherits is a dataclass.

    Raises:
        SettingsError: two of them contradict each other.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    COMMAND: ClassVar[str]
    """The command that starts the program."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        refuse(self._contradictions())

    def _contradictions(self) -> Iterator[SettingsError]:
        """Yield an error for each contradiction. Whoever inherits may add more."""
        yield from ()

    def of(self, kind: type[S]) -> S:
        """Return the same settings with those of a feature.

        Raises:
            LookupError: the program lacks the feature, so its settings are not known.
        """
        found = self if isinstance(self, kind) else None
        if found is None:
            raise LookupError(f"this program has no {kind.__name__}; a feature that needs them must say so in its list")
        return found


def knobs_of(make: type[Settings]) -> tuple[Knob, ...]:
    """Return every setting in the order of the help texts: those that a program inherits before its own."""
    return tuple(replace(each.metadata["knob"], field=each.name) for each in fields(make))


@dataclass(frozen=True, slots=True)
class Reload(Generic[S]):
    """The result of a changed configuration in a running program."""

    settings: S
    """The settings from now on: the old ones with every change that needs no restart."""
    applied: tuple[str, ...]
    """Names of the settings that were changed."""
    waiting: tuple[str, ...]
    """Names of the settings whose change needs a restart."""

    @property
    def sentence(self) -> str:
        """The result, for a log."""
        unchanged = "" if self.applied or self.waiting else ", and nothing in it has changed"
        return f"the configuration was read again{unchanged}"

    @property
    def changes(self) -> dict[str, list[str]]:
        """The names of the changed settings, as fields of a log line."""
        kinds = {"applied": list(self.applied), "waiting": list(self.waiting)}
        return {kind: names for kind, names in kinds.items() if names}


def reload(running: S, wanted: S) -> Reload[S]:
    """Decide which of the wanted changes can be applied now."""
    changed = [each for each in knobs_of(type(running)) if getattr(running, each.field) != getattr(wanted, each.field)]
    now = {each.field: getattr(wanted, each.field) for each in changed if each.live}
    return Reload(
        settings=replace(running, **now),
        applied=tuple(each.name for each in changed if each.live),
        waiting=tuple(each.name for each in changed if not each.live),
    )
