"""Kept records as a DataFrame: Spark's tasks read the files, nothing goes through the driver."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as sql

from tidegate.common.typeinfo import TypeInformation
from tidegate.connectors.frames.for_each_checkpoint import kept_records
from tidegate.spark.session import spark_context
from tidegate.spark.shipping import ship_tidegate
from tidegate.spark.sql_types import spark_type


def frame_of(files: list[str], type_info: TypeInformation) -> DataFrame:
    """Rows and tuples have a column for each field, other records one column ``value``."""
    context = spark_context({})
    if not str(context.master).startswith("local"):
        ship_tidegate(context)
    session = SparkSession.builder.getOrCreate()
    kind, convert = spark_type(type_info)
    whole = isinstance(kind, sql.StructType)
    schema: Any = kind if whole else sql.StructType([sql.StructField("value", kind)])

    def read(file: str) -> Any:
        for record in kept_records(file):
            converted = None if record is None else convert(record)
            yield converted if whole else (converted,)

    rows: Any = context.parallelize(files, len(files)).flatMap(read)
    return session.createDataFrame(rows, schema, verifySchema=False)


def schema_of(text: str) -> sql.DataType:
    """As a DataSource may give it: ``id INT, name STRING``."""
    return sql.StructType.fromDDL(text)
