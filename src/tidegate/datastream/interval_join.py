"""Interval joins: Java's API in PyFlink's spelling (PyFlink has none)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tidegate.base.arguments import wrong
from tidegate.base.errors import ProgramError
from tidegate.common.time import Duration, Time
from tidegate.common.typeinfo import TypeInformation
from tidegate.datastream.connected_streams import check_connected, expect_object, two_inputs
from tidegate.datastream.functions import ProcessJoinFunction
from tidegate.datastream.keyed_stream import KeyedStream
from tidegate.datastream.output_tag import OutputTag
from tidegate.datastream.stream import DataStream, expect_type
from tidegate.datastream.typed_functions import TypedJoin, typed
from tidegate.operators.contracts.specs import IntervalJoinSpec
from tidegate.operators.loop.ownership import is_immutable


class IntervalJoin:
    """The result of ``interval_join``; ``between`` sets how far apart in time two records may be."""

    def __init__(self, stream1: KeyedStream, stream2: KeyedStream) -> None:
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

    def in_event_time(self) -> IntervalJoin:
        """Use event time: the default."""
        return self

    def in_processing_time(self) -> IntervalJoin:
        """Raise, as in Flink."""
        raise ProgramError(
            "Interval joins work in event time only", where="interval_join", found="in_processing_time()"
        )

    def between(self, lower_bound: Time | Duration, upper_bound: Time | Duration) -> IntervalJoined:
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
class IntervalJoined:
    """The result of ``between``. Its methods return a new object."""

    _left: KeyedStream
    _right: KeyedStream
    _lower: int
    _upper: int
    _left_late: OutputTag | None = None
    _right_late: OutputTag | None = None

    def lower_bound_exclusive(self) -> IntervalJoined:
        """Exclude the lower bound itself."""
        return replace(self, _lower=self._lower + 1)

    def upper_bound_exclusive(self) -> IntervalJoined:
        """Exclude the upper bound itself."""
        return replace(self, _upper=self._upper - 1)

    def side_output_left_late_data(self, output_tag: OutputTag) -> IntervalJoined:
        """Send late left records to this side output. Without it they are dropped."""
        return replace(self, _left_late=_expect_tag("side_output_left_late_data", output_tag))

    def side_output_right_late_data(self, output_tag: OutputTag) -> IntervalJoined:
        """Send late right records to this side output. Without it they are dropped."""
        return replace(self, _right_late=_expect_tag("side_output_right_late_data", output_tag))

    def process(
        self, process_join_function: ProcessJoinFunction, output_type: TypeInformation | None = None
    ) -> DataStream:
        """Call the function for every pair. Emitted records have the later of the two times."""
        expect_object("process of an interval join", process_join_function, ProcessJoinFunction)
        expect_type("process", output_type)
        if self._lower > self._upper:
            raise ProgramError(
                "The interval of the interval join is empty",
                where="interval_join",
                found=f"from {self._lower} to {self._upper} ms, without exclusive bounds",
                cure="make the interval wider, or include its bounds",
            )
        function = typed(TypedJoin, process_join_function, output_type)
        left_late, right_late = (None if tag is None else tag.tag_id for tag in (self._left_late, self._right_late))
        left_fixed, right_fixed = (is_immutable(side.get_type()) for side in (self._left, self._right))
        spec = IntervalJoinSpec(function, self._lower, self._upper, left_late, right_late, left_fixed, right_fixed)
        return two_inputs("Interval Join", spec, self._left, self._right, output_type)


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
