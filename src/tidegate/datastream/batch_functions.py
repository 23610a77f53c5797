"""Functions over batches of records: the classes that users extend, the formats of a batch, and the calls.

A function gets a batch of the stream's records as columns and returns columns. How many records a batch has is not defined: it
depends on the source, on the shuffle and on the end of a round. A result must not depend on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from tidegate.base.arguments import shown, wrong
from tidegate.base.errors import ArgumentTypeError, ConfigurationError
from tidegate.base.imports import library
from tidegate.datastream.functions import Function
from tidegate.datastream.timerservice import TimerService
from tidegate.operators.contracts.arrow_batch import ArrowBatch, Layout
from tidegate.operators.contracts.batch import Batch, Rows, Times
from tidegate.operators.contracts.functions import FunctionWrapper, TimeDomain, method_of

__all__ = ["BatchFilterFunction", "BatchFlatMapFunction", "BatchMapFunction", "KeyedBatchProcessFunction"]


class BatchMapFunction(Function):
    """Return one record for each record of a batch, in the same order (``DataStream.map_batches``)."""

    @abstractmethod
    def map_batch(self, batch: Any, /) -> Any:
        """Return a batch with as many records as ``batch``. Called once for each batch."""


class BatchFilterFunction(Function):
    """Say which records of a batch stay (``DataStream.filter_batches``)."""

    @abstractmethod
    def filter_batch(self, batch: Any, /) -> Any:
        """Return a boolean for each record of ``batch``, as an array or a list. A missing value counts as False."""


class BatchFlatMapFunction(Function):
    """Return any number of records for a batch (``DataStream.flat_map_batches``)."""

    @abstractmethod
    def flat_map_batch(self, batch: Any, /) -> Any:
        """Return a batch of any length, or None. Return ``(batch, rows)`` to keep timestamps: ``rows`` has for each result the
        number of the input record, from 0, whose timestamp the result gets."""


class KeyedBatchProcessFunction(Function):
    """Process the records of each key in batches, with the state and the timers of the key
    (``KeyedStream.process_batches``)."""

    class Context(ABC):
        """Valid during the call only."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """Return the key of the records, or of the timer."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Time and timers of the current key."""

    class OnTimerContext(Context):
        """The context of ``on_timer``."""

        @abstractmethod
        def timestamp(self) -> int:
            """Return the time of the timer in milliseconds."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Which clock the timer was set on."""

    @abstractmethod
    def process_batch(self, batch: Any, ctx: KeyedBatchProcessFunction.Context, /) -> Any:
        """Return a batch of any length, or None. Return ``(batch, rows)`` to give timestamps: ``rows`` has for each result
        the number of the input record, from 0, whose timestamp the result gets. Called once for each key that has records in
        a batch of the engine. A key may come in any number of batches."""

    def on_timer(self, timestamp: int, ctx: KeyedBatchProcessFunction.OnTimerContext, /) -> Any:
        """Handle a timer. Return a batch, or None. As in ``KeyedProcessFunction``, results of event-time timers have the
        timer's time."""


# -- formats


class _Format:
    """Show a record batch to the function, and take back what the function returns."""

    def open(self) -> None:
        """Raise ConfigurationError if a package is missing."""
        library("pyarrow", "A function over batches")

    def show(self, batch: Any) -> Any:
        return batch

    def take(self, given: Any) -> Any:
        return given


class _Pandas(_Format):
    def open(self) -> None:
        _optional("pandas")

    def show(self, batch: Any) -> Any:
        return batch.to_pandas()

    def take(self, given: Any) -> Any:
        pandas, arrow = _optional("pandas"), library("pyarrow", "A function over batches")
        if isinstance(given, pandas.Series):
            given = given.to_frame("value")
        _expect(given, pandas.DataFrame, "a pandas.DataFrame")
        return arrow.Table.from_pandas(given, preserve_index=False)


class _Polars(_Format):
    def open(self) -> None:
        _optional("polars")

    def show(self, batch: Any) -> Any:
        return _optional("polars").from_arrow(batch)

    def take(self, given: Any) -> Any:
        polars = _optional("polars")
        if isinstance(given, polars.Series):
            given = given.to_frame("value")
        _expect(given, polars.DataFrame, "a polars.DataFrame")
        return given.to_arrow()


class _Numpy(_Format):
    """A dict of numpy's arrays by the names of the columns. A column with missing values is an array of objects, or of floats."""

    def show(self, batch: Any) -> Any:
        names = batch.schema.names
        return {name: column.to_numpy(zero_copy_only=False) for name, column in zip(names, batch.columns, strict=True)}

    def take(self, given: Any) -> Any:
        arrow = library("pyarrow", "A function over batches")
        if isinstance(given, np.ndarray):
            given = {"value": given}
        _expect(given, dict, "a dict of numpy arrays")
        lengths = {len(column) for column in given.values()}
        if len(lengths) > 1:
            raise ArgumentTypeError(
                "The columns of a batch must have the same length",
                found=", ".join(f"{name}: {len(column)}" for name, column in given.items()),
                cure="return an array of the same length for each column",
            )
        return arrow.table({name: arrow.array(column) for name, column in given.items()})


_FORMATS: dict[str, _Format] = {"arrow": _Format(), "pandas": _Pandas(), "polars": _Polars(), "numpy": _Numpy()}


def _optional(package: str) -> Any:
    try:
        return library(package, f'batch_format="{package}"')
    except ConfigurationError as error:
        cure = f"pip install {package}, in the environment of the workers too; or use batch_format='arrow'"
        raise ConfigurationError(error.rule, found=error.found, cure=cure) from error.__cause__


def _expect(given: Any, kind: type, wanted: str) -> None:
    if not isinstance(given, kind):
        raise ArgumentTypeError(
            f"A function over batches must return {wanted}",
            found=f"{shown(given)}",
            cure=f"return {wanted}, or choose another batch_format",
        )


def expect_format(method: str, batch_format: Any) -> str:
    """Check the name of a format, and that its package is there: on the driver, before the job starts."""
    if batch_format not in _FORMATS:
        known = ", ".join(map(repr, _FORMATS))
        raise wrong(f"batch_format of {method}", f"one of {known}", batch_format, "the default is 'arrow'")
    _FORMATS[batch_format].open()
    return str(batch_format)


# -- calls


class _BatchCall(FunctionWrapper):
    """Call the user's function for a batch of the engine."""

    _method = ""

    def __init__(self, function: Any, given: Layout, batch_format: str, made: Layout | None = None) -> None:
        super().__init__(function)
        self._given, self._made, self._name = given, made or given, batch_format
        self._call: Callable[[Any], Any] = method_of(function, self._method)

    def process_batch(self, batch: Batch) -> Batch:
        """Return the batch to emit."""
        raise NotImplementedError

    def _shown(self, records: Any) -> Any:
        return self._call(_FORMATS[self._name].show(records))

    def _taken(self, given: Any) -> Any:
        return self._made.returned(_FORMATS[self._name].take(given))


class BatchMap(_BatchCall):
    _method = "map_batch"

    def process_batch(self, batch: Batch) -> Batch:
        records = self._given.batch_of(batch)
        result = self._taken(self._shown(records))
        if result.num_rows != records.num_rows:
            raise ArgumentTypeError(
                "A function of map_batches must return one record for each record of its batch",
                found=f"{records.num_rows} rows in, {result.num_rows} rows out",
                cure="return as many rows as the batch has, or use filter_batches or flat_map_batches",
            )
        return ArrowBatch(result, self._made, batch.times)


class BatchFilter(_BatchCall):
    _method = "filter_batch"

    def process_batch(self, batch: Batch) -> Batch:
        records = self._given.batch_of(batch)
        kept = np.flatnonzero(self._mask(self._shown(records), records.num_rows))
        if len(kept) == records.num_rows:
            return ArrowBatch(records, self._made, batch.times)
        return ArrowBatch(records.take(_indices(kept)), self._made, _times_at(batch, kept))

    def _mask(self, given: Any, rows: int) -> Any:
        arrow = library("pyarrow", "A function over batches")
        if isinstance(given, (arrow.Array, arrow.ChunkedArray)) and arrow.types.is_boolean(given.type):
            given = given.fill_null(False)
        if self._name == "polars" and hasattr(given, "fill_null"):
            given = given.fill_null(False)
        if self._name == "pandas" and hasattr(given, "fillna"):
            given = given.astype("boolean").fillna(False) if str(given.dtype) in ("object", "boolean") else given
        mask = np.asarray(given)
        if mask.dtype == object and mask.ndim == 1 and all(value is None or type(value) is bool for value in mask):
            mask = mask == True  # noqa: E712 - for each element; None counts as False
        if mask.dtype != np.bool_ or mask.shape != (rows,):
            raise ArgumentTypeError(
                "A function of filter_batches must return one boolean for each record of its batch",
                found=f"{rows} rows in, {mask.dtype} of shape {mask.shape} out",
                cure="return a boolean mask, for example pyarrow.compute.greater(batch['value'], 10)",
            )
        return mask


class BatchFlatMap(_BatchCall):
    _method, _api = "flat_map_batch", "flat_map_batches"

    def process_batch(self, batch: Batch) -> Batch:
        return self._emitted(batch, self._shown(self._given.batch_of(batch)))

    def _emitted(self, batch: Batch, given: Any) -> Batch:
        origins = None
        if isinstance(given, tuple):
            given, origins = given
        if given is None:
            return Batch([])
        result = self._taken(given)
        return ArrowBatch(result, self._made, None if origins is None else self._times(batch, origins, result.num_rows))

    def _times(self, batch: Batch, origins: Any, rows: int) -> Times | None:
        numbers = np.asarray(origins)
        fits = numbers.dtype.kind in "iu" and numbers.shape == (rows,)
        if rows and not (fits and int(numbers.min()) >= 0 and int(numbers.max()) < len(batch)):
            raise ArgumentTypeError(
                f"The second result of {self._api} must be the number of an input record for each result",
                found=f"{len(batch)} rows in, {rows} rows out, numbers {shown(numbers.tolist())}",
                cure="return (batch, rows), with a number from 0 to the length of the input for each result",
            )
        return _times_at(batch, numbers) if rows else None


class KeyedBatchProcess(BatchFlatMap):
    _method, _api = "process_batch", "process_batches"

    def __init__(self, function: Any, given: Layout, batch_format: str, made: Layout | None = None) -> None:
        super().__init__(function, given, batch_format, made)
        self._timer = function.on_timer

    def prepare(self, batch: Batch) -> ArrowBatch:
        """Return the records of all keys as columns."""
        return ArrowBatch(self._given.batch_of(batch), self._given, batch.times)

    def process_batch(self, batch: Batch, context: Any) -> list[ArrowBatch]:  # type: ignore[override]
        """Return the batches to emit for the current key."""
        shown = _FORMATS[self._name].show(self._given.batch_of(batch))
        call: Callable[..., Any] = self._call
        found = self._emitted(batch, call(shown, context))
        return [found] if isinstance(found, ArrowBatch) and len(found) else []

    def on_timer(self, timestamp: int, context: Any) -> Rows:
        """Return the records to emit for a timer."""
        found = self._timer(timestamp, context)
        return [] if found is None else self._made.rows(self._taken(found))


def _indices(numbers: Any) -> Any:
    return library("pyarrow", "A function over batches").array(numbers)


def _times_at(batch: Batch, numbers: Any) -> Times | None:
    times = batch.times
    if times is None or not isinstance(times, list):
        return None if times is None else times[numbers]
    return [times[n] for n in numbers.tolist()]
