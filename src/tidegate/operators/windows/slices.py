"""Slices: pieces of time that aligned windows share, and the addition of records to them.

A record is aggregated once, however many windows contain it. Windows of ``size`` start every ``slide``. Between two
starts, time is divided once more, where windows end. So every window is a number of whole slices. Tumbling windows are
slices themselves.

In windows with many slices, neighbouring slices form a group, two groups form a group of the next level, and so on. All
windows that contain a whole group share its result, so a window consists of a few groups.

Records are added to the value of a key in a slice, by lines in the loop or by a call. Slices are combined to a window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from tidegate.base.user_code import UserValue
from tidegate.common.typeinfo import TypeInformation, Types
from tidegate.operators.loop.ownership import is_immutable, own
from tidegate.operators.loop.rewrites.rewrite import LineOwner
from tidegate.operators.windows.operation import Aggregated, Buffered, Contents, Reduced

if TYPE_CHECKING:
    from tidegate.operators.contracts.batch import Batch, Int64s
    from tidegate.operators.loop.codegen import LoopSource
    from tidegate.state.slices import SliceCells

_FEW = 16
"""The number of starts in a window up to which groups do not pay off."""


class Slice(NamedTuple):
    start: int
    end: int


class Group(NamedTuple):
    """The slices between ``2 ** level`` starts of windows, counted from the epoch: groups do not depend on the records
    seen."""

    level: int
    number: int


class Slices:
    """Compute slices and windows; all times are in milliseconds."""

    def __init__(self, size: int, slide: int, offset: int) -> None:
        self.size, self._slide, self._offset = size, slide, offset
        self._cut = size % slide
        """Where windows end between two starts; 0: at a start."""
        self._starts = size // slide
        self._levels = self._starts.bit_length() - 1 if self._starts > _FEW else 0

    @property
    def are_windows(self) -> bool:
        """Tell whether each slice is a window of its own."""
        return self.size == self._slide

    def around(self, time: int) -> Slice:
        """Return the slice that contains a time."""
        start = time - (time - self._offset) % self._slide
        cut = start + self._cut
        if time < cut:
            return Slice(start, cut)
        return Slice(cut, start + self._slide)

    def starts_of(self, times: Int64s) -> Int64s:
        """Return the starts of the slices that contain the times."""
        starts = times - (times - self._offset) % self._slide
        if self._cut:
            starts = starts + self._cut * (times >= starts + self._cut)
        return starts

    def windows_of(self, start: int) -> range:
        """Return the starts of the windows that contain the slice at ``start``, the latest first. Empty: the slice lies
        in a gap."""
        last = start - (start - self._offset) % self._slide
        return range(last, start - self.size, -self._slide)

    def of_window(self, start: int) -> list[int]:
        """Return the starts of the slices of a window, in order."""
        return [slice_ for piece in self.pieces_of(start, levels=0) for slice_ in piece]

    def pieces_of(self, start: int, levels: int | None = None) -> Iterator[Group | list[int]]:
        """Yield a window in order, in as few pieces as possible: groups that lie in it whole, and the starts of slices
        in between."""
        number = (start - self._offset) // self._slide
        end = number + self._starts
        highest = self._levels if levels is None else levels
        while number < end:
            level = min(highest, (end - number).bit_length() - 1, _twos(number) if number else highest)
            yield Group(level, number >> level) if level else self._between_starts(number)
            number += 1 << level
        if self._cut:
            yield [end * self._slide + self._offset]

    def halves(self, group: Group) -> list[Group | list[int]]:
        """Return the parts of a group."""
        level, numbers = group.level - 1, (2 * group.number, 2 * group.number + 1)
        return [Group(level, number) if level else self._between_starts(number) for number in numbers]

    def groups_of(self, start: int) -> list[Group]:
        """Return the groups that contain the slice at ``start``."""
        number = (start - self._offset) // self._slide
        return [Group(level, number >> level) for level in range(1, self._levels + 1)]

    def _between_starts(self, number: int) -> list[int]:
        first = number * self._slide + self._offset
        return [first, first + self._cut] if self._cut else [first]

    def last_of(self, start: int) -> list[int]:
        """Return the starts of the slices whose last window is the window at ``start``."""
        cut, end = start + self._cut, min(start + self._slide, start + self.size)
        return [start, cut] if start < cut < end else [start]


def _twos(number: int) -> int:
    """Return how often the number can be halved."""
    return (number & -number).bit_length() - 1


Fold = Callable[["Batch", "Int64s", list[UserValue]], list[UserValue] | None]
"""Batch, number of the group of each record, value of each group or None -> new values. None: nothing has happened."""


class Adding:
    """Define one way to add records. ``type``: the type of the value. Cells hold None where a key has no value."""

    type: TypeInformation | None
    fold: Fold | None = None
    """Adds a whole batch of columns, if the function has a way."""

    def write(
        self,
        source: LoopSource,
        label: str,
        cells: str,
        key: str,
        value: str,
        depth: int,
        owner: LineOwner,
        keyed: bool,
    ) -> None:
        """Write the code that adds the record in ``value`` to the cells in the variable ``cells``."""
        raise NotImplementedError

    def add(self, cells: SliceCells, key: UserValue, value: UserValue) -> None:
        """Do the same as a call."""
        raise NotImplementedError

    def result(self, kept: UserValue) -> UserValue:
        """Return the argument of the window function, or the value to emit; None: nothing."""
        return kept

    def merged(self, kept: list[UserValue]) -> UserValue:
        """Merge the values of several slices, in the order of time. The values themselves must not change."""
        raise NotImplementedError

    def merged_by_key(self, slices: list[dict[UserValue, UserValue]]) -> dict[UserValue, UserValue]:
        found: dict[UserValue, list[UserValue]] = {}
        for cells in slices:
            for key, value in cells.items():
                if value is not None:
                    if key in found:
                        found[key].append(value)
                    else:
                        found[key] = [value]
        return {key: self.merged(kept) for key, kept in found.items()}


class _Collecting(Adding):
    """Keep a list of the records. For windows that are slices: the order in which records came is that of their
    window."""

    def __init__(self, contents: Buffered) -> None:
        self.type = None if contents.type is None else Types.LIST(contents.type)

    def write(
        self,
        source: LoopSource,
        label: str,
        cells: str,
        key: str,
        value: str,
        depth: int,
        owner: LineOwner,
        keyed: bool,
    ) -> None:
        kept = f"tg_a{label}"
        source.line(depth, f"{kept} = {cells}[{key}]", owner)
        source.line(depth, f"if {kept} is None:", owner)
        source.line(depth + 1, f"{cells}[{key}] = [{value}]", owner)
        source.line(depth, "else:", owner)
        source.line(depth + 1, f"{kept}.append({value})", owner)

    def add(self, cells: SliceCells, key: UserValue, value: UserValue) -> None:
        kept = cells[key]
        if kept is None:
            cells[key] = [value]
        else:
            kept.append(value)

    def result(self, kept: UserValue) -> UserValue:
        return list(kept)

    def merged(self, kept: list[UserValue]) -> UserValue:
        return [value for values in kept for value in values]


class _Reducing(Adding):
    def __init__(self, contents: Reduced) -> None:
        self.type, self._reduce = contents.type, contents.add
        self._own = _owning(contents.type)

    def write(
        self,
        source: LoopSource,
        label: str,
        cells: str,
        key: str,
        value: str,
        depth: int,
        owner: LineOwner,
        keyed: bool,
    ) -> None:
        kept, out = f"tg_a{label}", f"tg_v{label}"
        source.line(depth, f"{kept} = {cells}[{key}]", owner)
        source.line(depth, f"if {kept} is None:", owner)
        source.line(depth + 1, f"{cells}[{key}] = {value}", owner)
        source.line(depth, "else:", owner)
        source.call(label, self._reduce, [kept, value], out, depth + 1, owner, keyed)
        source.line(depth + 1, f"{cells}[{key}] = {out}", owner)

    def add(self, cells: SliceCells, key: UserValue, value: UserValue) -> None:
        kept = cells[key]
        cells[key] = value if kept is None else self._reduce(kept, value)

    def merged(self, kept: list[UserValue]) -> UserValue:
        return kept[0] if len(kept) == 1 else reduce(self._reduce, self._own(kept))


class _Aggregating(Adding):
    def __init__(self, contents: Aggregated) -> None:
        self.type, self._own = contents.type, _owning(contents.type)
        self._add, self._create = contents.add, contents.function.create_accumulator
        self._merge, self._result = contents.function.merge, contents.function.get_result
        self.fold = getattr(contents.function, "fold_columns", None)

    def write(
        self,
        source: LoopSource,
        label: str,
        cells: str,
        key: str,
        value: str,
        depth: int,
        owner: LineOwner,
        keyed: bool,
    ) -> None:
        kept, out = f"tg_a{label}", f"tg_v{label}"
        source.line(depth, f"{kept} = {cells}[{key}]", owner)
        source.line(depth, f"if {kept} is None:", owner)
        source.line(depth + 1, f"{kept} = {source.bind(f'z{label}', self._create)}()", owner)
        source.call(label, self._add, [value, kept], out, depth, owner, keyed)
        source.line(depth, f"{cells}[{key}] = {out}", owner)

    def add(self, cells: SliceCells, key: UserValue, value: UserValue) -> None:
        kept = cells[key]
        cells[key] = self._add(value, self._create() if kept is None else kept)

    def result(self, kept: UserValue) -> UserValue:
        return self._result(kept)

    def merged(self, kept: list[UserValue]) -> UserValue:
        return kept[0] if len(kept) == 1 else reduce(self._merge, self._own(kept))


def _owning(kind: TypeInformation | None) -> Callable[[list[UserValue]], Iterable[UserValue]]:
    """Protect kept values from a function that merges: return copies, for values of a type that can change."""
    return list if is_immutable(kind) else lambda kept: map(own, kept)


def adding_to(contents: Contents) -> Adding:
    if isinstance(contents, Buffered):
        return _Collecting(contents)
    return _Reducing(contents) if isinstance(contents, Reduced) else _Aggregating(contents)


def whole_record(source: LoopSource, value: str) -> str:
    """Put the record into a variable. A record that comes as columns is not made for every record."""
    if source.fields(value) is None:
        return value
    return f"tg_values.row({source.bind('len', len)}(tg_values) - tg_i.__length_hint__() - 1)"
