"""Records and formats that the tests of formats share."""

from __future__ import annotations

from typing import Any

from tidegate.common import Row, Types
from tidegate.datastream.formats.avro import AvroSchema
from tidegate.datastream.formats.csv import CsvSchema
from tidegate.table import DataTypes

ITEM = Types.ROW_NAMED(["id", "name", "price", "sold"], [Types.INT(), Types.STRING(), Types.DOUBLE(), Types.BOOLEAN()])
ITEM_COLUMNS = DataTypes.ROW(
    [
        DataTypes.FIELD("id", DataTypes.INT()),
        DataTypes.FIELD("name", DataTypes.STRING()),
        DataTypes.FIELD("price", DataTypes.DOUBLE()),
        DataTypes.FIELD("sold", DataTypes.BOOLEAN()),
    ]
)
RECORD = AvroSchema.parse_string(
    '{"type": "record", "name": "Item", "fields": [{"name": "id", "type": "int"}, {"name": "name", "type": "string"},'
    ' {"name": "tags", "type": {"type": "array", "items": "string"}}]}'
)


def item(number: int) -> Row:
    return Row(id=number, name=f'no. {number}, "x"', price=number * 0.5, sold=number % 2 == 0)


def record(number: int) -> dict[str, Any]:
    return {"id": number, "name": f"no. {number}", "tags": ["a"] * (number % 3)}


def csv_columns() -> Any:
    return (
        CsvSchema.builder()
        .add_number_column("id", DataTypes.INT())
        .add_string_column("name")
        .add_number_column("price", DataTypes.DOUBLE())
        .add_boolean_column("sold")
    )


def frozen(value: Any) -> Any:
    """What a Counter can hold."""
    if isinstance(value, dict):
        return tuple((key, frozen(item)) for key, item in value.items())
    return tuple(map(frozen, value)) if isinstance(value, list) else value
