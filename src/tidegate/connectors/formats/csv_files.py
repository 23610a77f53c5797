"""CSV files: their schema, read as rows and written in bulk."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from tidegate.base.arguments import wrong
from tidegate.base.errors import CorruptFileError, ProgramError
from tidegate.common.serialization import BulkWriterFactory, RowDataBulkWriterFactory
from tidegate.common.typeinfo import DecimalTypeInfo, ListTypeInfo, RowTypeInfo, TypeInformation, Types
from tidegate.connectors.files.file_format import StreamFormat, decompressed, unchanged
from tidegate.connectors.formats.columns import ROWS, RowColumns
from tidegate.connectors.formats.csv_schemas import BadCell, CsvCells, CsvDialect, CsvLines, parsed_batch
from tidegate.operators.contracts.arrow_batch import Layout, ParsedColumns, is_same_type
from tidegate.operators.contracts.arrow_types import row_values
from tidegate.operators.contracts.batch import Batch
from tidegate.table.types import DataType, info_of


@dataclasses.dataclass(frozen=True)
class CsvSchema:
    """Columns and special characters of a CSV file. Made by ``CsvSchema.builder()``."""

    row_type: RowTypeInfo
    separators: tuple[str, ...]
    dialect: CsvDialect
    use_header: bool = False
    strict_headers: bool = False
    skip_first: bool = False

    @staticmethod
    def builder() -> CsvSchemaBuilder:
        """Return a builder without columns."""
        return CsvSchemaBuilder()

    def size(self) -> int:
        """Return the number of columns."""
        return len(self.separators)

    def __len__(self) -> int:
        return self.size()


class CsvSchemaBuilder:
    """Add columns in their order, then set characters. Every method except ``build`` and ``size`` returns the builder."""

    def __init__(self) -> None:
        self._columns: list[tuple[str, TypeInformation, str | None]] = []
        self._dialect, self._separator = CsvDialect(), ";"
        self._header, self._strict, self._skip, self._exact = False, False, False, False

    def build(self) -> CsvSchema:
        """Return the schema. It needs at least one column."""
        if not self._columns:
            raise ProgramError("The CSV schema has no columns", where="CsvSchema.builder()", cure="add a column")
        names, types, separators = zip(*self._columns, strict=True)
        filled = tuple(self._separator if separator is None else separator for separator in separators)
        row_type = RowTypeInfo([_decimals(info, exact=self._exact) for info in types], list(names))
        return CsvSchema(row_type, filled, self._dialect, self._header, self._strict, self._skip)

    def _add(self, name: str, info: TypeInformation, separator: str | None = None) -> CsvSchemaBuilder:
        if any(name == known for known, _, _ in self._columns):
            raise ProgramError("Two columns of the CSV schema have the same name", found=repr(name), cure="rename one")
        self._columns.append((name, info, separator))
        return self

    def add_array_column(
        self, name: str, separator: str = ";", element_type: DataType | None = None
    ) -> CsvSchemaBuilder:
        """Add a column of lists. ``separator`` stands between the elements, which are texts unless ``element_type``
        says otherwise."""
        element = Types.STRING() if element_type is None else info_of("add_array_column", element_type)
        return self._add(name, Types.LIST(element), separator)

    def add_boolean_column(self, name: str) -> CsvSchemaBuilder:
        """Add a column of ``true`` and ``false``."""
        return self._add(name, Types.BOOLEAN())

    def add_number_column(self, name: str, number_type: DataType | None = None) -> CsvSchemaBuilder:
        """Add a column of numbers: 64-bit integers unless ``number_type`` says otherwise."""
        return self._add(name, Types.LONG() if number_type is None else info_of("add_number_column", number_type))

    def add_string_column(self, name: str) -> CsvSchemaBuilder:
        """Add a column of texts."""
        return self._add(name, Types.STRING())

    def add_columns_from(self, schema: CsvSchema) -> CsvSchemaBuilder:
        """Add all columns of another schema, in their order."""
        fields = zip(
            schema.row_type.get_field_names(), schema.row_type.get_field_types(), schema.separators, strict=True
        )
        for name, info, separator in fields:
            self._add(name, info, separator)
        return self

    def clear_columns(self) -> CsvSchemaBuilder:
        """Remove all columns."""
        self._columns.clear()
        return self

    def set_allow_comments(self, allow: bool = True) -> CsvSchemaBuilder:
        """Skip lines that begin with ``#``."""
        return self._set(comments=allow)

    def set_any_property_name(self, name: str) -> CsvSchemaBuilder:
        """Not supported: a line with more columns than the schema is an error, there is no field for the rest."""
        raise ProgramError(
            "A CSV schema must name all its columns",
            where="set_any_property_name",
            found=repr(name),
            cure="add the columns",
        )

    def disable_array_element_separator(self) -> CsvSchemaBuilder:
        """Read and write the columns of arrays as one element each."""
        self._separator = ""
        return self

    def remove_array_element_separator(self, index: int) -> CsvSchemaBuilder:
        """Read and write this column of arrays as one element."""
        name, info, _ = self._columns[index]
        self._columns[index] = name, info, ""
        return self

    def set_array_element_separator(self, separator: str) -> CsvSchemaBuilder:
        """Set the separator of array columns that have none of their own; ``;`` by default."""
        self._separator = separator
        return self

    def set_column_separator(self, char: str) -> CsvSchemaBuilder:
        """Set the character between two cells; a comma by default."""
        return self._set(delimiter=_single("Column separator", char))

    def disable_escape_char(self) -> CsvSchemaBuilder:
        """Use no escape character. This is the default."""
        return self._set(escape=None)

    def set_escape_char(self, char: str) -> CsvSchemaBuilder:
        """Set the character that makes the next character plain text."""
        return self._set(escape=_single("Escape char", char))

    def set_line_separator(self, separator: str) -> CsvSchemaBuilder:
        """Set the end of written lines. Readers accept all line ends."""
        return self._set(line_end=separator)

    def set_null_value(self, null_value: str) -> CsvSchemaBuilder:
        """Set the text that means None."""
        return self._set(null=null_value)

    def disable_quote_char(self) -> CsvSchemaBuilder:
        """Read every line as a record. Large files are then read in parts."""
        return self._set(quote=None)

    def set_quote_char(self, char: str) -> CsvSchemaBuilder:
        """Set the character around cells that contain delimiters; ``"`` by default."""
        return self._set(quote=_single("Quote char", char))

    def set_skip_first_data_row(self, skip: bool = True) -> CsvSchemaBuilder:
        """Skip the first row of each file."""
        self._skip = skip
        return self

    def set_strict_headers(self, strict: bool = True) -> CsvSchemaBuilder:
        """Refuse a file whose header has other names than the schema."""
        self._strict = strict
        return self

    def set_strict_decimals(self, strict: bool = True) -> CsvSchemaBuilder:
        """Let readers and writers refuse a decimal with more digits than its column. Otherwise, as in PyFlink, digits after the
        point are rounded, and a decimal with too many digits before the point becomes None."""
        self._exact = strict
        return self

    def set_use_header(self, use: bool = True) -> CsvSchemaBuilder:
        """Read names from the first line. If they are those of the schema, they give the order of the columns in the file.
        Otherwise the order of the schema applies, whatever names the header has. ``set_strict_headers`` refuses both."""
        self._header = use
        return self

    def _set(self, **setting: Any) -> CsvSchemaBuilder:
        self._dialect = dataclasses.replace(self._dialect, **setting)
        return self

    def size(self) -> int:
        """Return the number of columns so far."""
        return len(self._columns)

    def __len__(self) -> int:
        return self.size()


def _decimals(info: TypeInformation, *, exact: bool) -> TypeInformation:
    """The type of a column, with exact or rounded decimals."""
    if isinstance(info, ListTypeInfo):
        return Types.LIST(_decimals(info.elem_type, exact=exact))
    return DecimalTypeInfo(info.precision, info.scale, exact=exact) if isinstance(info, DecimalTypeInfo) else info


def _single(what: str, char: str) -> str:
    if not isinstance(char, str) or len(char) != 1:
        raise ProgramError(f"{what} must be a single char, got {char}", cure="for example '|'")
    return char


class CsvReaderFormat(StreamFormat):
    """Read rows of CSV files. A quoted cell may contain a line break, so one subtask reads a whole file in one round, unless there
    are no quotes or ``quoted_line_breaks=False`` promises that no cell contains one."""

    def __init__(self, schema: CsvSchema, charset: str, quoted_line_breaks: bool) -> None:
        super().__init__(charset)
        self._schema, self._breaks = schema, quoted_line_breaks and schema.dialect.quote is not None
        self._layout = Layout(schema.row_type)

    @staticmethod
    def for_schema(schema: CsvSchema, *, charset: str = "UTF-8", quoted_line_breaks: bool = True) -> CsvReaderFormat:
        """Read rows of these columns. With ``quoted_line_breaks=False`` no cell has a line break, so a large file may
        be divided at lines."""
        if not isinstance(schema, CsvSchema):
            raise wrong("CsvReaderFormat.for_schema", "a CsvSchema", schema, "CsvSchema.builder()...build()")
        return CsvReaderFormat(schema, charset, quoted_line_breaks)

    def produced_type(self) -> TypeInformation:
        return self._schema.row_type

    def can_cut(self, path: str) -> bool:
        headed = self._schema.use_header or self._schema.skip_first
        return not self._breaks and not headed and super().can_cut(path)

    def read(self, path: str, size: int, start: int, end: int) -> Iterator[list[Any] | Batch]:
        schema = self._schema
        cells = CsvCells(schema.row_type, schema.separators, schema.dialect.null)
        if self.can_cut(path):
            for lines in self.lines(path, size, start, end):
                for at in range(0, len(lines), ROWS):
                    yield self._of_lines(lines[at : at + ROWS], cells, path)
            return
        done = 0
        with unchanged(path, size).open_stream("") as stream:
            for rows in self._batches(_NumberedLines(self._text(stream, path), schema.dialect.comments), path):
                try:
                    yield self._batch(cells.columns(rows))
                except BadCell as error:
                    raise _bad(path, self._line_of(path, size, done + error.row), str(error)) from None
                done += len(rows)

    def _batch(self, columns: list[list[Any]]) -> Batch | list[Any]:
        return parsed_batch(ParsedColumns(columns, self._schema.row_type.get_field_names()), self._layout)

    def _of_lines(self, lines: list[str], cells: CsvCells, path: str) -> Batch | list[Any]:
        dialect = self._schema.dialect
        texts = [text for text in lines if text and not (dialect.comments and text.startswith("#"))]
        rows: list[list[str]] = []
        try:
            rows.extend(dialect.cells(texts))
            return self._batch(cells.columns(rows))
        except BadCell as error:
            raise _bad(path, f"line {texts[error.row]!r:.80}", str(error)) from None
        except csv.Error as error:
            raise _bad(path, f"line {texts[len(rows)]!r:.80}", str(error)) from None

    def _text(self, stream: Any, path: str) -> io.TextIOWrapper:
        return io.TextIOWrapper(decompressed(stream, path), encoding=self.charset, newline="")

    def _batches(self, lines: _NumberedLines, path: str, width: int = ROWS) -> Iterator[list[list[str]]]:
        reader = iter(self._schema.dialect.cells(lines))
        try:
            order = self._header(next(reader, None), path) if self._schema.use_header else None
            if self._schema.skip_first:
                next(reader, None)
            while rows := list(islice(reader, width)):
                found = [row for row in rows if row]
                if order is not None:
                    found = [[row[n] for n in order] if len(row) == len(order) else row for row in found]
                yield found
        except UnicodeDecodeError as error:
            raise _bad(path, f"after line {lines.number}", str(error)) from None
        except csv.Error as error:
            raise _bad(path, f"line {lines.number}", str(error)) from None

    def _line_of(self, path: str, size: int, record: int) -> str:
        """The line at which a record ends, found by reading the file again. Called for a bad record only."""
        with unchanged(path, size).open_stream("") as stream:
            lines = _NumberedLines(self._text(stream, path), self._schema.dialect.comments)
            for rows in self._batches(lines, path, 1):
                record -= len(rows)
                if record < 0:
                    break
            return f"line {lines.number}"

    def _header(self, found: list[str] | None, path: str) -> list[int] | None:
        """The positions in the file of the schema's columns; None: the order of the schema, whatever names the header has."""
        names = self._schema.row_type.get_field_names()
        if found is None:
            return None
        found = [name.strip() for name in found]
        if self._schema.strict_headers and found != names:
            raise _bad(path, "line 1", f"the header has the columns {found}, the schema {names}")
        return [found.index(name) for name in names] if sorted(found) == sorted(names) else None


class _NumberedLines:
    """Lines of a file with the number of the last one."""

    def __init__(self, text: io.TextIOWrapper, comments: bool) -> None:
        self._text, self._comments, self.number = text, comments, 0

    def __iter__(self) -> Iterator[str]:
        for line in self._text:
            self.number += 1
            if not (self._comments and line.startswith("#")):
                yield line


def _bad(path: str, place: str, found: str) -> CorruptFileError:
    return CorruptFileError(
        "A line of a CSV file does not fit the schema",
        where=f"file {path}, {place}",
        found=found,
        cure="correct the file or the CsvSchema",
    )


class CsvBulkWriters:
    """Writers of CSV files for ``FileSink.for_bulk_format``."""

    @staticmethod
    def for_schema(schema: CsvSchema) -> BulkWriterFactory:
        """Write rows into CSV files. Columns, delimiter, quotes and null are those of the schema."""
        return CsvBulkWriterFactory(schema)


class CsvBulkWriterFactory(RowDataBulkWriterFactory):
    def __init__(self, schema: CsvSchema) -> None:
        super().__init__(schema.row_type)
        self._schema = schema
        self._made: tuple[RowColumns, CsvLines] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}

    def pack(self, values: list[Any]) -> bytes:
        schema = self._schema
        if self._made is None:
            columns = RowColumns(schema.row_type, "CSV writer")
            self._made = columns, CsvLines(schema.row_type, schema.separators, schema.dialect)
        columns, lines = self._made
        return self._packed(lines, columns(values))

    def _packed(self, lines: CsvLines, columns: Sequence[Sequence[Any]]) -> bytes:
        end = self._schema.dialect.line_end
        return (end.join(lines.lines(columns)) + end).encode()

    def pack_columns(self, columns: Any, row_type: TypeInformation) -> bytes | None:
        schema = self._schema
        if not is_same_type(row_type, schema.row_type):
            return None
        lines = CsvLines(schema.row_type, schema.separators, schema.dialect)
        return self._packed(lines, row_values(schema.row_type, columns.columns))

    def write(self, batches: Iterator[bytes], target: Any) -> None:
        dialect = self._schema.dialect
        if self._schema.use_header:
            target.write((dialect.delimiter.join(self._schema.row_type.get_field_names()) + dialect.line_end).encode())
        for batch in batches:
            target.write(batch)
