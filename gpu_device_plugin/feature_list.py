"""The features of a program: how each of a list is made, and the settings that the program has with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Generic, TypeVar

from gpu_device_plugin.settings.knobs import Settings

S = TypeVar("S", bound=Settings)

F = TypeVar("F")
K = TypeVar("K")


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

    def add(self, feature: F) -> None:
        """Append a feature."""
        self._features.append(feature)

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
