"""Clocks: waiting, and calls at a moment."""

from __future__ import annotations

import threading

import pytest

from tidegate.base import clock as clock_module
from tidegate.base.clock import FOREVER, Clock, ManualClock, SystemClock

PATIENCE_S = 60


def test_a_manual_clock_makes_calls_in_order_each_at_its_time() -> None:
    clock, calls = ManualClock(1_000), []
    now = clock.monotonic()
    clock.call_at(now + 0.030, lambda: calls.append(("late", clock.now_ms())))
    clock.call_at(now + 0.010, lambda: calls.append(("early", clock.now_ms())))
    clock.call_at(now + 0.010, lambda: calls.append(("early, second", clock.now_ms())))
    clock.advance(9)
    assert calls == []
    clock.advance(1)
    assert calls == [("early", 1_010), ("early, second", 1_010)]
    clock.advance(100)
    assert calls[2:] == [("late", 1_030)]
    assert clock.now_ms() == 1_110


def test_a_cancelled_call_is_not_made() -> None:
    clock, calls = ManualClock(), []
    clock.call_at(clock.monotonic() + 1, lambda: calls.append("cancelled")).cancel()
    clock.advance(5_000)
    assert calls == []


def test_a_call_may_plan_the_next() -> None:
    clock, beats = ManualClock(0), []

    def beat() -> None:
        beats.append(clock.now_ms())
        clock.call_at(clock.monotonic() + 0.010, beat)

    beat()
    clock.advance(35)
    assert beats == [0, 10, 20, 30]


def test_waiting_on_a_manual_clock_lets_time_pass_until_the_event() -> None:
    clock, event = ManualClock(0), threading.Event()
    clock.call_at(0.020, event.set)
    assert clock.wait(event, 1.0)
    assert clock.now_ms() == 20, "time stands still when it is set"
    event.clear()
    assert not clock.wait(event, 0.5)
    assert clock.now_ms() == 520


def test_waiting_for_ever_for_nothing_is_found_out() -> None:
    with pytest.raises(AssertionError, match="no planned call can set the event"):
        ManualClock().wait(threading.Event(), FOREVER)


def test_two_manual_clocks_of_one_time_make_their_own_calls() -> None:
    """Of two processes: what one has planned is not done by the other."""
    clock, calls = ManualClock(0), []
    other = ManualClock(same_as=clock)
    clock.call_at(0.010, lambda: calls.append("own"))
    other.call_at(0.010, lambda: calls.append("the other's"))
    clock.advance(20)
    assert (other.now_ms(), calls) == (20, ["own"])
    other.advance(0)
    assert calls == ["own", "the other's"]


def test_the_system_clock_calls_from_a_thread_of_its_own() -> None:
    clock, called = SystemClock(), threading.Event()
    threads: list[str] = []
    clock.call_at(clock.monotonic(), lambda: (threads.append(threading.current_thread().name), called.set())[1])
    assert called.wait(PATIENCE_S)
    assert threads == ["tidegate-clock"]


def test_a_call_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    clock, called = SystemClock(), threading.Event()

    def fail() -> None:
        raise ValueError("cannot")

    clock.call_at(clock.monotonic(), fail)
    clock.call_at(clock.monotonic(), called.set)
    assert called.wait(PATIENCE_S)
    assert "ValueError('cannot')" in caplog.text


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()])
def test_an_event_that_is_set_is_not_waited_for(clock: Clock) -> None:
    event = threading.Event()
    event.set()
    assert clock.wait(event, FOREVER)


def test_cancelled_calls_of_the_system_clock_are_forgotten() -> None:
    """A job plans one a round; with many failures tolerated it is never due."""
    clock, kept = SystemClock(), SystemClock().call_at(FOREVER, lambda: None)
    for _ in range(10_000):
        clock.call_at(clock.monotonic() + 1e9, lambda: None).cancel()
    entries = clock_module._timetable._entries
    assert len(entries) < 1_000
    assert kept in entries
    kept.cancel()
