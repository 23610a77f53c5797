"""When workers search for garbage."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tidegate.spark import task as worker


class Knot:
    """Refers to itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """What time it is; every search through everything takes ``search`` seconds."""
    now = SimpleNamespace(seconds=1000.0, search=0.2, searches=0)
    searches = worker._FullSearches()

    def passes(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2 and not searches.frozen:
            now.seconds += now.search
            now.searches += 1

    threshold = gc.get_threshold()
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    monkeypatch.setattr(worker, "_searches", searches)
    gc.callbacks.append(searches)
    gc.callbacks.append(passes)  # after it: between its start and its end
    yield now
    gc.callbacks.remove(passes)
    gc.callbacks.remove(searches)
    gc.unfreeze()
    gc.set_threshold(*threshold)


def task() -> weakref.ref[Knot]:
    """A task that leaves a knot, and the daemon's search behind it."""
    worker.begin_task()
    left = weakref.ref(Knot())
    worker.end_task()
    gc.collect()
    return left


def test_searches_take_a_fiftieth_of_the_time_at_most(clock: SimpleNamespace) -> None:
    begun = clock.seconds
    for _ in range(1000):
        task()
        clock.seconds += 0.1
    spent = clock.searches * clock.search
    assert clock.searches > 5
    assert spent <= (clock.seconds - begun) / worker.SHARE + clock.search


def test_what_a_task_leaves_is_found_by_the_next_search(clock: SimpleNamespace) -> None:
    first, second = task(), task()
    assert first() is None, "the first search is due at once"
    assert second() is not None
    clock.seconds += worker.SHARE * clock.search + 1
    task()
    assert second() is None


def test_a_job_that_ends_leaves_nothing_aside(clock: SimpleNamespace) -> None:
    task()
    left = task()
    worker.unfreeze()
    gc.collect()
    assert left() is None
    assert gc.get_freeze_count() == 0


def test_small_searches_while_much_is_put_aside_do_not_count(clock: SimpleNamespace) -> None:
    task()
    searches = clock.searches
    for _ in range(20):
        task()
    assert clock.searches == searches
