"""Lines of CSV: their dialect, rows parsed and written by columns, and PyFlink's schemas for messages.

The schemas have all options of PyFlink. A cell costs the parsing of its text and little else.
"""

from __future__ import annotations

import base64
import csv
import dataclasses
import datetime
import decimal
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from tidegate.base.arguments import wrong
from tidegate.base.errors import ConfigurationError, UserCodeError
from tidegate.common import scalar_conversion as scalars
from tidegate.common.scalar_conversion import double_text, float_text
from tidegate.common.serialization import DeserializationSchema, SerializationSchema
from tidegate.common.typeinfo import (
    INTEGER_BITS,
    DecimalTypeInfo,
    ElementTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    is_bytes,
)
from tidegate.common.types import Row
from tidegate.connectors.formats.columns import RowColumns
from tidegate.connectors.formats.json_rows import clock_time, timestamp
from tidegate.operators.contracts.arrow_batch import DecodedBatch, Layout, ParsedColumns, has_arrow
from tidegate.operators.contracts.arrow_types import named_row, rows_of
from tidegate.operators.contracts.batch import Batch

Converter = Callable[[Any], Any]


@dataclass(frozen=True)
class CsvDialect:
    """``quote`` and ``escape`` None: there is no such character. ``null``: the text for None."""

    delimiter: str = ","
    quote: str | None = '"'
    escape: str | None = None
    null: str | None = None
    comments: bool = False
    line_end: str = "\n"

    def cells(self, lines: Iterable[str]) -> Iterable[list[str]]:
        return csv.reader(
            lines,
            delimiter=self.delimiter,
            quotechar=self.quote,
            escapechar=self.escape,
            quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
        )


class BadCell(ValueError):
    """A cell or a line that does not fit. ``row``: the number of its row in the given list."""

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(problem)
        self.row = row


class CsvCells:
    """Parse texts of cells to values of their columns. ``separators``: of array elements, by column."""

    def __init__(self, row_type: RowTypeInfo, separators: Sequence[str], null: str | None) -> None:
        self.names = row_type.get_field_names()
        self._columns = [_COLUMNS.get(info.describe()) if null is None else None for info in row_type.get_field_types()]
        self._parsers = [
            _cell(info, separator, null) for info, separator in zip(row_type.get_field_types(), separators, strict=True)
        ]

    def columns(self, rows: list[list[str]]) -> list[list[Any]]:
        """A list of values for each column. Raises BadCell for the first row that does not fit."""
        width = len(self.names)
        if {width}.issuperset(map(len, rows)):
            try:
                columns = list(zip(*rows, strict=True)) or [()] * width
                ways = zip(self._columns, self._parsers, columns, strict=True)
                return [whole(cells) if whole else [parse(cell) for cell in cells] for whole, parse, cells in ways]
            except Exception:
                pass  # the loop below finds the cell
        for number, row in enumerate(rows):
            self.check(number, row)
        raise AssertionError("a cell could be parsed only the second time")

    def check(self, number: int, row: list[str]) -> list[Any]:
        """The values of one row."""
        if len(row) != len(self.names):
            raise BadCell(number, f"Row length mismatch. {len(self.names)} fields expected but was {len(row)}.")
        values = []
        for name, parse, cell in zip(self.names, self._parsers, row, strict=True):
            try:
                values.append(parse(cell))
            except Exception as error:
                raise BadCell(number, f"column '{name}': {cell!r:.60}: {error}") from None
        return values


def _cell(info: TypeInformation, separator: str, null: str | None) -> Converter:
    parse = _parser(info, separator)
    if null is None:
        return parse
    return lambda cell: None if cell == null else parse(cell)


def _parser(info: TypeInformation, separator: str) -> Converter:
    described = info.describe()
    if described in INTEGER_BITS:
        whole = scalars.integer(INTEGER_BITS[described])
        return lambda cell: whole(int(cell))
    if isinstance(info, DecimalTypeInfo):
        convert = scalars.decimal_of(info.precision, info.scale, exact=info.exact)
        return lambda cell: convert(cell.strip())
    if is_bytes(info):
        return base64.b64decode
    if isinstance(info, ElementTypeInfo):
        element = _parser(info.elem_type, separator)
        return lambda cell: [element(part) for part in cell.split(separator)] if cell else []
    if isinstance(info, RowTypeInfo):
        return _nested_row(info, separator)
    if isinstance(info, TupleTypeInfo):
        parts = [_parser(part, separator) for part in info.get_field_types()]
        return lambda cell: tuple(p(text) for p, text in zip(parts, cell.split(separator), strict=True))
    if isinstance(info, MapTypeInfo) or described not in _PARSERS:
        raise NotImplementedError(described)
    return _PARSERS[described]


def _nested_row(info: RowTypeInfo, separator: str) -> Converter:
    names, parts = info.get_field_names(), [_parser(part, separator) for part in info.get_field_types()]

    def parse(cell: str) -> Row:
        return named_row([p(text) for p, text in zip(parts, cell.split(separator), strict=True)], names)

    return parse


def unfit(row_type: RowTypeInfo) -> str | None:
    """The first field whose type CSV cannot hold; None: there is none."""
    for name, info in zip(row_type.get_field_names(), row_type.get_field_types(), strict=True):
        try:
            _parser(info, ";")
        except NotImplementedError as error:
            return f"{name}: {error}"
    return None


_PARSERS: dict[str, Converter] = {
    "STRING": str,
    "CHAR": str,
    "BOOLEAN": lambda cell: cell.strip().lower() == "true",
    "DOUBLE": float,
    "FLOAT": lambda cell: scalars.as_float(float(cell)),
    "BIG_INT": int,
    "BIG_DEC": lambda cell: decimal.Decimal(cell.strip()),
    **dict.fromkeys(("SQL_DATE", "LOCAL_DATE"), lambda cell: datetime.date.fromisoformat(cell.strip())),
    **dict.fromkeys(("SQL_TIME", "LOCAL_TIME"), clock_time),
    **dict.fromkeys(("SQL_TIMESTAMP", "LOCAL_DATE_TIME"), timestamp),
}


def _integers(bits: int) -> Callable[[Sequence[str]], list[Any]]:
    limit = 1 << bits - 1

    def parse(cells: Sequence[str]) -> list[int]:
        numbers = list(map(int, cells))
        if numbers and not (-limit <= min(numbers) and max(numbers) < limit):
            raise OverflowError(f"one does not fit in {bits} bits")
        return numbers

    return parse


def _flags(cells: Sequence[str]) -> list[Any]:
    return [cell == "true" or (cell != "false" and cell.strip().lower() == "true") for cell in cells]


_COLUMNS: dict[str, Callable[[Sequence[str]], Any]] = {
    **{name: _integers(bits) for name, bits in INTEGER_BITS.items()},
    "DOUBLE": lambda cells: list(map(float, cells)),
    "STRING": lambda cells: cells,
    "BOOLEAN": _flags,
}
"""Parsers of whole columns, used if the dialect has no text for None."""


# -- writing


class CsvLines:
    """Write values as lines. A text is quoted where Jackson, Flink's CSV writer, quotes it: if the text is long, or contains a
    character that could be special."""

    def __init__(self, row_type: RowTypeInfo, separators: Sequence[str], dialect: CsvDialect) -> None:
        self._dialect = dialect
        self._writers = [
            _cell_writer(info, separator, dialect)
            for info, separator in zip(row_type.get_field_types(), separators, strict=True)
        ]

    def lines(self, columns: Sequence[Sequence[Any]]) -> list[str]:
        """A line for each position of the columns, without its line end."""
        cells = [[write(value) for value in column] for write, column in zip(self._writers, columns, strict=True)]
        return list(map(self._dialect.delimiter.join, zip(*cells, strict=True)))


_LONGEST_UNQUOTED = 24


def quoter(dialect: CsvDialect) -> Callable[[str], str]:
    """The function that quotes a text for a cell."""
    quote, escape = dialect.quote, dialect.escape
    if quote is None:
        return _escaper(dialect.delimiter + (escape or ""), escape) if escape else lambda text: text
    highest = max(map(ord, dialect.delimiter + quote + dialect.line_end))
    # Every character up to the greatest special one, tested at once, as in Jackson.
    suspicious = re.compile(f"[\\x00-{re.escape(chr(highest))}]" + (f"|{re.escape(escape)}" if escape else "")).search
    escaped = _escaper(escape, escape) if escape else str  # a quote is doubled, as in Jackson

    def quoted(text: str) -> str:
        if len(text) <= _LONGEST_UNQUOTED and not suspicious(text):
            return text
        return f"{quote}{escaped(text).replace(quote, quote * 2)}{quote}"

    return quoted


def _escaper(characters: str, escape: str) -> Callable[[str], str]:
    pattern = re.compile(f"[{re.escape(characters)}]")
    return lambda text: pattern.sub(lambda match: escape + match.group(), text)


def _cell_writer(info: TypeInformation, separator: str, dialect: CsvDialect) -> Converter:
    null, quote = dialect.null or "", quoter(dialect)
    if info.describe() in ("STRING", "CHAR"):
        return lambda value: null if value is None else quote(value)
    text = text_of(info, separator)
    if isinstance(info, ElementTypeInfo | RowTypeInfo | TupleTypeInfo):
        return lambda value: null if value is None else quote(text(value))
    return lambda value: null if value is None else text(value)


def text_of(info: TypeInformation, separator: str) -> Callable[[Any], str]:
    """The function that writes a value as Java does."""
    described = info.describe()
    if is_bytes(info):
        return lambda value: base64.b64encode(value).decode()
    if isinstance(info, ElementTypeInfo):
        element = text_of(info.elem_type, separator)
        return lambda value: separator.join([element(item) for item in value])
    if isinstance(info, RowTypeInfo | TupleTypeInfo):
        parts = [text_of(part, separator) for part in info.get_field_types()]
        return lambda value: separator.join([p(item) for p, item in zip(parts, value, strict=True)])
    return _TEXTS.get(described, str)


_TEXTS: dict[str, Callable[[Any], str]] = {
    "BOOLEAN": lambda value: "true" if value else "false",
    "DOUBLE": double_text,
    "FLOAT": float_text,
    **dict.fromkeys(("SQL_TIMESTAMP", "LOCAL_DATE_TIME"), lambda value: value.isoformat(" ")),
}


class _CharactersBuilder:
    """The options that both builders have."""

    def __init__(self, method: str, type_info: TypeInformation) -> None:
        self._type = _row_type(method, type_info)
        self._dialect, self._separator = CsvDialect(), ";"

    def set_array_element_delimiter(self, delimiter: str) -> Self:
        """Set the text between the elements of an array; ``;`` by default."""
        self._separator = delimiter
        return self

    def set_quote_character(self, c: str) -> Self:
        """Set the character around cells that contain delimiters; ``"`` by default."""
        self._dialect = _with(self._dialect, "set_quote_character", quote=c)
        return self

    def set_escape_character(self, c: str) -> Self:
        """Set the character that makes the next character plain text. There is none by default."""
        self._dialect = _with(self._dialect, "set_escape_character", escape=c)
        return self


_COLUMNAR = frozenset(
    [*INTEGER_BITS, "BOOLEAN", "DOUBLE", "STRING", "SQL_DATE", "LOCAL_DATE", "LOCAL_TIME", "LOCAL_DATE_TIME"]
)
"""Types whose values are the same as rows and as Arrow's columns."""


def parsed_batch(found: ParsedColumns, layout: Layout) -> Batch | list[Any]:
    """Return the records of parsed cells. A type without a column in Arrow, or one that changes a value, gives rows."""
    columnar = all(info.describe() in _COLUMNAR for info in layout.columns.get_field_types())
    return DecodedBatch(found, layout) if columnar and has_arrow() else found.rows()


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
            rows = list(self._dialect.cells(io.StringIO(text, newline="")))  # splitlines would divide at U+2028 too
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
        found = self._together(payloads)
        return [self.deserialize(payload) for payload in payloads] if found is None else found.rows()

    def deserialize_as_batch(self, payloads: list[bytes]) -> Batch | list[Any]:
        """Do the same. A connector for which the reader decides between rows and columns calls this method."""
        found = self._together(payloads)
        if found is None:
            return [self.deserialize(payload) for payload in payloads]
        return parsed_batch(found, Layout(self._type))

    def _together(self, payloads: list[bytes]) -> ParsedColumns | None:
        cells = self._made()
        try:
            texts = b"\n".join(payloads).decode("utf-8").split("\n")
            if len(texts) == len(payloads) and not (self._dialect.comments and any(t[:1] == "#" for t in texts)):
                rows = list(self._dialect.cells(texts))
                if len(rows) == len(payloads):
                    return ParsedColumns(cells.columns(rows), cells.names)
        except (BadCell, ValueError, csv.Error):
            pass
        return None

    def get_produced_type(self) -> TypeInformation:
        return self._type

    class Builder(_CharactersBuilder):
        """Collects the settings of a ``CsvRowDeserializationSchema``."""

        def __init__(self, type_info: TypeInformation) -> None:
            super().__init__("CsvRowDeserializationSchema.Builder", type_info)
            self._ignore = False

        def set_field_delimiter(self, delimiter: str) -> CsvRowDeserializationSchema.Builder:
            """Set the character between two cells; a comma by default."""
            self._dialect = _with(self._dialect, "set_field_delimiter", delimiter=delimiter)
            return self

        def set_allow_comments(self, allow_comments: bool) -> CsvRowDeserializationSchema.Builder:
            """Skip messages that begin with ``#``."""
            self._dialect = dataclasses.replace(self._dialect, comments=bool(allow_comments))
            return self

        def set_null_literal(self, null_literal: str) -> CsvRowDeserializationSchema.Builder:
            """Set the text that means None."""
            self._dialect = dataclasses.replace(self._dialect, null=null_literal)
            return self

        def set_ignore_parse_errors(self, ignore_parse_errors: bool) -> CsvRowDeserializationSchema.Builder:
            """Skip messages that do not fit the type instead of failing the job."""
            self._ignore = bool(ignore_parse_errors)
            return self

        def build(self) -> CsvRowDeserializationSchema:
            """Return the schema."""
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
        """Collects the settings of a ``CsvRowSerializationSchema``."""

        def __init__(self, type_info: TypeInformation) -> None:
            super().__init__("CsvRowSerializationSchema.Builder", type_info)

        def set_field_delimiter(self, c: str) -> CsvRowSerializationSchema.Builder:
            """Set the character between two cells; a comma by default."""
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
            """Write no quotes. A cell that contains a delimiter is then escaped, if there is an escape character."""
            self._dialect = dataclasses.replace(self._dialect, quote=None)
            return self

        def set_null_literal(self, s: str) -> CsvRowSerializationSchema.Builder:
            """Set the text that is written for None."""
            self._dialect = dataclasses.replace(self._dialect, null=s)
            return self

        def build(self) -> CsvRowSerializationSchema:
            """Return the schema."""
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
