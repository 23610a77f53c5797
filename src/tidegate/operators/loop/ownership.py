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
import types
import uuid
from collections.abc import Callable, Iterable

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
    parts = _PARTS.get(kind)
    if parts is None or not ATOMS.issuperset(map(type, parts(value))):
        return _through_pickle(value)
    return value if kind is tuple else copy.copy(value)


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


_PARTS: dict[type, Callable[[UserValue], Iterable[UserValue]]] = {
    tuple: iter,
    list: iter,
    dict: dict.values,
    set: lambda value: (),
    frozenset: lambda value: (),
    bytearray: lambda value: (),
    Row: iter,
}
"""Parts of a container that may change. Members of sets and keys of dicts cannot: they are hashed."""
