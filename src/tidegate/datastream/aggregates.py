"""Built-in aggregations: count, sum, min, max, avg, first, last, distinct values, greatest values, percentiles.

Several of them are one ``AggregateFunction``, so windows, state, snapshots and rescale treat them as any other. Where a batch
reaches a window as columns, ``fold_columns`` adds all records of a key and slice at once. It adds them in the order of the
records and gives up where a result could differ: only the speed depends on it.
"""

from __future__ import annotations

import itertools
import math
from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegate.base.arguments import wrong
from tidegate.base.errors import ProgramError
from tidegate.common.typeinfo import RowTypeInfo, TupleTypeInfo, TypeInformation, Types
from tidegate.datastream.aggregations import Field, _get, expect_field
from tidegate.datastream.functions import AggregateFunction
from tidegate.operators.contracts.arrow_batch import ArrowBatch
from tidegate.operators.contracts.batch import FLOAT, HIGHEST, INT, LOWEST, TEXT, Batch, Column, Int64s

Part = Any
"""The accumulator of one aggregation; it is never changed in place, except by the aggregation that made it."""
Parts = list[Part]


class _Kind:
    """Define one aggregation: ``start`` is the empty part, ``add`` and ``merge`` return a part. Missing values never arrive."""

    start: Part = None
    changes_parts: bool = False
    """``fold`` changes parts in place: it runs after all others, and then never returns None."""

    def fresh(self) -> Part:
        return self.start

    def add(self, part: Part, value: Any) -> Part:
        raise NotImplementedError

    def merge(self, first: Part, second: Part) -> Part:
        """Merge two parts, of which neither is empty."""
        return self.add(first, second)

    def result(self, part: Part) -> Any:
        return part

    def result_type(self, field: TypeInformation) -> TypeInformation:
        return field

    def fold(self, parts: Parts, groups: Int64s, column: Column) -> Parts | None:
        """Add each value of the column to the part of its group. None: add the values one by one."""
        raise NotImplementedError

    def takes(self, parts: Parts, column: Column) -> bool:
        """Tell whether ``fold`` can add the column, for an aggregation that changes parts."""
        return True


class _Count(_Kind):
    start = 0

    def add(self, part: Part, value: Any) -> Part:
        return part + 1

    def merge(self, first: Part, second: Part) -> Part:
        return first + second

    def result_type(self, field: TypeInformation) -> TypeInformation:
        return Types.LONG()

    def fold(self, parts: Parts, groups: Int64s, column: Column) -> Parts | None:
        counts = np.bincount(groups, minlength=len(parts)).tolist()
        return [part + count for part, count in zip(parts, counts, strict=True)]


class _Sum(_Kind):
    def add(self, part: Part, value: Any) -> Part:
        return value if part is None else part + value

    def result_type(self, field: TypeInformation) -> TypeInformation:
        name = field.describe()
        if name in ("BYTE", "SHORT", "INT", "LONG"):
            return Types.LONG()
        return Types.DOUBLE() if name in ("FLOAT", "DOUBLE") else Types.PICKLED_BYTE_ARRAY()

    def fold(self, parts: Parts, groups: Int64s, column: Column) -> Parts | None:
        known = [part for part in parts if part is not None]
        if column.dtype.kind == FLOAT and _all(known, float):
            # -0.0 changes no number, not even -0.0
            start = [-0.0 if part is None else part for part in parts]
            return _with_missing(parts, groups, _at(np.add, start, groups, column))
        if column.dtype.kind != INT or not _all(known, int):
            return None
        most = len(column) * max(abs(int(column.min())), abs(int(column.max()))) + max(map(abs, known), default=0)
        if most > HIGHEST:
            return None  # Python's ints have no end
        return _with_missing(parts, groups, _at(np.add, [part or 0 for part in parts], groups, column))


class _Min(_Kind):
    _ufunc: Any = np.minimum
    _ends: tuple[int, float] = (HIGHEST, math.inf)

    def add(self, part: Part, value: Any) -> Part:
        return value if part is None or value < part else part

    def fold(self, parts: Parts, groups: Int64s, column: Column) -> Parts | None:
        known = [part for part in parts if part is not None]
        if column.dtype.kind == INT and _all(known, int):
            if any(not LOWEST <= part <= HIGHEST for part in known):
                return None
            start = [self._ends[0] if part is None else part for part in parts]
            return _with_missing(parts, groups, _at(self._ufunc, start, groups, column))
        if column.dtype.kind == TEXT:
            return self._fold_texts(parts, groups, column) if _all([*known, *column.tolist()], str) else None
        if column.dtype.kind != FLOAT or not _all(known, float):
            return None
        every = np.concatenate([column, np.array(known, np.float64)])
        if _is_ambiguous(every):
            return None  # of equal zeros the first stays, and NaN is a matter of order
        start = [self._ends[1] if part is None else part for part in parts]
        return _with_missing(parts, groups, _at(self._ufunc, start, groups, column))

    def _fold_texts(self, parts: Parts, groups: Int64s, column: Column) -> Parts:
        found = list(parts)
        for group, values in _by_group(groups, column):
            part = found[group]
            found[group] = self._extreme(values if part is None else [part, *values])
        return found

    def _extreme(self, values: list[Any]) -> Any:
        return min(values)


class _Max(_Min):
    _ufunc: Any = np.maximum
    _ends = (LOWEST, -math.inf)

    def _extreme(self, values: list[Any]) -> Any:
        return max(values)

    def add(self, part: Part, value: Any) -> Part:
        return value if part is None or value > part else part


class _Avg(_Kind):
    """The part is the sum and the count."""

    def add(self, part: Part, value: Any) -> Part:
        return (value, 1) if part is None else (part[0] + value, part[1] + 1)

    def merge(self, first: Part, second: Part) -> Part:
        return first[0] + second[0], first[1] + second[1]

    def result(self, part: Part) -> Any:
        return None if part is None else part[0] / part[1]

    def result_type(self, field: TypeInformation) -> TypeInformation:
        return Types.DOUBLE() if _Sum().result_type(field) in (Types.LONG(), Types.DOUBLE()) else _UNKNOWN

    def fold(self, parts: Parts, groups: Int64s, column: Column) -> Parts | None:
        sums = _Sum().fold([None if part is None else part[0] for part in parts], groups, column)
        counts = _Count().fold([0 if part is None else part[1] for part in parts], groups, column)
        if sums is None or counts is None:
            return None
        return [(total, count) if count else None for total, count in zip(sums, counts, strict=True)]


class _First(_Kind):
    def add(self, part: Part, value: Any) -> Part:
        return value if part is None else part

    def fold(self, parts: Parts, groups: Int64s, column: Column) -> Parts | None:
        where = np.full(len(parts), -1)
        where[groups[::-1]] = np.arange(len(groups))[::-1]
        places = zip(parts, where.tolist(), strict=True)
        return [column.item(n) if part is None and n >= 0 else part for part, n in places]


class _Last(_Kind):
    def add(self, part: Part, value: Any) -> Part:
        return value

    def fold(self, parts: Parts, groups: Int64s, column: Column) -> Parts | None:
        where = np.full(len(parts), -1)
        where[groups] = np.arange(len(groups))
        return [part if n < 0 else column.item(n) for part, n in zip(parts, where.tolist(), strict=True)]


class _Distinct(_Kind):
    """The part is the set of the values."""

    changes_parts = True

    def fresh(self) -> Part:
        return set()

    def add(self, part: Part, value: Any) -> Part:
        part.add(value)
        return part

    def merge(self, first: Part, second: Part) -> Part:
        return first | second

    def fold(self, parts: Parts, groups: Int64s, column: Column) -> Parts | None:
        for group, values in _by_group(groups, column):
            parts[group].update(values)
        return parts

    def takes(self, parts: Parts, column: Column) -> bool:
        return column.dtype.kind != TEXT or _all(column.tolist(), str)  # other objects may have no hash

    def result(self, part: Part) -> Any:
        return len(part)

    def result_type(self, field: TypeInformation) -> TypeInformation:
        return Types.LONG()


class _Top(_Kind):
    """The part is the list of the greatest values, in ascending order."""

    changes_parts = True

    def __init__(self, n: int) -> None:
        self._n = n

    def fresh(self) -> Part:
        return []

    def add(self, part: Part, value: Any) -> Part:
        if len(part) < self._n or value > part[0]:
            insort(part, value)
            del part[: -self._n]
        return part

    def merge(self, first: Part, second: Part) -> Part:
        return sorted(first + second)[-self._n :]

    def fold(self, parts: Parts, groups: Int64s, column: Column) -> Parts | None:
        for group, values in _by_group(groups, column):
            part = parts[group]
            part[:] = sorted(part + values)[-self._n :]
        return parts

    def takes(self, parts: Parts, column: Column) -> bool:
        """Of equal values the first stays: that must not show."""
        kind = {INT: int, FLOAT: float, TEXT: str}.get(column.dtype.kind)
        values = column.tolist() if kind is str else []
        if kind is None or not all(_all([*part, *values], kind) for part in parts):
            return False
        return kind is not float or not any(map(_is_ambiguous, [column, *map(_floats, parts)]))

    def result(self, part: Part) -> Any:
        return part[::-1]

    def result_type(self, field: TypeInformation) -> TypeInformation:
        return Types.LIST(field)


class _Percentile(_Kind):
    """The part counts values in buckets whose bounds grow by a constant factor (DDSketch): each value of a bucket differs from
    the bucket's own value by at most ``error``, relatively. Buckets of two parts are the same, so parts merge exactly."""

    changes_parts = True

    def __init__(self, percent: float, error: float) -> None:
        self._rank, self._gamma = percent / 100, (1 + error) / (1 - error)
        self._log = math.log(self._gamma)

    def fresh(self) -> Part:
        return {}

    def add(self, part: Part, value: Any) -> Part:
        bucket = self._bucket(value)
        part[bucket] = part.get(bucket, 0) + 1
        return part

    def _bucket(self, value: Any) -> tuple[int, int]:
        """Return sign and number of the bucket; the order of buckets is that of their values."""
        if value == 0:
            return 0, 0
        number = self._number(value)
        return (1, number) if value > 0 else (-1, -number)

    def merge(self, first: Part, second: Part) -> Part:
        return {bucket: first.get(bucket, 0) + second.get(bucket, 0) for bucket in {**first, **second}}

    def fold(self, parts: Parts, groups: Int64s, column: Column) -> Parts | None:
        signs, numbers = self._buckets(column)
        buckets, places = np.unique(numbers * 4 + (signs + 1), return_inverse=True)
        pairs = list(zip((buckets % 4 - 1).tolist(), (buckets // 4).tolist(), strict=True))
        found, counts = np.unique(groups * len(buckets) + places, return_counts=True)
        for place, count in zip(found.tolist(), counts.tolist(), strict=True):
            group, number = divmod(place, len(buckets))
            part, bucket = parts[group], pairs[number]
            part[bucket] = part.get(bucket, 0) + count
        return parts

    def _buckets(self, column: Column) -> tuple[Int64s, Int64s]:
        """Return sign and number of the bucket of each value: exactly what ``_bucket`` returns."""
        values = column.astype(np.float64)
        present = values != 0
        places = np.ones(len(values))
        np.log(np.abs(values), out=places, where=present)
        np.divide(places, self._log, out=places, where=present)
        numbers = np.where(present, np.ceil(places), 0).astype(np.int64)
        signs = np.sign(values).astype(np.int64)
        # numpy's logarithm may differ from Python's in its last bit
        near = present & (np.abs(places - np.round(places)) < _NEAR + np.abs(places) * _NEAR)
        numbers[near] = [self._number(value) for value in column[near].tolist()]
        return signs, np.where(values < 0, -numbers, numbers)

    def _number(self, value: Any) -> int:
        return math.ceil(math.log(abs(value)) / self._log)

    def takes(self, parts: Parts, column: Column) -> bool:
        return column.dtype.kind == INT or (column.dtype.kind == FLOAT and bool(np.isfinite(column).all()))

    def result(self, part: Part) -> Any:
        wanted, seen = self._rank * (sum(part.values()) - 1), 0
        for sign, number in sorted(part):
            seen += part[sign, number]
            if seen > wanted:
                return sign * 2 * self._gamma ** (sign * number) / (self._gamma + 1) if sign else 0.0
        return None

    def result_type(self, field: TypeInformation) -> TypeInformation:
        return Types.DOUBLE()


_UNKNOWN: TypeInformation = Types.PICKLED_BYTE_ARRAY()
_NEAR = 1e-12
"""Closer to a bound of its bucket than this, a value's bucket is computed as for a single value."""


def _all(parts: Parts, kind: type) -> bool:
    return all(type(part) is kind for part in parts)


def _floats(part: Part) -> Column:
    return np.array(part, np.float64)


def _is_ambiguous(values: Column) -> bool:
    """Tell whether the order of floats decides which of them is the least or greatest: NaN, and zeros of both signs."""
    return bool(np.isnan(values).any() or np.signbit(values[values == 0]).any())


def _by_group(groups: Int64s, column: Column) -> Iterator[tuple[int, list[Any]]]:
    """Yield each group with its values, in their order."""
    order = np.argsort(groups, kind="stable")
    values, numbers = column[order].tolist(), groups[order]
    starts = [*np.flatnonzero(np.diff(numbers, prepend=-1)).tolist(), len(values)]
    for start, end in itertools.pairwise(starts):
        yield int(numbers[start]), values[start:end]


def _with_missing(before: Parts, groups: Int64s, after: Parts) -> Parts:
    """Return the parts, but None for a group that had no part and got no value: its values are missing."""
    if None not in before:
        return after
    counts = np.bincount(groups, minlength=len(before)).tolist()
    places = zip(before, after, counts, strict=True)
    return [None if part is None and not count else made for part, made, count in places]


def _at(ufunc: Any, parts: Parts, groups: Int64s, column: Column) -> Parts:
    """Apply the function in the order of the records, as a loop would: the rounding of floats depends on the order."""
    out = np.array(parts, np.float64 if column.dtype.kind == FLOAT else np.int64)
    with np.errstate(all="ignore"):
        ufunc.at(out, groups, column)
    values: Parts = out.tolist()
    return values


@dataclass(frozen=True)
class Aggregate:
    """One built-in aggregation of a field; made by ``Aggregates``. ``field`` None: of the records themselves."""

    name: str
    field: Field | None
    kind: _Kind
    skips_missing: bool = True


class Aggregates:
    """The built-in aggregations, for ``aggregate`` of windows. A field is a position of a tuple or row, or a name. Missing
    values (None) are skipped; without any value the result is None, and a count is 0."""

    @staticmethod
    def count(field: Field | None = None) -> Aggregate:
        """Count records; with a field, the records in which it is not missing."""
        return Aggregate("count", None if field is None else expect_field("count", field), _Count(), field is not None)

    @staticmethod
    def sum(field: Field = 0) -> Aggregate:
        """Add the values. Sums of integers are exact."""
        return Aggregate("sum", expect_field("sum", field), _Sum())

    @staticmethod
    def min(field: Field = 0) -> Aggregate:
        """Find the least value."""
        return Aggregate("min", expect_field("min", field), _Min())

    @staticmethod
    def max(field: Field = 0) -> Aggregate:
        """Find the greatest value."""
        return Aggregate("max", expect_field("max", field), _Max())

    @staticmethod
    def avg(field: Field = 0) -> Aggregate:
        """Find the mean."""
        return Aggregate("avg", expect_field("avg", field), _Avg())

    @staticmethod
    def first(field: Field = 0) -> Aggregate:
        """Keep the value that came first. Windows that share slices or merge take the earliest piece of time first."""
        return Aggregate("first", expect_field("first", field), _First())

    @staticmethod
    def last(field: Field = 0) -> Aggregate:
        """Keep the value that came last, as ``first``."""
        return Aggregate("last", expect_field("last", field), _Last())

    @staticmethod
    def count_distinct(field: Field = 0) -> Aggregate:
        """Count different values, exactly: the state holds all of them."""
        return Aggregate("count_distinct", expect_field("count_distinct", field), _Distinct())

    @staticmethod
    def top(n: int, field: Field = 0) -> Aggregate:
        """List the ``n`` greatest values, the greatest first."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise wrong("top", "a number of values from 1", n, "top(3, 'price')")
        return Aggregate("top", expect_field("top", field), _Top(n))

    @staticmethod
    def percentile(percent: float, field: Field = 0, *, error: float = 0.01) -> Aggregate:
        """Approximate a percentile of numbers, with at most this relative error, in a state of bounded size (DDSketch)."""
        if not 0 <= percent <= 100 or not 0 < error < 1:
            raise wrong(
                "percentile", "0 to 100, and an error between 0 and 1", (percent, error), "percentile(99, 'ms')"
            )
        return Aggregate("percentile", expect_field("percentile", field), _Percentile(percent, error))

    @staticmethod
    def of(*aggregates: Aggregate) -> Aggregation:
        """Combine aggregations to one AggregateFunction, whose result is a tuple: for a window function beside them."""
        return Aggregation(aggregates)


class Aggregation(AggregateFunction):
    """Compute several aggregations at once. Accumulator and result are tuples with one item for each."""

    def __init__(self, aggregates: tuple[Any, ...], info: TypeInformation | None = None) -> None:
        """``info``: the type of the records; None: fields are looked up in each record."""
        for aggregate in aggregates:
            if not isinstance(aggregate, Aggregate):
                raise wrong("aggregate", "aggregations of Aggregates", aggregate, 'Aggregates.sum("price")')
        if not aggregates:
            raise ProgramError("aggregate needs at least one aggregation", cure="for example Aggregates.count()")
        self.aggregates, self._info = aggregates, info
        self._kinds = [aggregate.kind for aggregate in aggregates]
        self._fields = [_position(aggregate, info) for aggregate in aggregates]
        self._steps = [
            (aggregate.kind.add, _getter(field, info), aggregate.skips_missing)
            for aggregate, field in zip(aggregates, self._fields, strict=True)
        ]

    def __reduce__(self) -> tuple[Any, ...]:
        return Aggregation, (self.aggregates, self._info)

    def typed(self, info: TypeInformation) -> Aggregation:
        """Return the same for records of the type. Raise ProgramError for a field that the type lacks."""
        return Aggregation(self.aggregates, info)

    @property
    def output_type(self) -> TypeInformation | None:
        """Return the type of the result; None if the type of a record is not known."""
        if self._info is None:
            return None
        types = [
            aggregate.kind.result_type(_field_type(self._info, field))
            for aggregate, field in zip(self.aggregates, self._fields, strict=True)
        ]
        return Types.TUPLE(types)

    def create_accumulator(self) -> tuple[Part, ...]:
        return tuple([kind.fresh() for kind in self._kinds])

    def add(self, value: Any, accumulator: tuple[Part, ...]) -> tuple[Part, ...]:
        parts = []
        for (add, get, skips), part in zip(self._steps, accumulator, strict=True):
            found = value if get is None else get(value)
            parts.append(part if skips and found is None else add(part, found))
        return tuple(parts)

    def get_result(self, accumulator: tuple[Part, ...]) -> tuple[Any, ...]:
        return tuple([kind.result(part) for kind, part in zip(self._kinds, accumulator, strict=True)])

    def merge(self, acc_a: tuple[Part, ...], acc_b: tuple[Part, ...]) -> tuple[Part, ...]:
        parts = []
        for kind, first, second in zip(self._kinds, acc_a, acc_b, strict=True):
            parts.append(second if first is None else first if second is None else kind.merge(first, second))
        return tuple(parts)

    def fold_columns(self, batch: Batch, groups: Int64s, before: list[Any]) -> list[Any] | None:
        """Add each record to the accumulator of its group. ``before``: the accumulators, None where there is none. None: nothing
        has happened, and the records have to be added one by one."""
        accumulators = [self.create_accumulator() if one is None else one for one in before]
        made: list[Parts | None] = []
        last: list[tuple[int, Int64s, Column]] = []
        steps = zip(self.aggregates, self._kinds, self._fields, zip(*accumulators, strict=True), strict=True)
        for number, (aggregate, kind, field, every) in enumerate(steps):
            found = self._values(batch, groups, field, skips=aggregate.skips_missing)
            parts = list(every)
            if found is None or (kind.changes_parts and not kind.takes(parts, found[1])):
                return None
            folded = parts if kind.changes_parts or not len(found[1]) else kind.fold(parts, *found)
            if folded is None:
                return None
            made.append(folded)
            if kind.changes_parts and len(found[1]):
                last.append((number, *found))
        for number, some, column in last:  # nothing can refuse any more
            made[number] = self._kinds[number].fold(made[number] or [], some, column)
        return list(zip(*(parts or () for parts in made), strict=True))

    @staticmethod
    def _values(batch: Batch, groups: Int64s, field: Field | None, *, skips: bool) -> tuple[Int64s, Column] | None:
        """Return the values of a field that are not missing, with the groups of their records."""
        if not skips:  # a count of records
            return groups, groups
        if not isinstance(field, int):
            if field is not None or batch.width:
                return None
            field = 0
        elif not isinstance(batch, ArrowBatch) and field >= batch.width:
            return None
        column, present = batch.present(field)
        return (groups if present is None else groups[present]), column


def _position(aggregate: Aggregate, info: TypeInformation | None) -> Field | None:
    """Return the position of the field in records of the type; None: the record itself."""
    field = aggregate.field
    if field is None or info is None:
        return field
    if not isinstance(info, (RowTypeInfo, TupleTypeInfo)):
        known: list[str] = []
        if field == 0 and not _is_unknown(info):
            return None
        if _is_unknown(info):
            return field
    elif isinstance(info, RowTypeInfo):
        known = info.get_field_names()
    else:
        known = [f"f{n}" for n in range(len(info.get_field_types()))]
    if isinstance(field, int) and -len(known) <= field < len(known):
        return field % len(known)
    if field in known:
        return known.index(str(field))
    raise ProgramError(
        f"{aggregate.name} names a field that the records do not have",
        found=f"{field!r} of {info}",
        cure=f"use one of {', '.join(known)}" if known else "leave the field out",
    )


def _is_unknown(info: TypeInformation) -> bool:
    return info == _UNKNOWN


def _getter(field: Field | None, info: TypeInformation | None) -> Callable[[Any], Any] | None:
    if field is None:
        return None
    if isinstance(info, (RowTypeInfo, TupleTypeInfo)):
        return lambda value: value[field]
    return lambda value: _get(value, field)


def _field_type(info: TypeInformation, field: Field | None) -> TypeInformation:
    if isinstance(info, (RowTypeInfo, TupleTypeInfo)):
        return info.get_field_types()[field] if isinstance(field, int) else _UNKNOWN
    return info if field is None else _UNKNOWN
