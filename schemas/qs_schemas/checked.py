"""Makes dataclasses whose fields of text hold text and nothing else.

Bytes that are given for a field of text are decoded, and any other type is refused, whenever the field is set.
Otherwise a queue's name that is bytes would become a queue called `b'orders'`, somewhere else and later.

Values that are read from a document are text already. The parsers of this package set them unchecked, under the field's
name with a `_` in front, since each request would pay for a check that finds nothing.
"""

import dataclasses
import types
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform, get_args, get_origin, overload

_C = TypeVar("_C")
_MISSING: Any = object()  # stands for an argument that was not given, where None could be one
_LITERALS: dict[Any, str] = {list: "[]", dict: "{}"}
"""What makes an empty list or dict in less time than a call."""
_Check = Callable[[str, Any], Any]
"""A function of a field's name and a value that returns the value as it is kept."""


def text(name: str, value: object) -> str:
    """Returns a value as the text of a field. value: a str, or bytes in UTF-8. Raises TypeError for any other type, and
    ValueError for bytes that are not UTF-8."""
    if isinstance(value, str):
        return value
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"{name} is text, a str or bytes in UTF-8, not {type(value).__name__}")
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        raise ValueError(f"{name} is not UTF-8: {bytes(value)[:100]!r}") from None


def _text_or_none(name: str, value: object) -> str | None:
    return None if value is None else text(name, value)


def _texts(name: str, value: Any) -> Any:
    """Returns a list of text. Returns a list that holds only text itself, so that the caller may go on to fill the
    list."""
    if value is None or (isinstance(value, list) and all(type(entry) is str for entry in value)):
        return value
    if isinstance(value, str | bytes | bytearray | memoryview) or not hasattr(value, "__iter__"):
        raise TypeError(f"{name} is a list of text, not {type(value).__name__}")
    return [text(name, entry) for entry in value]


def _texts_by_name(name: str, value: Any) -> Any:
    """Returns a dict of text, by text. Returns a dict that holds only text itself, so that the caller may go on to fill
    the dict."""
    if value is None or (type(value) is dict and all(type(part) is str for entry in value.items() for part in entry)):
        return {} if value is None else value
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is a mapping of text to text, not {type(value).__name__}")
    return {text(name, key): text(name, entry) for key, entry in value.items()}


def _check_of(hint: Any) -> _Check | None:
    """Returns the function that checks the values of a field, or None if the field does not hold text."""
    if hint is str:
        return text
    if isinstance(hint, types.UnionType) and set(get_args(hint)) == {str, types.NoneType}:
        return _text_or_none
    if get_origin(hint) is dict and get_args(hint) == (str, str):
        return _texts_by_name
    return _texts if get_origin(hint) is list and get_args(hint) == (str,) else None


_OF_SEVERAL = (_texts, _texts_by_name)
"""The checks of values that are no str themselves."""


@overload
def checked(cls: type[_C], /) -> type[_C]: ...


@overload
def checked(*, kw_only: bool = ...) -> Callable[[type[_C]], type[_C]]: ...


@dataclass_transform(field_specifiers=(dataclasses.field,))
def checked(cls: type[Any] | None = None, /, *, kw_only: bool = False) -> Any:
    """Makes a dataclass with slots whose fields of text check every value that is set, also by the constructor."""
    if cls is None:
        return partial(checked, kw_only=kw_only)
    # dataclass() would compile three methods for each class, and the constructor among them is replaced anyway:
    # compiling all three took longer than all else that a short command does.
    # Messages can be changed, so they have no hash: as keys they would be lost.
    for name, method in (("__repr__", _repr), ("__eq__", _equal), ("__hash__", None)):
        setattr(cls, name, method)
    made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(cls)
    checks = {field.name: check for field in dataclasses.fields(made) if (check := _check_of(field.type))}
    for name, check in checks.items():
        member = made.__dict__.get(name)
        if isinstance(member, types.MemberDescriptorType):  # else it is inherited, from a class that checks it
            # The slot moves to `_name`, and a property that checks takes its name. A getter in C costs a read least.
            setattr(made, f"_{name}", member)
            setattr(made, name, property(attrgetter(f"_{name}"), _setter(name, check, member.__set__)))
    made.__init__ = _constructor(made, checks)
    return made


def _repr(self: Any) -> str:
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _equal(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    names = (field.name for field in dataclasses.fields(self) if field.compare)
    return all(getattr(self, name) == getattr(other, name) for name in names)


def _setter(name: str, check: _Check, store: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    if check in _OF_SEVERAL:
        return lambda message, value: store(message, check(name, value))
    return lambda message, value: store(message, value if value.__class__ is str else check(name, value))


def _constructor(cls: type[Any], checks: dict[str, _Check]) -> Callable[..., None]:
    """Makes a constructor like that of a dataclass, which also checks the fields of text. A value that is a str already
    costs no call: constructors are on the path of every request."""
    positional: list[str] = []
    named: list[str] = []
    body: list[str] = []
    scope: dict[str, Any] = {"missing": _MISSING}
    for field in dataclasses.fields(cls):
        name, value, parameter = field.name, field.name, field.name
        # For `qid: str | None = None` this makes the parameter `qid=default_qid` and the line
        # `self._qid = None if qid is None else qid if qid.__class__ is str else check_qid('qid', qid)`.
        if name in checks:
            scope[f"check_{name}"] = checks[name]
            value = f"check_{name}({name!r}, {name})"
            if checks[name] not in _OF_SEVERAL:  # most values are a str already, and a call takes time
                value = f"{name} if {name}.__class__ is str else {value}"
            if checks[name] is _text_or_none:
                value = f"None if {name} is None else {value}"
        if field.default is not dataclasses.MISSING:
            scope[f"default_{name}"], parameter = field.default, f"{name}=default_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            scope[f"new_{name}"], parameter = field.default_factory, f"{name}=missing"
            made = _LITERALS.get(field.default_factory, f"new_{name}()")
            value = f"{made} if {name} is missing else {value}"
        (named if field.kw_only else positional).append(parameter)
        body.append(f"    self.{'_' if name in checks else ''}{name} = {value}")
    parameters = ", ".join(["self", *positional, *(["*", *named] if named else [])])
    exec("\n".join([f"def __init__({parameters}):", *body]), scope)  # noqa: S102 - names of fields and nothing else
    constructor: Callable[..., None] = scope["__init__"]
    constructor.__qualname__ = f"{cls.__qualname__}.__init__"
    constructor.__annotations__ = {field.name: field.type for field in dataclasses.fields(cls)} | {"return": None}
    return constructor
