"""Rows into a Delta table, through ``deltalake``. The id of the checkpoint is an application transaction of the commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidegate.base.errors import ConfigurationError
from tidegate.base.imports import library
from tidegate.connectors.tables.sink import TableSink
from tidegate.operators.contracts.arrow_types import arrow_schema


class DeltaSink(TableSink):
    """Append rows to the Delta table at ``path``, which is created if it is missing.

    ``row_type`` is ``Types.ROW_NAMED(...)``. ``partition_by`` names columns, and counts only when the table is created.
    ``storage_options`` go to ``deltalake``.
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
        """Check that an existing table has the columns with these types. Delta would cast other types silently."""
        table = self.table()
        if table is None:
            return
        have = {field.name: field.type for field in table.schema().fields}
        for field in _deltalake().Schema.from_arrow(arrow_schema(self.row_type)).fields:
            if have.get(field.name) != field.type:
                found = f"{field.name} is {have[field.name]}" if field.name in have else f"it has {', '.join(have)}"
                raise ConfigurationError(
                    "The columns of a Delta sink do not match its table",
                    where=self.path,
                    found=f"no column {field.name} of {field.type}; {found}",
                    cure="change the columns of the table, or the row type of the sink",
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
        """Append to the loaded table. By its path ``deltalake`` would load the newest version. Delta refuses a second application
        transaction of the same name as a conflict."""
        delta = _deltalake()
        delta.write_deltalake(
            table,
            rows,
            mode="append",
            partition_by=self.partition_by or None,
            commit_properties=delta.CommitProperties(app_transactions=[delta.Transaction(application, number)]),
        )


def _deltalake() -> Any:
    return library("deltalake", "DeltaSink", "delta")
