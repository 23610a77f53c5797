"""Hypothesis strategies for records with event times: in order, out of order, late, with idle gaps, with skewed keys.

A strategy draws a list of ``Record``, in the order of their arrival. ``watermarks_of`` gives the watermark after each record, as
``WatermarkStrategy.for_bounded_out_of_orderness`` would::

    @given(records(st.integers(), keys=skewed_keys(), out_of_orderness=5_000))
    def test_never_late(records): ...

``records`` is ``in_order`` with all choices. Hypothesis is imported by this module alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from tidegate.base.clock import MIN_WATERMARK
from tidegate.testing.function_harness import Record

__all__ = ["Record", "idle_gaps", "in_order", "late", "out_of_order", "records", "skewed_keys", "watermarks_of"]


def skewed_keys(keys: Iterable[Any] = "abcdefgh", *, hot: int = 4) -> st.SearchStrategy[Any]:
    """Draw keys of which the first is ``hot`` times as frequent as all others together."""
    every = list(keys)
    if len(every) < 2:
        return st.sampled_from(every)
    return st.integers(0, hot).flatmap(lambda n: st.just(every[0]) if n else st.sampled_from(every[1:]))


@st.composite
def records(
    draw: st.DrawFn,
    values: st.SearchStrategy[Any],
    *,
    keys: st.SearchStrategy[Any] | None = None,
    start: int = 0,
    most_step: int = 1_000,
    out_of_orderness: int = 0,
    lateness: int = 0,
    gap: int = 0,
    min_size: int = 0,
    max_size: int = 30,
) -> list[Record]:
    """Draw records. With ``keys`` a value is a pair ``(key, value)``.

    Event time grows by 0 to ``most_step`` milliseconds a record. ``out_of_orderness``: a record may be so much earlier than the
    latest record before it. ``lateness``: some records are earlier by more than that, up to so much more. ``gap``: between some
    records event time jumps by so much, as after a time without records.
    """
    size = draw(st.integers(min_size, max_size))
    now, found = start, []
    for _ in range(size):
        now += draw(st.integers(0, most_step))
        if gap and draw(st.integers(0, 4)) == 4:
            now += gap
        moment = now - (draw(st.integers(0, out_of_orderness)) if out_of_orderness else 0)
        if lateness and draw(st.integers(0, 4)) == 4:
            moment = now - out_of_orderness - 1 - draw(st.integers(0, lateness))
        value = draw(values)
        found.append(Record((draw(keys), value) if keys is not None else value, moment))
    return found


def in_order(values: st.SearchStrategy[Any], **choices: Any) -> st.SearchStrategy[list[Record]]:
    """Draw records whose event times never fall. ``choices``: see ``records``."""
    return records(values, **choices)


def out_of_order(values: st.SearchStrategy[Any], bound: int, **choices: Any) -> st.SearchStrategy[list[Record]]:
    """Draw records that are at most ``bound`` milliseconds out of order: none is late after ``watermarks_of(..., bound)``."""
    return records(values, out_of_orderness=bound, **choices)


def late(values: st.SearchStrategy[Any], bound: int, lateness: int, **choices: Any) -> st.SearchStrategy[list[Record]]:
    """Draw records of which some are later than ``bound``, by up to ``lateness`` milliseconds more."""
    return records(values, out_of_orderness=bound, lateness=lateness, **choices)


def idle_gaps(values: st.SearchStrategy[Any], gap: int, **choices: Any) -> st.SearchStrategy[list[Record]]:
    """Draw records in order, with gaps of ``gap`` milliseconds in which there is no record."""
    return records(values, gap=gap, **choices)


def watermarks_of(found: Iterable[Record], bound: int = 0) -> list[int]:
    """Return the watermark after each record: the greatest event time so far, less the bound, less 1."""
    greatest, marks = MIN_WATERMARK, []
    for record in found:
        if record.timestamp is not None:
            greatest = max(greatest, record.timestamp)
        marks.append(MIN_WATERMARK if greatest == MIN_WATERMARK else greatest - bound - 1)
    return marks
