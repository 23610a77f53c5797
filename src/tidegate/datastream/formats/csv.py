"""CSV in messages and files."""

from tidegate.connectors.formats.csv_files import CsvBulkWriters, CsvReaderFormat, CsvSchema, CsvSchemaBuilder
from tidegate.connectors.formats.csv_schemas import CsvRowDeserializationSchema, CsvRowSerializationSchema

__all__ = [
    "CsvBulkWriters",
    "CsvReaderFormat",
    "CsvRowDeserializationSchema",
    "CsvRowSerializationSchema",
    "CsvSchema",
    "CsvSchemaBuilder",
]
