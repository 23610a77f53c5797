"""Joins of two streams in PyFlink's spelling: window join, co-group and interval join.

Java has ``join(...).where(...).equal_to(...).window(...)``, and interval joins (PyFlink has none). For a window join or
co-group, both streams become one keyed stream, in which every record is tagged with its origin, with the usual windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Self

from tidegate.base.arguments import wrong
from tidegate.base.errors import ProgramError
from tidegate.base.generics import Generic, TypeVar
from tidegate.common.object_types import Declared, type_of
from tidegate.common.time import Duration, Time
from tidegate.datastream.annotations import result_type
from tidegate.datastream.connected_streams import check_connected, expect_object, two_inputs
from tidegate.datastream.functions import KeySelector, ProcessJoinFunction
from tidegate.datastream.keyed_stream import KeyedStream
from tidegate.datastream.output_tag import OutputTag
from tidegate.datastream.stream import DataStream
from tidegate.datastream.typed_functions import TypedJoin, key_callable, typed
from tidegate.datastream.window_functions import CoGroupFunction, FlatJoinFunction, JoinFunction, WindowFunction
from tidegate.datastream.windowed_stream import WindowedStream
from tidegate.operators.contracts.functions import FunctionWrapper
from tidegate.operators.contracts.specs import IntervalJoinSpec
from tidegate.operators.loop.ownership import is_immutable
from tidegate.operators.windows.assigner import WindowAssigner
from tidegate.operators.windows.evictors import Evictor
from tidegate.operators.windows.trigger import Trigger

FIRST, SECOND = 0, 1
T1 = TypeVar("T1", covariant=True, default=Any)
T2 = TypeVar("T2", covariant=True, default=Any)
R = TypeVar("R", default=Any)


class _TwoStreams(Generic[T1, T2]):
    """Two streams, and the selectors of their keys."""

    _method: str

    def __init__(self, first: DataStream[T1], second: DataStream[T2]) -> None:
        if not isinstance(second, DataStream):
            raise wrong(self._method, "a stream", second, "pass a DataStream object")
        if first.get_execution_environment() is not second.get_execution_environment():
            raise ProgramError("The joined streams belong to different environments", where=self._method)
        self._first, self._second = first, second
        self._selectors: list[Callable[[Any], Any]] = []
        self._key_type: Declared = None

    def where(self, key_selector: Callable[[T1], Any] | KeySelector[T1, Any], key_type: Declared = None) -> Self:
        """Return the key of the first stream's records."""
        self._key_type = type_of("where", key_type)
        self._selectors = [key_callable("where", key_selector)]
        return self

    def equal_to(self, key_selector: Callable[[T2], Any] | KeySelector[T2, Any]) -> Self:
        """Return the key of the second stream's records. Keys are equal if their bytes are: give ``where`` a type if in doubt."""
        self._expect(1, "where(...) comes before equal_to(...)")
        self._selectors.append(key_callable("equal_to", key_selector))
        return self

    def _in_windows(self, window_assigner: WindowAssigner[Any, Any]) -> WindowedStream:
        self._expect(2, "where(...) and equal_to(...) come before window(...)")
        # each map has its own copy, so nobody else has its results
        both = self._first.map(_from_first).union(self._second.map(_from_second))
        keyed = both.key_by(_KeyOfEither(*self._selectors), self._key_type)
        return WindowedStream(keyed, window_assigner)

    def _expect(self, selectors: int, rule: str) -> None:
        if len(self._selectors) != selectors:
            cure = f"stream.{self._method}(other).where(key).equal_to(key).window(assigner).apply(function)"
            raise ProgramError(rule, where=self._method, found=f"{len(self._selectors)} key selectors", cure=cure)


class _TwoWindowed(Generic[T1, T2]):
    """The windows of two streams, before their function is set."""

    def __init__(self, windows: WindowedStream) -> None:
        self._windowed = windows

    def trigger(self, trigger: Trigger[Any, Any]) -> Self:
        """Set when windows fire. The trigger sees records as pairs: 0 or 1 for the stream, and the record."""
        self._windowed.trigger(trigger)
        return self

    def evictor(self, evictor: Evictor[Any, Any]) -> Self:
        """Set which records leave a window. The evictor sees records as pairs: 0 or 1 for the stream, and the record."""
        self._windowed.evictor(evictor)
        return self

    def allowed_lateness(self, time_ms: Any) -> Self:
        self._windowed.allowed_lateness(time_ms)
        return self


class WindowedJoin(_TwoWindowed[T1, T2]):
    """The result of ``JoinedStreams.window``."""

    def apply(
        self,
        function: Callable[[T1, T2], R] | JoinFunction[T1, T2, R] | FlatJoinFunction[T1, T2, R],
        output_type: Declared = None,
    ) -> DataStream[R]:
        """Call a JoinFunction, a FlatJoinFunction, or a callable of two records that returns one, for each pair of a window."""
        if isinstance(function, type) or not (
            isinstance(function, JoinFunction | FlatJoinFunction) or callable(function)
        ):
            cure = "extend JoinFunction, or pass a function of two records"
            raise wrong("apply", "a JoinFunction, a FlatJoinFunction or a callable", function, cure)
        env, many = self._windowed.get_execution_environment(), isinstance(function, FlatJoinFunction)
        return self._windowed._called(
            _Join(function), result_type(env, "apply", output_type, function, "join", many=many)
        )


class WindowedCoGroup(_TwoWindowed[T1, T2]):
    """The result of ``CoGroupedStreams.window``."""

    def apply(self, function: CoGroupFunction[T1, T2, R], output_type: Declared = None) -> DataStream[R]:
        if not isinstance(function, CoGroupFunction):
            raise wrong(
                "apply", "a CoGroupFunction object", function, "extend CoGroupFunction and pass an object of it"
            )
        env = self._windowed.get_execution_environment()
        return self._windowed._called(_CoGroup(function), result_type(env, "apply", output_type, function, "co_group"))


class JoinedStreams(_TwoStreams[T1, T2]):
    """The result of ``DataStream.join``: pairs of records with the same key in the same window."""

    _method = "join"

    def window(self, window_assigner: WindowAssigner[Any, Any]) -> WindowedJoin[T1, T2]:
        """Put the records of both streams into windows."""
        return WindowedJoin(self._in_windows(window_assigner))


class CoGroupedStreams(_TwoStreams[T1, T2]):
    """The result of ``DataStream.co_group``: the records of both streams with the same key in the same window."""

    _method = "co_group"

    def window(self, window_assigner: WindowAssigner[Any, Any]) -> WindowedCoGroup[T1, T2]:
        """Put the records of both streams into windows."""
        return WindowedCoGroup(self._in_windows(window_assigner))


# -- what runs ---------------------------------------------------------------------------------------------------------


def _from_first(value: Any) -> tuple[int, Any]:
    return FIRST, value


def _from_second(value: Any) -> tuple[int, Any]:
    return SECOND, value


class _KeyOfEither:
    def __init__(self, first: Callable[[Any], Any], second: Callable[[Any], Any]) -> None:
        self._selectors = first, second

    def __call__(self, tagged: tuple[int, Any]) -> Any:
        return self._selectors[tagged[0]](tagged[1])


class _CoGroup(FunctionWrapper, WindowFunction):
    def apply(self, key: Any, window: Any, inputs: Iterable[tuple[int, Any]]) -> Iterable[Any]:
        sides: tuple[list[Any], list[Any]] = ([], [])
        for side, value in inputs:
            sides[side].append(value)
        return self._results(*sides)

    def _results(self, first: list[Any], second: list[Any]) -> Iterable[Any]:
        results: Iterable[Any] = self.wrapped.co_group(first, second)
        return results


class _Join(_CoGroup):
    def _results(self, first: list[Any], second: list[Any]) -> Iterator[Any]:
        function = self.wrapped
        flat = isinstance(function, FlatJoinFunction)
        join = function.join if isinstance(function, JoinFunction | FlatJoinFunction) else function
        for one in first:
            for other in second:
                if flat:
                    yield from join(one, other) or ()
                else:
                    yield join(one, other)


class IntervalJoin(Generic[T1, T2]):
    """The result of ``interval_join``; ``between`` sets how far apart in time two records may be."""

    def __init__(self, stream1: KeyedStream[T1, Any], stream2: KeyedStream[T2, Any]) -> None:
        check_connected("interval_join", stream1, stream2)
        for stream in (stream1, stream2):
            if not isinstance(stream, KeyedStream):
                raise wrong(
                    "interval_join",
                    "keyed streams",
                    stream,
                    "call key_by(...) on both streams",
                )
        self._streams = stream1, stream2

    def in_event_time(self) -> Self:
        """Use event time: the default."""
        return self

    def in_processing_time(self) -> NoReturn:
        """Raise, as in Flink."""
        raise ProgramError(
            "Interval joins work in event time only", where="interval_join", found="in_processing_time()"
        )

    def between(self, lower_bound: Time | Duration, upper_bound: Time | Duration) -> IntervalJoined[T1, T2]:
        """Join a right record with a left record if it is ``lower_bound`` to ``upper_bound`` later; both may be negative."""
        lower, upper = _millis(lower_bound), _millis(upper_bound)
        if lower > upper:
            raise ProgramError(
                "The lower bound of the interval join is above the upper bound",
                where="between",
                found=f"{lower} ms and {upper} ms",
                cure="swap the bounds; a right record before the left record has a negative bound",
            )
        return IntervalJoined(*self._streams, lower, upper)


@dataclass(frozen=True)
class IntervalJoined(Generic[T1, T2]):
    """The result of ``between``. Its methods return a new object."""

    _left: KeyedStream[T1, Any]
    _right: KeyedStream[T2, Any]
    _lower: int
    _upper: int
    _left_late: OutputTag | None = None
    _right_late: OutputTag | None = None

    def lower_bound_exclusive(self) -> IntervalJoined[T1, T2]:
        """Exclude the lower bound itself."""
        return replace(self, _lower=self._lower + 1)

    def upper_bound_exclusive(self) -> IntervalJoined[T1, T2]:
        """Exclude the upper bound itself."""
        return replace(self, _upper=self._upper - 1)

    def side_output_left_late_data(self, output_tag: OutputTag) -> IntervalJoined[T1, T2]:
        """Send late left records to this side output. Without it they are dropped."""
        return replace(self, _left_late=_expect_tag("side_output_left_late_data", output_tag))

    def side_output_right_late_data(self, output_tag: OutputTag) -> IntervalJoined[T1, T2]:
        """Send late right records to this side output. Without it they are dropped."""
        return replace(self, _right_late=_expect_tag("side_output_right_late_data", output_tag))

    def process(
        self, process_join_function: ProcessJoinFunction[T1, T2, R], output_type: Declared = None
    ) -> DataStream[R]:
        """Call the function for every pair. Emitted records have the later of the two times."""
        expect_object("process of an interval join", process_join_function, ProcessJoinFunction)
        result = result_type(self._left._env, "process", output_type, process_join_function, "process_element")
        if self._lower > self._upper:
            raise ProgramError(
                "The interval of the interval join is empty",
                where="interval_join",
                found=f"from {self._lower} to {self._upper} ms, without exclusive bounds",
                cure="make the interval wider, or include its bounds",
            )
        function = typed(TypedJoin, process_join_function, result.type)
        left_late, right_late = (None if tag is None else tag.tag_id for tag in (self._left_late, self._right_late))
        left_fixed, right_fixed = (is_immutable(side.get_type()) for side in (self._left, self._right))
        spec = IntervalJoinSpec(function, self._lower, self._upper, left_late, right_late, left_fixed, right_fixed)
        return two_inputs("Interval Join", spec, self._left, self._right, result)


def _millis(bound: Any) -> int:
    if isinstance(bound, Duration):
        return bound.to_millis()
    if isinstance(bound, Time):
        return bound.to_milliseconds()
    raise wrong("between", "times", bound, "for example Time.seconds(-5) and Time.seconds(5)")


def _expect_tag(method: str, tag: Any) -> OutputTag:
    if not isinstance(tag, OutputTag):
        raise wrong(method, "an OutputTag", tag, 'OutputTag("late", Types.STRING())')
    return tag
