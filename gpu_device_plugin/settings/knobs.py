"""A setting is declared once: how it is called and written, what it means, and whether a change needs a restart."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from dataclasses import Field

T = TypeVar("T")

ENVIRONMENT_PREFIX = "GPUSHARE_"
PROGRAM = "gpu-device-plugin"
_MOST_LISTED = 10
"""So many errors are listed at once; the others are counted."""


class UsageError(Exception):
    """Something a person wrote cannot be used. The message is one line that says what, where and what to do."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """One sentence for each error."""
        return (str(self),)


class SettingsError(UsageError):
    """Settings cannot be used, and the message names all that cannot, so that one correction is enough."""

    def __init__(self, sentence: str, names: tuple[str, ...] = (), parts: tuple[SettingsError, ...] = ()) -> None:
        super().__init__(sentence)
        self.names = names
        """The settings that contradict each other, where the message does not say yet where they were written."""
        self.parts = parts or (self,)
        """Each error of its own."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """One sentence for each error; the last counts those that are left out."""
        return _listed(self.parts)


def _listed(parts: tuple[SettingsError, ...]) -> tuple[str, ...]:
    more = len(parts) - _MOST_LISTED
    left_out = (f"{more} more {'is' if more == 1 else 'are'} wrong; correct these first",) if more > 0 else ()
    return (*map(str, parts[:_MOST_LISTED]), *left_out)


def refuse(problems: Iterable[SettingsError]) -> None:
    """Raise the errors of settings as one, if there are any.

    Raises:
        SettingsError: there are problems.
    """
    match tuple(problems):
        case []:
            return
        case [problem]:
            raise problem
        case several:
            numbered = " ".join(f"({number}) {each}" for number, each in enumerate(_listed(several), 1))
            raise SettingsError(f"{len(several)} things are wrong: {numbered}", parts=several)


def nearest(word: str, known: Iterable[str], otherwise: str, *, prefix: str = "") -> str:
    """Ask whether the known word most like `word` was meant; return `otherwise` where none is like it.

    A `prefix` that all of them have is no likeness, and another case is no difference.
    """
    stems = {name.removeprefix(prefix).lower(): name for name in known}
    found = difflib.get_close_matches(word.removeprefix(prefix).lower(), stems, n=1)
    return f"did you mean {stems[found[0]]}?" if found else otherwise


@dataclass(frozen=True, slots=True)
class Form(Generic[T]):
    """How values of one type are written."""

    shape: str
    """What stands for a value in a usage text, for example ``SIZE``."""
    read: Callable[[str], T]
    """From text to value. Its ValueError continues a sentence that begins with the place of the text and a colon."""
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
    formerly: tuple[str, ...]
    """Its names in earlier releases. Each is understood for one release more, with a warning."""

    @property
    def name(self) -> str:
        """Its name in a file. People write the unit with the value, so the name has none."""
        return self.field.removesuffix("_mib").removesuffix("_s")

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return flag(self.name)

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return variable(self.name)

    @property
    def description(self) -> str:
        """What it means, and how it was called before."""
        return " ".join((self.help, *(f"Formerly {flag(name)}, which still works." for name in self.formerly)))


def flag(name: str) -> str:
    """Return how a name in a file is written on the command line."""
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """Return how a name in a file is written in the environment."""
    return ENVIRONMENT_PREFIX + name.upper()


def knob(
    default: str,
    form: Form[T],
    description: str,
    *,
    live: bool = False,
    also: str = "",
    in_profile: bool = True,
    formerly: tuple[str, ...] = (),
) -> T:
    """Declare a setting as a field of a dataclass; `Knob` says what the arguments are."""
    metadata = {
        "default": default,
        "form": form,
        "help": description,
        "live": live,
        "also": also,
        "in_profile": in_profile,
        "formerly": formerly,
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
    """Return every setting in the order of explanation: the program's own, then those that others have too."""
    make = settings if isinstance(settings, type) else type(settings)
    own = sorted(fields(make), key=lambda each: each.name not in make.__annotations__)
    return tuple(Knob(field=each.name, **each.metadata) for each in own)


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
        """The names of the settings that changed, as fields of a line of a log."""
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
