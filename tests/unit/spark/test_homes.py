"""Which tasks leave their homes for executors that are new."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.spark.homes import too_many


def test_tasks_of_a_crowded_executor_leave_and_others_stay() -> None:
    assert too_many({0: "a", 1: "a", 2: "b", 3: "a", 4: "a"}, 3) == [3, 4]


def test_a_fair_distribution_stays() -> None:
    assert too_many({0: "a", 1: "b", 2: "a", 3: "b", 4: "a"}, 2) == []


def test_more_executors_than_tasks_leave_one_task_on_each() -> None:
    assert too_many({0: "a", 1: "a", 2: "b"}, 10) == [1]


@given(st.dictionaries(st.integers(0, 30), st.sampled_from("abcd"), min_size=1), st.integers(1, 8))
def test_who_stays_is_never_more_than_a_share(places: dict[int, str], executors: int) -> None:
    leaving = set(too_many(places, executors))
    staying = [place for task, place in places.items() if task not in leaving]
    share = -(-len(places) // executors)
    assert all(staying.count(place) <= share for place in "abcd")
    assert all(list(places.values()).count(places[task]) > share for task in leaving)
