"""Messages and lines that are JSON objects: PyFlink's schemas, and files of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

from tidegate.base.arguments import wrong
from tidegate.base.errors import ConfigurationError, CorruptFileError, TidegateError, UserCodeError
from tidegate.common.serialization import (
    BulkWriterFactory,
    DeserializationSchema,
    RowDataBulkWriterFactory,
    SerializationSchema,
)
from tidegate.common.typeinfo import RowTypeInfo, TypeInformation, Types
from tidegate.connectors.files.file_format import StreamFormat, lines_before, text_lines
from tidegate.connectors.formats.json_rows import JsonObjects, JsonRows
from tidegate.operators.contracts.arrow_batch import is_same_type
from tidegate.operators.contracts.arrow_types import row_values
from tidegate.operators.contracts.batch import Batch
from tidegate.table.types import DataType, row_of


class JsonRowDeserializationSchema(DeserializationSchema):
    """Deserialize JSON objects to rows. Made by ``builder()``."""

    def __init__(self, rows: JsonRows, row_type: RowTypeInfo) -> None:
        self._rows, self._type = rows, row_type

    @staticmethod
    def builder() -> JsonRowDeserializationSchema.Builder:
        """Return a builder without a type."""
        return JsonRowDeserializationSchema.Builder()

    def deserialize(self, message: bytes) -> Any:
        return self._rows.row(message)

    def deserialize_batch(self, payloads: list[bytes]) -> list[Any]:
        return self._rows.rows(payloads)

    def deserialize_as_batch(self, payloads: list[bytes]) -> Batch | list[Any]:
        """Do the same. A connector for which the reader decides between rows and columns calls this method."""
        return self._rows.batch(payloads)

    def get_produced_type(self) -> TypeInformation:
        return self._type

    class Builder:
        """Collects the settings of a ``JsonRowDeserializationSchema``."""

        def __init__(self) -> None:
            self._type: RowTypeInfo | None = None
            self._strict, self._lenient = False, False

        def type_info(self, type_info: TypeInformation) -> JsonRowDeserializationSchema.Builder:
            """Set the row type; the names of its fields are the names in the object."""
            self._type = _row_type("JsonRowDeserializationSchema", type_info)
            return self

        def json_schema(self, json_schema: str) -> JsonRowDeserializationSchema.Builder:
            """Set the row type that a JSON schema describes."""
            if json_schema is None:
                raise wrong("json_schema", "a JSON schema", json_schema, "pass its text")
            self._type = _row_type("json_schema", row_type_of_json_schema(json_schema))
            return self

        def fail_on_missing_field(self) -> JsonRowDeserializationSchema.Builder:
            """Fail if a field is missing. Otherwise a missing field is None."""
            self._strict = True
            return self

        def ignore_parse_errors(self) -> JsonRowDeserializationSchema.Builder:
            """Skip messages that do not fit."""
            self._lenient = True
            return self

        def build(self) -> JsonRowDeserializationSchema:
            """Return the schema. Its type must have been set."""
            if self._type is None:
                raise wrong("JsonRowDeserializationSchema", "a type", None, "call type_info(Types.ROW_NAMED(...))")
            if self._strict and self._lenient:
                raise ConfigurationError(
                    "JSON format doesn't support failOnMissingField and ignoreParseErrors are both enabled.",
                    where="JsonRowDeserializationSchema",
                    cure="choose one of them",
                )
            rows = JsonRows(self._type, strict=self._strict, lenient=self._lenient)
            return JsonRowDeserializationSchema(rows, self._type)


class JsonRowSerializationSchema(SerializationSchema):
    """Serialize rows to JSON objects. Made by ``builder()``."""

    def __init__(self, objects: JsonObjects) -> None:
        self._objects = objects

    @staticmethod
    def builder() -> JsonRowSerializationSchema.Builder:
        """Return a builder without a type."""
        return JsonRowSerializationSchema.Builder()

    def serialize(self, value: Any) -> bytes:
        return self._objects.messages([value])[0]

    def serialize_batch(self, values: list[Any]) -> list[bytes]:
        return self._objects.messages(values)

    class Builder:
        """Collects the settings of a ``JsonRowSerializationSchema``."""

        def __init__(self) -> None:
            self._type: RowTypeInfo | None = None

        def with_type_info(self, type_info: TypeInformation) -> JsonRowSerializationSchema.Builder:
            """Set the type of the rows: ``Types.ROW`` or ``Types.ROW_NAMED``."""
            self._type = _row_type("JsonRowSerializationSchema", type_info)
            return self

        def build(self) -> JsonRowSerializationSchema:
            """Return the schema. Its type must have been set."""
            if self._type is None:
                raise wrong("JsonRowSerializationSchema", "a type", None, "call with_type_info(Types.ROW_NAMED(...))")
            return JsonRowSerializationSchema(JsonObjects(self._type))


def _row_type(method: str, info: Any) -> RowTypeInfo:
    if not isinstance(info, RowTypeInfo):
        raise wrong(method, "a row type", info, "pass Types.ROW_NAMED([...], [...])")
    return info


# -- JSON schemas

_BY_NAME = {
    "string": Types.STRING,
    "boolean": Types.BOOLEAN,
    "number": Types.BIG_DEC,
    "integer": Types.BIG_INT,
}
_BY_FORMAT = {"date-time": Types.SQL_TIMESTAMP, "date": Types.SQL_DATE, "time": Types.SQL_TIME}


def row_type_of_json_schema(text: str) -> TypeInformation:
    try:
        root = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(
            "The JSON schema is not a JSON object", found=str(error), cure="correct the schema"
        ) from None
    return _json_type(root, root, "<root>")


def _json_type(node: Any, root: Any, path: str) -> TypeInformation:
    if "$ref" in node:
        return _json_type(_referred(node["$ref"], root), root, path)
    kinds = node.get("type")
    kind = next((k for k in kinds if k != "null"), None) if isinstance(kinds, list) else kinds
    if kind == "object":
        fields = node.get("properties", {})
        return Types.ROW_NAMED(list(fields), [_json_type(part, root, f"{path}/{n}") for n, part in fields.items()])
    if kind == "array" and isinstance(node.get("items"), dict):
        return Types.OBJECT_ARRAY(_json_type(node["items"], root, f"{path}/items"))
    if kind == "array":
        return Types.ROW([_json_type(part, root, f"{path}/items") for part in node.get("items", [])])
    if kind == "string" and node.get("contentEncoding") == "base64":
        return Types.PRIMITIVE_ARRAY(Types.BYTE())
    if kind == "string" and node.get("format") in _BY_FORMAT:
        return _BY_FORMAT[node["format"]]()
    if kind not in _BY_NAME:
        raise ConfigurationError(
            "The JSON schema has a type that rows cannot hold",
            where=path,
            found=f"{kinds!r}",
            cure="use type_info(...)",
        )
    return _BY_NAME[kind]()


def _referred(reference: str, root: Any) -> Any:
    for part in reference.removeprefix("#/").split("/"):
        root = root.get(part, {})
    return root


# -- files

_KEPT = "surrogateescape"
"""How bytes that are not UTF-8 pass through a text."""


class JsonLinesFormat(StreamFormat):
    """Read rows from files with one JSON object on each line. Large files are read in parts."""

    errors: ClassVar[str] = _KEPT

    def __init__(self, row_type: RowTypeInfo, rows: JsonRows) -> None:
        super().__init__("UTF-8")
        self._type, self._rows = row_type, rows

    @staticmethod
    def for_type(
        type_info: TypeInformation | DataType, *, fail_on_missing_field: bool = False, ignore_parse_errors: bool = False
    ) -> JsonLinesFormat:
        """Read one JSON object a line as rows of this type. A missing field is None, or an error with
        ``fail_on_missing_field``. With ``ignore_parse_errors`` lines that do not fit are skipped."""
        row_type = row_of("JsonLinesFormat.for_type", type_info)
        rows = JsonRows(row_type, strict=fail_on_missing_field, lenient=ignore_parse_errors)
        return JsonLinesFormat(row_type, rows)

    def produced_type(self) -> TypeInformation:
        return self._type

    def read(self, path: str, size: int, start: int, end: int) -> Iterator[list[Any] | Batch]:
        if not self.can_cut(path):
            before = 0
            for lines in self.lines(path, size, start, end):
                yield self._one_by_one(lines, path, partial(int, before))
                before += len(lines)
            return
        for position, data in self.blocks(path, size, start, end):
            for at, piece in _pieces(data):
                found = self._rows.batch_of_lines(piece)
                if found is None:
                    lines = text_lines(piece, path, position + at, self.charset, _KEPT)
                    found = self._one_by_one(lines, path, partial(lines_before, path, position + at))
                if len(found):
                    yield found

    def _one_by_one(self, lines: list[str], path: str, before: Callable[[], int]) -> list[Any]:
        """Return the rows of the lines. ``before`` counts the lines of the file before them, for a line that does not fit."""
        texts = ((number, line) for number, line in enumerate(lines) if line and not line.isspace())
        full = [(number, line.encode(self.charset, _KEPT)) for number, line in texts]
        try:
            rows = self._rows.rows([line for _, line in full])
        except UserCodeError as error:
            number = next(number for number, line in full if not self._fits(line))
            raise CorruptFileError(
                "A line of the file is not a JSON object of the declared type",
                where=f"file {path}, line {before() + number + 1}",
                found=error.found,
                cure="correct the file, or pass ignore_parse_errors=True",
            ) from None
        return [row for row in rows if row is not None]

    def _fits(self, line: bytes) -> bool:
        try:
            self._rows.row(line)
        except UserCodeError:
            return False
        return True


_PIECE = 1 << 17
"""Bytes that are parsed together: enough for columns, and few enough for rows, which stay in the processor's cache."""


def _pieces(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        end = data.find(b"\n", at + _PIECE) + 1 or len(data)
        yield at, data[at:end]
        at = end


class JsonBulkWriters:
    """Writers of files of JSON lines for ``FileSink.for_bulk_format``."""

    @staticmethod
    def for_type(type_info: TypeInformation | DataType) -> BulkWriterFactory:
        """Write rows of this type, or dicts with its fields, as one JSON object a line."""
        return JsonBulkWriterFactory(row_of("JsonBulkWriters.for_type", type_info))


class JsonBulkWriterFactory(RowDataBulkWriterFactory):
    def __init__(self, row_type: RowTypeInfo) -> None:
        super().__init__(row_type)
        self._objects = JsonObjects(row_type)

    def pack(self, values: list[Any]) -> bytes:
        try:
            return b"\n".join([*self._objects.messages(values), b""])
        except TidegateError as error:
            raise UserCodeError(error.rule, where="JSON writer", found=error.found, cure=error.cure) from error

    def pack_columns(self, columns: Any, row_type: TypeInformation) -> bytes | None:
        if not is_same_type(row_type, self._row_type):
            return None
        messages = self._objects.messages_of(row_values(self._row_type, columns.columns))
        return None if messages is None else b"\n".join([*messages, b""])

    def write(self, batches: Iterator[bytes], target: Any) -> None:
        for batch in batches:
            target.write(batch)
