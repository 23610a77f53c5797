"""Add records to the value of a key in a slice, by lines in the loop or by a call, and combine slices to a window."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import TYPE_CHECKING

from tidegate.base.user_code import UserValue
from tidegate.common.typeinfo import TypeInformation, Types
from tidegate.operators.loop.ownership import is_immutable, own
from tidegate.operators.loop.rewrites.rewrite import Owner
from tidegate.operators.windows.operation import Aggregated, Buffered, Contents, Reduced

if TYPE_CHECKING:
    from tidegate.operators.loop.codegen import LoopSource
    from tidegate.state.slices import SliceCells


class Adding:
    """Define one way to add records. ``type``: the type of the value. Cells hold None where a key has no value."""

    type: TypeInformation | None

    def write(
        self, source: LoopSource, label: str, cells: str, key: str, value: str, depth: int, owner: Owner, keyed: bool
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
        self, source: LoopSource, label: str, cells: str, key: str, value: str, depth: int, owner: Owner, keyed: bool
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
        self, source: LoopSource, label: str, cells: str, key: str, value: str, depth: int, owner: Owner, keyed: bool
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

    def write(
        self, source: LoopSource, label: str, cells: str, key: str, value: str, depth: int, owner: Owner, keyed: bool
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
