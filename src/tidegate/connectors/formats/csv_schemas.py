"""Messages that are lines of CSV: PyFlink's schemas with all their options."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

from tidegate.base.arguments import wrong
from tidegate.base.errors import ConfigurationError, UserCodeError
from tidegate.common.serialization import DeserializationSchema, SerializationSchema
from tidegate.common.typeinfo import RowTypeInfo, TypeInformation
from tidegate.connectors.formats.columns import RowColumns, rows_of
from tidegate.connectors.formats.csv_rows import BadCell, CsvCells, CsvDialect, CsvLines, unfit


class _CharactersBuilder:
    """The options that both builders have."""

    def __init__(self, method: str, type_info: TypeInformation) -> None:
        self._type = _row_type(method, type_info)
        self._dialect, self._separator = CsvDialect(), ";"

    def set_array_element_delimiter(self, delimiter: str) -> Self:
        self._separator = delimiter
        return self

    def set_quote_character(self, c: str) -> Self:
        self._dialect = _with(self._dialect, "set_quote_character", quote=c)
        return self

    def set_escape_character(self, c: str) -> Self:
        self._dialect = _with(self._dialect, "set_escape_character", escape=c)
        return self


class CsvRowDeserializationSchema(DeserializationSchema):
    """Deserialize lines to rows. Made by its ``Builder``."""

    def __init__(self, row_type: RowTypeInfo, dialect: CsvDialect, separator: str, ignore_errors: bool) -> None:
        self._type, self._dialect, self._ignore = row_type, dialect, ignore_errors
        self._separator = separator
        self._cells: CsvCells | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cells": None}

    def _made(self) -> CsvCells:
        if self._cells is None:
            count = len(self._type.get_field_types())
            self._cells = CsvCells(self._type, [self._separator] * count, self._dialect.null)
        return self._cells

    def deserialize(self, message: bytes) -> Any:
        cells = self._made()
        try:
            text = message.decode("utf-8")
            if self._dialect.comments and text.startswith("#"):
                return None
            rows = list(self._dialect.cells(text.splitlines(keepends=True)))
            if len(rows) != 1:
                raise ValueError(f"one line is expected, found {len(rows)}")
            return rows_of([[value] for value in cells.check(0, rows[0])], cells.names)[0]
        except Exception as error:
            if self._ignore:
                return None
            raise UserCodeError(
                "A message is not a line of CSV of the declared type",
                where=f"CSV of {self._type}",
                found=f"{bytes(message).decode('utf-8', 'replace')!r:.120}: {error}",
                cure="correct the declared type or the delimiters; or skip such messages with set_ignore_parse_errors(True)",
            ) from None

    def deserialize_batch(self, payloads: list[bytes]) -> list[Any]:
        """Parse all lines at once; one by one if a message is not exactly one line, or a line does not fit."""
        cells = self._made()
        try:
            texts = b"\n".join(payloads).decode("utf-8").split("\n")
            if len(texts) == len(payloads) and not (self._dialect.comments and any(t[:1] == "#" for t in texts)):
                rows = list(self._dialect.cells(texts))
                if len(rows) == len(payloads):
                    return rows_of(cells.columns(rows), cells.names)
        except (BadCell, ValueError):
            pass
        return [self.deserialize(payload) for payload in payloads]

    def get_produced_type(self) -> TypeInformation:
        return self._type

    class Builder(_CharactersBuilder):
        def __init__(self, type_info: TypeInformation) -> None:
            super().__init__("CsvRowDeserializationSchema.Builder", type_info)
            self._ignore = False

        def set_field_delimiter(self, delimiter: str) -> CsvRowDeserializationSchema.Builder:
            self._dialect = _with(self._dialect, "set_field_delimiter", delimiter=delimiter)
            return self

        def set_allow_comments(self, allow_comments: bool) -> CsvRowDeserializationSchema.Builder:
            """Skip messages that begin with ``#``."""
            self._dialect = dataclasses.replace(self._dialect, comments=bool(allow_comments))
            return self

        def set_null_literal(self, null_literal: str) -> CsvRowDeserializationSchema.Builder:
            self._dialect = dataclasses.replace(self._dialect, null=null_literal)
            return self

        def set_ignore_parse_errors(self, ignore_parse_errors: bool) -> CsvRowDeserializationSchema.Builder:
            self._ignore = bool(ignore_parse_errors)
            return self

        def build(self) -> CsvRowDeserializationSchema:
            return CsvRowDeserializationSchema(self._type, self._dialect, self._separator, self._ignore)


class CsvRowSerializationSchema(SerializationSchema):
    """Serialize rows to lines. Made by its ``Builder``."""

    def __init__(self, row_type: RowTypeInfo, dialect: CsvDialect, separator: str) -> None:
        self._type, self._dialect, self._separator = row_type, dialect, separator
        self._made: tuple[RowColumns, CsvLines] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}

    def serialize(self, value: Any) -> bytes:
        return self.serialize_batch([value])[0]

    def serialize_batch(self, values: list[Any]) -> list[bytes]:
        if self._made is None:
            separators = [self._separator] * len(self._type.get_field_types())
            columns = RowColumns(self._type, "CsvRowSerializationSchema")
            self._made = columns, CsvLines(self._type, separators, self._dialect)
        columns, lines = self._made
        end = self._dialect.line_end
        return [(line + end).encode() for line in lines.lines(columns(values))] if values else []

    class Builder(_CharactersBuilder):
        def __init__(self, type_info: TypeInformation) -> None:
            super().__init__("CsvRowSerializationSchema.Builder", type_info)

        def set_field_delimiter(self, c: str) -> CsvRowSerializationSchema.Builder:
            self._dialect = _with(self._dialect, "set_field_delimiter", delimiter=c)
            return self

        def set_line_delimiter(self, delimiter: str) -> CsvRowSerializationSchema.Builder:
            """The text after every record: ``\\n`` by default; ``\\r``, ``\\r\\n`` or nothing."""
            if delimiter not in ("\n", "\r", "\r\n", ""):
                raise ConfigurationError(
                    "Unsupported new line delimiter", found=repr(delimiter), cure=r"use \n, \r, \r\n or nothing"
                )
            self._dialect = dataclasses.replace(self._dialect, line_end=delimiter)
            return self

        def disable_quote_character(self) -> CsvRowSerializationSchema.Builder:
            self._dialect = dataclasses.replace(self._dialect, quote=None)
            return self

        def set_null_literal(self, s: str) -> CsvRowSerializationSchema.Builder:
            self._dialect = dataclasses.replace(self._dialect, null=s)
            return self

        def build(self) -> CsvRowSerializationSchema:
            return CsvRowSerializationSchema(self._type, self._dialect, self._separator)


def _row_type(method: str, info: Any) -> RowTypeInfo:
    if info is None:
        raise wrong(method, "type information", info, "pass Types.ROW_NAMED([...], [...])")
    if not isinstance(info, RowTypeInfo):
        raise wrong(method, "a row type", info, "pass Types.ROW_NAMED([...], [...])")
    problem = unfit(info)
    if problem is not None:
        raise ConfigurationError(
            "CSV can hold numbers, texts, times, and arrays and rows of these",
            where=method,
            found=f"field {problem}",
            cure="map the field to such a type",
        )
    return info


def _with(dialect: CsvDialect, method: str, **character: str) -> CsvDialect:
    ((_, value),) = character.items()
    if not isinstance(value, str) or len(value) != 1:
        raise wrong(method, "a single character", value, "for example '|'")
    return dataclasses.replace(dialect, **character)  # type: ignore[arg-type]
