"""Avro in messages and files."""

from tidegate.connectors.formats.avro_files import AvroBulkWriters, AvroFormat, AvroInputFormat
from tidegate.connectors.formats.avro_schemas import (
    AvroRowDeserializationSchema,
    AvroRowSerializationSchema,
    AvroSchema,
    GenericRecordAvroTypeInfo,
)

__all__ = [
    "AvroBulkWriters",
    "AvroFormat",
    "AvroInputFormat",
    "AvroRowDeserializationSchema",
    "AvroRowSerializationSchema",
    "AvroSchema",
    "GenericRecordAvroTypeInfo",
]
