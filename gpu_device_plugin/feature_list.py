"""The features of a program: how each of a list is made, and the settings that the program has with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from gpu_device_plugin.settings.knobs import Settings

S = TypeVar("S", bound=Settings)

F = TypeVar("F")
K = TypeVar("K")
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """A feature that a program may have."""

    name: str
    path: str
    """Module and class or maker of the feature, imported where the program has it: ``package.module:Class``."""
    settings: type[Settings] | None = None
    """The settings that a program has with it; None: no further ones. They may extend those of a feature it needs."""
    needs: tuple[str, ...] = ()
    """The features without which it cannot be."""
    needs_api: bool = False


class FeatureList(Generic[F]):
    """The features that a program has, in their order."""

    def __init__(self, *features: F) -> None:
        self._features = list(features)
        self._at: dict[Any, Sequence[Callable[..., Any]]] = {}

    def add(self, feature: F) -> None:
        """Append a feature."""
        self._features.append(feature)
        self._at.clear()

    def make(self, specs: Iterable[FeatureSpec], context: Any, *, api: bool = True) -> None:
        """Append features, each made with `context`, but those that need an API or a feature that is not there."""
        names: set[str] = set()
        for spec in specs:
            if names.issuperset(spec.needs) and (api or not spec.needs_api):
                module, _, name = spec.path.partition(":")
                self.add(getattr(import_module(module), name)(context))
                names.add(spec.name)

    def __iter__(self) -> Iterator[F]:
        return iter(self._features)

    def at(self, point: Callable[Concatenate[F, P], R]) -> Sequence[Callable[P, R]]:
        """Return what the features do at a point, a method of their base class that their own class replaces.

        It is looked up once, as most features do nothing at points that are reached with each pod.
        """
        found = self._at.get(point)
        if found is None:
            name = point.__name__
            found = [getattr(each, name) for each in self._features if getattr(type(each), name) is not point]
            self._at[point] = found
        return found

    def each(self, point: Callable[Concatenate[F, P], None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Do what the features do at a point."""
        for act in self.at(point):
            act(*args, **kwargs)

    def first(self, point: Callable[Concatenate[F, P], R | None], *args: P.args, **kwargs: P.kwargs) -> R | None:
        """Return the first result at a point that is not None."""
        for answer in self.at(point):
            if (result := answer(*args, **kwargs)) is not None:
                return result
        return None

    def get(self, kind: type[K]) -> K | None:
        """Return the feature of a kind, if the program has it."""
        return next((feature for feature in self._features if isinstance(feature, kind)), None)

    def of(self, kind: type[K]) -> K:
        """Return the feature of a kind.

        Raises:
            LookupError: the program does not have it.
        """
        found = self.get(kind)
        if found is None:
            raise LookupError(f"this program has no {kind.__name__}; a feature that needs it has to say so in its list")
        return found


def settings_of(specs: Iterable[FeatureSpec], base: type[S]) -> type[S]:
    """Return the settings of a program with these features; those of others are not known to it."""
    own = [spec.settings for spec in specs if spec.settings is not None]
    # Whoever extends settings comes before them.
    return type(base.__name__, (*reversed(own), base), {"__doc__": base.__doc__})
