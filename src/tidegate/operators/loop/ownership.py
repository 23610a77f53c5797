"""Protect records that wait in a buffer from changes: a function may continue to use a record that it has emitted.

``own`` returns a value that no one else can change. Numbers, texts and tuples of them are returned themselves; a value
that can change is copied. A declared output type that can hold nothing else (``is_immutable``) needs no check.
"""

from __future__ import annotations

import copy
import datetime
import decimal
import enum
import logging
import pickle
import sys
import types
import uuid
from collections.abc import Callable, Iterable
from operator import attrgetter

import msgspec

from tidegate.base.user_code import UserValue
from tidegate.common.time import Instant
from tidegate.common.typeinfo import BasicTypeInfo, DateTypeInfo, TimestampTypeInfo, TimeTypeInfo, TupleTypeInfo
from tidegate.common.types import Row
from tidegate.graph.transformation import OutputTag

log = logging.getLogger(__name__)

ATOMS = frozenset(
    {
        *(int, str, float, bool, bytes, complex, type(None), range, type, OutputTag, Instant, uuid.UUID),
        *(datetime.date, datetime.time, datetime.datetime, datetime.timedelta, datetime.timezone, decimal.Decimal),
        *(types.FunctionType, types.BuiltinFunctionType),
    }
)
"""Classes of values that cannot change. Exactly these: a subclass may have fields."""


def is_immutable(info: object) -> bool:
    """Tell whether records of a declared type cannot change. False for None: no type was declared."""
    if isinstance(info, TupleTypeInfo):
        return all(map(is_immutable, info.get_field_types()))
    return isinstance(info, BasicTypeInfo | DateTypeInfo | TimeTypeInfo | TimestampTypeInfo)


def own(value: UserValue) -> UserValue:
    """Return the value, if it cannot change; otherwise a deep copy."""
    kind = value.__class__
    if kind in ATOMS:
        return value
    rule = _RULES.get(kind) or _learned(kind)
    if rule is None:
        return _through_pickle(value)
    parts, copied = rule
    try:
        if not ATOMS.issuperset(map(type, parts(value))):
            return _through_pickle(value)
    except AttributeError:  # a slot without a value
        return _through_pickle(value)
    return value if copied is None else copied(value)


def _through_pickle(value: UserValue) -> UserValue:
    """Return a copy as any buffer would give it back. A value that cannot be pickled is refused where it is sent, not
    here."""
    if isinstance(value, enum.Enum):
        return value
    duplicates: list[Callable[[UserValue], UserValue]] = [lambda v: pickle.loads(pickle.dumps(v, 5)), copy.deepcopy]
    for duplicate in duplicates:
        try:
            return duplicate(value)
        except Exception as error:
            log.debug("no copy of a %s: %s", type(value).__name__, error)
    return value


Rule = tuple[Callable[[UserValue], Iterable[UserValue]], Callable[[UserValue], UserValue] | None]
"""The parts of a value that may change, and how to copy a value whose parts cannot. None: such a value cannot change itself."""


def _no_parts(value: UserValue) -> Iterable[UserValue]:
    return ()


_RULES: dict[type, Rule] = {
    tuple: (iter, None),
    list: (iter, list.copy),
    dict: (dict.values, dict.copy),
    set: (_no_parts, set.copy),
    frozenset: (_no_parts, None),
    bytearray: (_no_parts, bytearray.copy),
    Row: (iter, copy.copy),
}
"""Members of sets and keys of dicts cannot change: they are hashed. Rules of the users' classes are added as they are met."""
_MOST_RULES = 1_000
"""A program that makes classes without end keeps no more of them alive."""
_HOOKS = ("__reduce__", "__reduce_ex__", "__getstate__", "__getattribute__", "__new__")
_OWN_HOOKS = ("__setstate__", "__getnewargs__", "__getnewargs_ex__", "__copy__", "__deepcopy__", "__del__")
_STRUCT_HOOKS = ("__copy__", "__reduce__", "__reduce_ex__", "__getattribute__")


def _learned(kind: type) -> Rule | None:
    """Find the rule of a class that is met for the first time: a copy by pickle takes ten times as long."""
    rule = _rule_of(kind)
    if rule is not None and len(_RULES) < _MOST_RULES:
        _RULES[kind] = rule
    return rule


def _rule_of(kind: type) -> Rule | None:
    if issubclass(kind, enum.Enum):
        return _no_parts, None
    if is_named_tuple(kind):
        return iter, None
    if issubclass(kind, msgspec.Struct):
        if any(getattr(kind, hook) is not getattr(msgspec.Struct, hook) for hook in _STRUCT_HOOKS):
            return None
        copied = None if kind.__struct_config__.frozen else copy.copy
        return None if kind.__dictoffset__ else (msgspec.structs.astuple, copied)
    if is_plain_model(kind):
        return _model_parts, None if kind.model_config.get("frozen") else _same_model  # type: ignore[attr-defined]
    if kind.__new__ is not object.__new__ or kind.__getattribute__ is not object.__getattribute__:
        return None
    if "__dataclass_params__" in kind.__dict__ and kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return _attributes(kind), None
    if slots := plain_slots(kind):
        return _attributes(kind), _with_same_slots(kind, slots)
    if _has_hooks(kind) or _slots(kind) or not kind.__dictoffset__:
        return None
    return _attributes(kind), _with_same_attributes


def is_named_tuple(kind: type) -> bool:
    """Return whether the class is a named tuple as Python makes them: its objects are tuples, and nothing else."""
    changed = ("__iter__", "__reduce__", "__reduce_ex__", "__getstate__", "__copy__", "__deepcopy__")
    return (
        issubclass(kind, tuple)
        and isinstance(vars(kind).get("_fields"), tuple)
        and kind.__bases__ == (tuple,)
        and not kind.__dictoffset__
        and not any(hook in vars(kind) for hook in changed)
    )


_MODEL_SLOTS = ["__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__"]
MODEL_STATE: Callable[[UserValue], tuple[UserValue, ...]] = attrgetter(*_MODEL_SLOTS)
"""All that a model of pydantic consists of. Most have no extra and no private attributes: these are None."""


def is_plain_model(kind: type) -> bool:
    """Return whether the class is a model of pydantic that is copied and pickled as pydantic does it."""
    base = getattr(sys.modules.get("pydantic.main"), "BaseModel", None)
    if base is None or not issubclass(kind, base) or list(getattr(base, "__slots__", ())) != _MODEL_SLOTS:
        return False
    hooks = [hook for hook in (*_HOOKS, *_OWN_HOOKS) if hasattr(base, hook) or hasattr(kind, hook)]
    own = any(getattr(kind, hook, None) is not getattr(base, hook, None) for hook in hooks)
    return not own and sorted(set(_slots(kind))) == sorted(set(_slots(base)))


def _model_parts(value: UserValue) -> Iterable[UserValue]:
    fields, _, extra, private = MODEL_STATE(value)
    return [*fields.values(), extra, private]


def _same_model(value: UserValue) -> UserValue:
    made: UserValue = object.__new__(value.__class__)
    keep(made, "__dict__", value.__dict__.copy())
    keep(made, "__pydantic_fields_set__", value.__pydantic_fields_set__.copy())
    keep(made, "__pydantic_extra__", None)
    keep(made, "__pydantic_private__", None)
    return made


keep = object.__setattr__
"""Set an attribute past ``__setattr__`` of its class, as pickle does."""


def plain_slots(kind: type) -> list[str]:
    """Return the slots of a class that has no other attributes and is pickled by them; none for other classes."""
    if kind.__dictoffset__ or kind.__new__ is not object.__new__:  # type: ignore[comparison-overlap]
        return []
    made_by_dataclass = getattr(kind.__getstate__, "__name__", "") == "_dataclass_getstate"  # of frozen ones
    return _slots(kind) if made_by_dataclass or not _has_hooks(kind) else []


def _has_hooks(kind: type) -> bool:
    own = any(getattr(kind, hook) is not getattr(object, hook) for hook in _HOOKS if hasattr(object, hook))
    return own or any(hasattr(kind, hook) for hook in _OWN_HOOKS)


def _attributes(kind: type) -> Callable[[UserValue], Iterable[UserValue]]:
    slots = _slots(kind)

    def attributes(value: UserValue) -> Iterable[UserValue]:
        found = [getattr(value, slot) for slot in slots]
        return [*found, *value.__dict__.values()] if kind.__dictoffset__ else found

    if slots:
        return attributes
    return (lambda value: value.__dict__.values()) if kind.__dictoffset__ else _no_parts


def _slots(kind: type) -> list[str]:
    """Return the slots of a class and its bases, by the names that ``getattr`` takes."""
    return [
        name
        for base in kind.__mro__
        for name, found in base.__dict__.items()
        if isinstance(found, types.MemberDescriptorType)
    ]


def _with_same_slots(kind: type, slots: list[str]) -> Callable[[UserValue], UserValue]:
    """Return the function that copies an object with these slots, as pickle does: a frozen class refuses other ways."""
    parts: Callable[[UserValue], Iterable[UserValue]] = _attributes(kind)
    setters = [getattr(kind, slot).__set__ for slot in slots]

    def copied(value: UserValue) -> UserValue:
        made: UserValue = object.__new__(kind)
        for put, part in zip(setters, parts(value), strict=True):
            put(made, part)
        return made

    return copied


def _with_same_attributes(value: UserValue) -> UserValue:
    """Copy an object as pickle copies an object of a class without hooks."""
    made = object.__new__(value.__class__)
    made.__dict__.update(value.__dict__)
    return made
