"""Stand in for msgspec where nothing compiled can run: the part of its interface that our modules use, in pure Python.

The archive of the kubectl plugin has this file as its module ``msgspec`` (docs/decisions/0026). Accepted are the same
texts, with the same results, and where msgspec refuses a text so does this; messages name the same places.
Facts about msgspec were taken from its documentation and by running it (0.19 to 0.20).
"""

from __future__ import annotations

import dataclasses
import json as _json
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

Convert = Callable[[Any], Any]


class DecodeError(Exception):
    """A text is not of the wanted form."""


class ValidationError(DecodeError):
    """A text is JSON, but not of the wanted type."""


class _Wrong(Exception):  # noqa: N818 - never leaves this module
    """A value of another type, with the path to it, the innermost place first."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.places: list[str] = []


_UNSET: Any = object()


class Raw:
    """A value that was not looked into yet. Copies share what was parsed."""

    __slots__ = ("_text", "_value")

    def __init__(self, text: bytes | str = b"") -> None:
        self._text: bytes | None = text.encode() if isinstance(text, str) else bytes(text)
        self._value: Any = _UNSET

    @classmethod
    def _of(cls, value: Any) -> Raw:
        raw = cls.__new__(cls)
        raw._text, raw._value = None, value
        return raw

    def __bytes__(self) -> bytes:
        if self._text is None:
            self._text = _dumped(self._value)
        return self._text

    def __len__(self) -> int:
        return len(bytes(self))

    def __eq__(self, other: object) -> bool:
        return bytes(self) == bytes(other) if isinstance(other, Raw) else NotImplemented

    def __hash__(self) -> int:
        return hash(bytes(self))

    def copy(self) -> Raw:
        """Return itself: unlike the original's, its text is not part of a larger one."""
        return self

    def _parsed(self) -> Any:
        return _loaded(bytes(self)) if self._value is _UNSET else self._value


# --- Structs ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Field:
    default: Any = _UNSET
    default_factory: Any = _UNSET
    name: str | None = None


def field(*, default: Any = _UNSET, default_factory: Any = _UNSET, name: str | None = None) -> Any:
    """Declare a field of a struct."""
    return _Field(default, default_factory, name)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.title() for word in others)


_RENAMES: Mapping[str, Callable[[str], str]] = {"camel": _camel, "pascal": lambda name: _camel(f"_{name}")}


class _StructMeta(type):
    _fields: Sequence[str]
    _defaults: Mapping[str, _Field]
    _json_names: Mapping[str, str]
    _rename: Any
    _frozen: bool

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        rename: Any = _UNSET,
        frozen: bool | None = None,
        gc: bool = True,  # noqa: ARG004 - of the original; Python's own objects are always collected
    ) -> _StructMeta:
        above = [base for base in bases if isinstance(base, _StructMeta)]
        own = list(namespace.get("__annotations__", {}))
        fields = [each for base in above for each in base._fields]
        defaults = {key: value for base in above for key, value in base._defaults.items()}
        names = {key: value for base in above for key, value in base._json_names.items()}
        if rename is _UNSET:
            rename = above[0]._rename if above else None
        own = [each for each in own if not str(namespace["__annotations__"][each]).startswith("ClassVar")]
        for each in own:
            declared = namespace.pop(each, _UNSET)
            found = declared if isinstance(declared, _Field) else _Field(default=declared)
            defaults[each] = found
            names[each] = found.name or _renamed(rename, each)
        fields += [each for each in own if each not in fields]
        inherited = {slot for base in bases for kind in base.__mro__ for slot in getattr(kind, "__slots__", ())}
        namespace["__match_args__"] = tuple(fields)
        namespace["__slots__"] = tuple(each for each in own if each not in inherited)
        made = super().__new__(mcs, name, bases, namespace)
        made._fields, made._defaults, made._json_names = tuple(fields), defaults, names
        made._rename = rename
        made._frozen = frozen if frozen is not None else any(base._frozen for base in above)
        return made


def _renamed(rename: Any, name: str) -> str:
    if rename is None:
        return name
    if isinstance(rename, Mapping):
        return str(rename.get(name, name))
    return _RENAMES[rename](name)


class Struct(metaclass=_StructMeta):
    """An object with declared fields."""

    __slots__ = ()

    def __init__(self, *values: Any, **named: Any) -> None:
        kind = type(self)
        if len(values) > len(kind._fields):
            raise TypeError("Extra positional arguments provided")
        given = dict(zip(kind._fields, values, strict=False))
        for name, value in named.items():
            if name in given:
                raise TypeError(f"Argument '{name}' given by name and position")
            if name not in kind._defaults:
                raise TypeError(f"Unexpected keyword argument '{name}'")
            given[name] = value
        for name in kind._fields:
            object.__setattr__(self, name, given[name] if name in given else _default(kind, name))

    def __setattr__(self, name: str, value: Any) -> None:
        if type(self)._frozen:
            raise AttributeError(f"immutable type: '{type(self).__name__}'")
        object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in type(self)._fields)

    def __hash__(self) -> int:
        if not type(self)._frozen:
            raise TypeError(f"unhashable type: '{type(self).__name__}'")
        return hash(tuple(getattr(self, name) for name in type(self)._fields))

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={getattr(self, name)!r}" for name in type(self)._fields)
        return f"{type(self).__name__}({inner})"


def _default(kind: _StructMeta, name: str) -> Any:
    found = kind._defaults[name]
    if found.default_factory is not _UNSET:
        return found.default_factory()
    if found.default is _UNSET:
        raise TypeError(f"Missing required argument '{name}'")
    return found.default.copy() if isinstance(found.default, (list, dict, set)) else found.default


class Meta:
    """A bound of a value. The archive reads nothing with bounds: a type with one cannot be decoded here."""

    def __init__(self, **_bounds: float) -> None:
        pass


# --- From JSON to values of a type ------------------------------------------------------------------------------------


def _loaded(text: Any) -> Any:
    if isinstance(text, Raw):
        return text._parsed()
    read = text if isinstance(text, str) else bytes(text).decode()  # a UnicodeDecodeError, as the original's
    try:
        return _json.loads(read, parse_constant=_refuse)
    except ValueError as error:
        raise DecodeError("Input data was truncated" if not read.strip() else f"JSON is malformed: {error}") from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _dumped(value: Any) -> bytes:
    return _json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=_plain).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, Raw):
        return value._parsed()
    if isinstance(value, Struct):
        return {type(value)._json_names[name]: getattr(value, name) for name in type(value)._fields}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


_NAMES = {
    str: "str",
    bool: "bool",
    int: "int",
    float: "float",
    list: "array",
    dict: "object",
    type(None): "null",
}


def _expected(names: str, value: Any) -> _Wrong:
    return _Wrong(f"Expected `{names}`, got `{_NAMES[type(value)]}`")


def _any(value: Any) -> Any:
    return value


def _exactly(kind: type) -> Convert:
    name = _NAMES[kind]

    def convert(value: Any) -> Any:
        if type(value) is not kind:
            raise _expected(name, value)
        return value

    return convert


def _float(value: Any) -> Any:
    if type(value) not in {int, float}:
        raise _expected("float", value)
    return float(value)


def _none(value: Any) -> Any:
    if value is not None:
        raise _expected("null", value)


def _array(item: Convert, make: Callable[[list[Any]], Any]) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not list:
            raise _expected("array", value)
        made: list[Any] = []
        try:
            made.extend(item(each) for each in value)
        except _Wrong as error:
            error.places.append(f"[{len(made)}]")
            raise
        return made if make is list else make(made)

    return convert


def _object(item: Convert) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not dict:
            raise _expected("object", value)
        try:
            return {key: item(each) for key, each in value.items()}
        except _Wrong as error:
            error.places.append("[...]")
            raise

    return convert


def _either(choices: Sequence[tuple[str, Convert]]) -> Convert:
    """Accept one type, or null: the only unions that our objects have, besides of plain types."""
    names = "` | `".join(name for name, _ in choices)
    (only,) = [convert for name, convert in choices if name != "null"] if len(choices) == 2 else [None]

    def convert(value: Any) -> Any:
        if value is None:
            return None
        if only is not None:
            try:
                return only(value)
            except _Wrong as error:
                if not error.places and str(error).startswith("Expected"):
                    raise _Wrong(
                        f"Expected `{' | '.join(name for name, _ in choices)}`, got `{_NAMES[type(value)]}`"
                    ) from None
                raise
        raise _expected(names, value)

    return convert


def _fields(
    make: Callable[[dict[str, Any]], Any], fields: Mapping[str, tuple[str, Convert]], required: Sequence[str]
) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not dict:
            raise _expected("object", value)
        given = {}
        for key, each in value.items():
            found = fields.get(key)
            if found is not None:
                name, inner = found
                try:
                    given[name] = inner(each)
                except _Wrong as error:
                    error.places.append(f".{key}")
                    raise
        for key in required:
            if fields[key][0] not in given:
                raise _Wrong(f"Object missing required field `{key}`")
        return make(given)

    return convert


class _Kinds:
    """What converts values to each type, made once for each decoder."""

    def __init__(self) -> None:
        self._made: dict[Any, Convert] = {}

    def convert(self, kind: Any) -> Convert:
        plain: Mapping[Any, Convert] = {
            Any: _any,
            Raw: Raw._of,
            str: _exactly(str),
            bool: _exactly(bool),
            int: _exactly(int),
            float: _float,
            None: _none,
            type(None): _none,
            list: _exactly(list),
            dict: _exactly(dict),
        }
        if kind in plain:
            return plain[kind]
        if kind not in self._made:
            # A struct may contain itself: until it is made, its own converter is looked up at each use.
            self._made[kind] = lambda value: self._made[kind](value)  # noqa: PLW0108 - later it is another one
            self._made[kind] = self._make(kind)
        return self._made[kind]

    def _make(self, kind: Any) -> Convert:
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin in {typing.Union, types.UnionType}:
            return _either([(self._name(each), self.convert(each)) for each in arguments])
        if origin is list:
            return _array(self.convert(arguments[0]), list)
        if origin is tuple and arguments[1:] == (...,):
            return _array(self.convert(arguments[0]), tuple)
        if origin in {dict, Mapping}:
            return _object(self.convert(arguments[1]))
        if isinstance(kind, _StructMeta):
            return self._struct(kind)
        if dataclasses.is_dataclass(kind):
            return self._dataclass(kind)
        raise TypeError(f"Type '{kind}' is not supported by this stand-in")

    def _name(self, kind: Any) -> str:
        origin = typing.get_origin(kind) or kind
        if origin in {list, tuple}:
            return "array"
        return _NAMES.get(origin if origin is not None else type(None), "object")

    def _hints(self, kind: Any) -> Mapping[str, Any]:
        # By class: the annotations of a base are names of the base's module.
        found: dict[str, Any] = {}
        for each in reversed(kind.__mro__):
            names = vars(sys.modules[each.__module__]) if each.__module__ in sys.modules else {}
            for name, hint in vars(each).get("__annotations__", {}).items():
                found[name] = eval(hint, dict(names)) if isinstance(hint, str) else hint  # noqa: S307 - our own annotations
        return found

    def _struct(self, kind: _StructMeta) -> Convert:
        hints = self._hints(kind)
        fields = {kind._json_names[name]: (name, self.convert(hints[name])) for name in kind._fields}
        required = [
            kind._json_names[name]
            for name in kind._fields
            if kind._defaults[name].default is _UNSET and kind._defaults[name].default_factory is _UNSET
        ]
        plain = {name: kind._defaults[name].default for name in kind._fields}
        constant = {
            name: value
            for name, value in plain.items()
            if value is not _UNSET and not isinstance(value, (list, dict, set))
        }
        others = [name for name in kind._fields if name not in constant and kind._json_names[name] not in required]
        put = object.__setattr__
        empty: Any = object.__new__

        def make(given: dict[str, Any]) -> Any:
            made = empty(kind)
            for name, value in constant.items():
                if name not in given:
                    put(made, name, value)
            for name in others:
                if name not in given:
                    put(made, name, _default(kind, name))
            for name, value in given.items():
                put(made, name, value)
            return made

        return _fields(make, fields, required)

    def _dataclass(self, kind: Any) -> Convert:
        hints = self._hints(kind)
        listed = [each for each in dataclasses.fields(kind) if each.init]
        fields = {each.name: (each.name, self.convert(hints[each.name])) for each in listed}
        required = [
            each.name
            for each in listed
            if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
        ]
        return _fields(lambda given: kind(**given), fields, required)


class _Decoder:
    """Decodes JSON to values of one type."""

    def __init__(self, type: Any = Any) -> None:  # noqa: A002 - the original's word
        self._convert = _Kinds().convert(type)

    def __class_getitem__(cls, _item: Any) -> Any:
        return cls

    def decode(self, text: Any) -> Any:
        """Return the value.

        Raises:
            DecodeError: the text is no JSON.
            ValidationError: it is not of this type.
            UnicodeDecodeError: it is not UTF-8.
        """
        value = _loaded(text)
        try:
            return self._convert(value)
        except _Wrong as error:
            where = "".join(reversed(error.places))
            raise ValidationError(f"{error}{f' - at `${where}`' if where else ''}") from None


_decoder = cache(_Decoder)


def _decode(text: Any, *, type: Any = Any) -> Any:  # noqa: A002
    """Return the value of a text; see `_Decoder.decode`."""
    return _decoder(type).decode(text)


def _convert(value: Any, type: Any) -> Any:  # noqa: A002
    """Return a value of a type, of values as JSON has them."""
    return _decode(Raw._of(value), type=type)


convert = _convert
json = types.SimpleNamespace(Decoder=_Decoder, decode=_decode, encode=_dumped)
