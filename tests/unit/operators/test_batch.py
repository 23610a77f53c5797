"""Batches: what a reader of a source may yield, and the same records as rows and as columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tidegate.operators.contracts.batch import Batch, ColumnBatch, Schema

ROWS = [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
TIMES = [10, 40, 20, 30]
KEYS = [1, 2, 3, 4]


def as_rows() -> Batch:
    return Batch(ROWS, TIMES, KEYS)


def as_columns() -> Batch:
    made = ColumnBatch.of_tuples([n for n, _ in ROWS], [text for _, text in ROWS], times=np.array(TIMES))
    made.key_field, made.keys = 0, KEYS
    return made


BOTH = pytest.mark.parametrize("make", [as_rows, as_columns])


def contents(batch: Batch) -> tuple[Any, ...]:
    return list(batch.rows()), batch.time_list(), batch.keys


@BOTH
def test_rows_times_and_keys_are_the_same_in_both_forms(make: Any) -> None:
    batch = make()
    assert contents(batch) == (ROWS, TIMES, KEYS)
    assert len(batch) == 4 and list(batch) == ROWS
    assert batch.greatest_time() == 40
    assert batch.time_column().tolist() == TIMES


@BOTH
def test_part_has_the_records_between_two_numbers_with_times_and_keys(make: Any) -> None:
    batch = make()
    assert contents(batch.part(1, 3)) == (ROWS[1:3], TIMES[1:3], KEYS[1:3])
    assert batch.part(1, 3).schema == batch.schema and batch.part(1, 3).key_field == batch.key_field
    assert batch.part(0, 4) is batch
    assert len(batch.part(2, 2)) == 0


@BOTH
def test_select_has_records_by_number_as_rows(make: Any) -> None:
    batch = make().select([3, 0])
    assert contents(batch) == ([ROWS[3], ROWS[0]], [30, 10], [4, 1]) and batch.schema is None


@BOTH
def test_with_times_keeps_records_and_keys(make: Any) -> None:
    assert contents(make().with_times(None)) == (ROWS, None, KEYS)
    assert contents(make().with_times([5, 6, 7, 8])) == (ROWS, [5, 6, 7, 8], KEYS)


def test_only_columns_have_a_schema() -> None:
    assert as_rows().schema is None and not as_rows().columns
    assert as_columns().schema == Schema("iO", 2)
    assert ColumnBatch.of_scalars([1.5]).schema == Schema("f", 0)


def test_batch_without_times_has_no_greatest_time() -> None:
    assert Batch([1]).greatest_time() is None and Batch([], []).greatest_time() is None
    assert Batch([1]).time_list() is None and Batch([1]).time_column() is None


def test_times_of_which_one_is_missing_are_no_column() -> None:
    assert Batch([1, 2], [5, None]).time_column() is None


def test_pair_of_a_reader_becomes_a_batch() -> None:
    assert contents(Batch.of((range(3), None))) == ([0, 1, 2], None, None)
    assert contents(Batch.of((["a"], [7]))) == (["a"], [7], None)
    columns = Batch.of((ColumnBatch.of_scalars([1, 2]), [7, 8]))
    assert contents(columns) == ([1, 2], [7, 8], None) and columns.schema == Schema("i", 0)


@BOTH
def test_batch_of_a_reader_stays_as_it_is(make: Any) -> None:
    batch = make()
    assert Batch.of(batch) is batch


def test_times_of_a_reader_in_another_sequence_become_a_list() -> None:
    assert Batch.of((["a", "b"], (1, 2))).time_list() == [1, 2]  # type: ignore[arg-type]
    assert Batch.of((["a", "b"], range(2))).time_list() == [0, 1]  # type: ignore[arg-type]
