"""A DataFrame as the rows of a keyed state: its tasks write the state files, and only their names come to the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pyspark.sql import DataFrame

from tidegate.base.errors import SnapshotError
from tidegate.common.type_texts import parse_type
from tidegate.common.typeinfo import ListTypeInfo, TypeInformation
from tidegate.snapshots.entries import StateRow, StateWriter
from tidegate.spark.shipping import ship_tidegate
from tidegate.spark.sql_types import python_value
from tidegate.state.refs import StateFile


class FrameRows:
    """See ``SavepointWriter.with_keyed_state``."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame

    def write(self, writer: StateWriter) -> list[StateFile]:
        context = self._frame.sparkSession.sparkContext
        if not str(context.master).startswith("local"):
            ship_tidegate(context)
        row = self._converter(writer)

        def write(rows: Iterable[Any]) -> Iterator[StateFile]:
            return writer.write(map(row, rows))

        return self._frame.rdd.mapPartitions(write).collect()

    def _converter(self, writer: StateWriter) -> Callable[[Any], StateRow]:
        schema, names = writer.schema, self._frame.columns
        wanted = ["key", "map_key", "value"] if schema.kind == "map" else ["key", "value"]
        if not set(wanted) <= set(names):
            raise SnapshotError(
                "A DataFrame that becomes a keyed state has the columns of its rows.",
                where=f"state {schema.name!r}",
                found=f"columns {', '.join(names)}",
                cure=f"name them {', '.join(wanted)}",
            )
        value_type = parse_type(schema.type)
        value = python_value(ListTypeInfo(value_type) if schema.kind == "list" else value_type)
        key, map_key = (python_value(_or_any(of)) for of in (writer.key_type, writer.map_key_type))
        in_windows, expires = "namespace" in names, "expires_ms" in names

        def converted(row: Any) -> StateRow:
            return StateRow(
                key(row["key"]),
                value(row["value"]),
                row["namespace"] if in_windows else None,
                map_key(row["map_key"]) if schema.kind == "map" else None,
                row["expires_ms"] if expires else None,
            )

        return converted


def _or_any(info: TypeInformation | None) -> TypeInformation:
    return parse_type("pickle") if info is None else info
