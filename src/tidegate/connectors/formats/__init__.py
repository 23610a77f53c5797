"""Formats: records as JSON, CSV, Avro and Parquet, in messages and in files."""
