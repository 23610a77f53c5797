"""JSON in messages, and files of JSON lines, which PyFlink lacks."""

from tidegate.connectors.formats.json_schemas import (
    JsonBulkWriters,
    JsonLinesFormat,
    JsonRowDeserializationSchema,
    JsonRowSerializationSchema,
)

__all__ = ["JsonBulkWriters", "JsonLinesFormat", "JsonRowDeserializationSchema", "JsonRowSerializationSchema"]
