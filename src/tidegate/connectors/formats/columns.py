"""Convert rows to columns and back: the part that all formats share."""

from __future__ import annotations

from typing import Any

from tidegate.base.errors import ArgumentTypeError, UserCodeError
from tidegate.common.conversion import Conversion
from tidegate.common.typeinfo import RowTypeInfo

ROWS = 1024
"""Records of a batch of Python objects: while they are made they stay in the processor's cache."""


class RowColumns:
    """Split the records of a bulk writer into values of the columns' types. Raises an error that names a value which does not
    fit."""

    def __init__(self, row_type: RowTypeInfo, writer: str) -> None:
        self.names = row_type.get_field_names()
        self._writer, self._convert = writer, Conversion(row_type).call

    def __call__(self, values: list[Any]) -> list[tuple[Any, ...]]:
        """One tuple of values for each column; none if there are no records."""
        return list(zip(*self.lists(values), strict=True))

    def lists(self, values: list[Any]) -> list[list[Any]]:
        """The fields of each record."""
        convert = self._convert
        try:
            return [convert(value)._values for value in values]
        except (ArgumentTypeError, AttributeError) as error:
            raise self._refusal(values, error) from error

    def _refusal(self, values: list[Any], error: Exception) -> UserCodeError:
        if not isinstance(error, ArgumentTypeError):
            return UserCodeError(
                "A record of a bulk writer is not a row",
                where=self._writer,
                found=f"{sum(value is None for value in values)} of {len(values)} records are None",
                cure="filter them out before the sink",
            )
        return UserCodeError(error.rule, where=self._writer, found=error.found, cure=error.cure)
