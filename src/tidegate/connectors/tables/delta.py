"""Rows into a Delta table, through ``deltalake``: the checkpoint's id is an application transaction of the commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidegate.base.errors import ConfigurationError
from tidegate.connectors.formats.arrow_types import arrow_schema
from tidegate.connectors.tables.sink import TableSink, package


class DeltaSink(TableSink):
    """``path``: of the table, which is made if it is not there. ``row_type``: ``Types.ROW_NAMED(...)``. ``partition_by``: names of
    columns, where the table is made. ``storage_options``: as ``deltalake`` takes them.
    """

    kind = "Delta"

    def __init__(
        self,
        path: str,
        row_type: Any,
        *,
        partition_by: Sequence[str] = (),
        storage_options: dict[str, str] | None = None,
    ) -> None:
        self.path, self.storage_options = path, storage_options
        super().__init__(row_type, partition_by, storage_options or {})

    @property
    def where(self) -> str:
        return self.path

    def validate(self) -> None:
        """A table that is there has the columns, and of these types: what does not fit would be cast."""
        table = self.table()
        if table is None:
            return
        have = {field.name: field.type for field in table.schema().fields}
        for field in _deltalake().Schema.from_arrow(arrow_schema(self.row_type)).fields:
            if have.get(field.name) != field.type:
                found = f"{field.name} is {have[field.name]}" if field.name in have else f"it has {', '.join(have)}"
                raise ConfigurationError(
                    "A Delta sink writes columns that the table has",
                    where=self.path,
                    found=f"no column {field.name} of {field.type}; {found}",
                    cure="change the table, or the row type",
                )

    def table(self) -> Any:
        delta = _deltalake()
        if not delta.DeltaTable.is_deltatable(self.path, storage_options=self.storage_options):
            return None
        return delta.DeltaTable(self.path, storage_options=self.storage_options)

    def create_table(self) -> Any:
        delta = _deltalake()
        schema = delta.Schema.from_arrow(arrow_schema(self.row_type))
        by = self.partition_by or None
        return delta.DeltaTable.create(
            self.path, schema, mode="ignore", partition_by=by, storage_options=self.storage_options
        )

    def number_in(self, table: Any, application: str) -> int | None:
        return table.transaction_version(application)  # type: ignore[no-any-return]

    def append(self, table: Any, rows: Any, application: str, number: int) -> None:
        """With the table, not its path, which would load the newest version: two application transactions of the same name are a
        conflict, which Delta refuses."""
        delta = _deltalake()
        delta.write_deltalake(
            table,
            rows,
            mode="append",
            partition_by=self.partition_by or None,
            commit_properties=delta.CommitProperties(app_transactions=[delta.Transaction(application, number)]),
        )


def _deltalake() -> Any:
    return package("deltalake", DeltaSink.kind)
