"""Functions that programs of several tests use."""

from __future__ import annotations

from typing import Any

from tidegate.datastream import AggregateFunction


class CountRecords(AggregateFunction):
    """Count records one by one, as a function of a user does."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b
