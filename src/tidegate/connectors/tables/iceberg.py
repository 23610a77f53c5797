"""Rows into an Iceberg table, through ``pyiceberg``. The commit sets the id of the checkpoint as a property of the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.base import secrets
from tidegate.base.errors import ConfigurationError, ServiceError, TidegateError
from tidegate.base.imports import library
from tidegate.connectors.tables.sink import TableSink
from tidegate.operators.contracts.arrow_types import arrow_schema

_RETRIES = "commit.retry.num-retries"
_FIRST_PARTITION_ID = 1000


class IcebergSink(TableSink):
    """Append rows to the Iceberg table ``identifier`` (``namespace.table``). Namespace and table are created if they are missing.

    ``catalog`` and ``catalog_properties`` go to ``pyiceberg.catalog.load_catalog``. The properties can be left out if the
    configuration of pyiceberg on the driver contains a catalog of this name. ``row_type`` is ``Types.ROW_NAMED(...)``.
    ``partition_by`` names columns, and counts only when the table is created.
    """

    kind = "Iceberg"
    _loaded: Any = None

    def __init__(
        self,
        catalog: str,
        identifier: str,
        row_type: Any,
        *,
        partition_by: Sequence[str] = (),
        catalog_properties: Mapping[str, Any] | None = None,
    ) -> None:
        self.catalog, self.identifier = catalog, identifier
        self.catalog_properties = dict(catalog_properties or {})
        super().__init__(row_type, partition_by, self.catalog_properties)
        if not all(identifier.split(".")) or "." not in identifier:
            raise ConfigurationError(
                "The identifier of an Iceberg table lacks its namespace",
                where="IcebergSink",
                found=repr(identifier),
                cure="pass namespace and name, for example 'shop.orders'",
            )

    @property
    def where(self) -> str:
        return f"{self.identifier} of catalog {self.catalog}"

    def validate(self) -> None:
        """Check that an existing table takes the rows, as every append checks it, or that a missing table can be created."""
        table, schema = self._asked(), self._schema()
        if table is None:
            self._check_partitions(schema)
            return
        try:
            _pyiceberg("io.pyarrow")._check_pyarrow_schema_compatible(table.schema(), arrow_schema(self.row_type))
        except ValueError as error:
            raise ConfigurationError(
                "The columns of an Iceberg sink do not match its table",
                where=self.where,
                found=str(error),
                cure="change the columns of the table, or the row type of the sink",
            ) from error

    def _asked(self) -> Any:
        try:
            return self.table()
        except TidegateError:
            raise
        except Exception as error:
            raise self._problem(error) from None  # the library's error shows properties of the catalog

    def _problem(self, error: Exception) -> TidegateError:
        found = secrets.masked(f"{type(error).__name__}: {error}")
        if isinstance(error, ValueError | ImportError | _pyiceberg("exceptions").NotInstalledError):
            return ConfigurationError(
                "pyiceberg cannot load the catalog of an Iceberg sink",
                where=self.where,
                found=found,
                cure="pass catalog_properties={'type': ..., 'uri': ...}, or add the catalog to .pyiceberg.yaml on the driver",
            )
        return ServiceError(
            "The catalog of an Iceberg sink does not answer, or cannot read the metadata of the table",
            where=self.where,
            found=found,
            cure="start the catalog; check its address, its user and the user's rights",
        )

    def _schema(self) -> Any:
        """Return the row type as a schema of Iceberg."""
        arrow = _pyiceberg("io.pyarrow")
        try:
            made = arrow._pyarrow_to_schema_without_ids(arrow_schema(self.row_type))
        except arrow.UnsupportedPyArrowTypeException as error:
            raise ConfigurationError(
                "Iceberg has no type for a column of the sink",
                where="IcebergSink",
                found=str(error),
                cure="convert the field before the sink with map(..., output_type=...), for example to a string or a long",
            ) from error
        return _pyiceberg("schema").assign_fresh_schema_ids(made)

    def _check_partitions(self, schema: Any) -> None:
        for name in self.partition_by:
            if not schema.find_type(name).is_primitive:
                raise ConfigurationError(
                    "An Iceberg table cannot be partitioned by a column of lists, maps or rows",
                    where="IcebergSink",
                    found=f"{name} is {schema.find_type(name)}",
                    cure="partition by columns of numbers, texts, dates or times",
                )

    def _catalog(self) -> Any:
        """Load the catalog once: each loaded catalog leaves its connections open."""
        if self._loaded is None:
            self._loaded = _pyiceberg("catalog").load_catalog(self.catalog, **self.catalog_properties)
        return self._loaded

    def __getstate__(self) -> dict[str, Any]:
        """Leave the loaded catalog out: tasks do not need it."""
        return {name: value for name, value in self.__dict__.items() if name != "_loaded"}

    def table(self) -> Any:
        errors = _pyiceberg("exceptions")
        try:
            return self._catalog().load_table(self.identifier)
        except (errors.NoSuchTableError, errors.NoSuchNamespaceError):
            return None

    def create_table(self) -> Any:
        catalog, schema, partitioning = self._catalog(), self._schema(), _pyiceberg("partitioning")
        identity = _pyiceberg("transforms").IdentityTransform()
        fields = [
            partitioning.PartitionField(schema.find_field(name).field_id, _FIRST_PARTITION_ID + number, identity, name)
            for number, name in enumerate(self.partition_by)
        ]
        namespace = self.identifier.rpartition(".")[0]
        if not catalog.namespace_exists(namespace):
            catalog.create_namespace_if_not_exists(namespace)
        spec = partitioning.PartitionSpec(*fields)
        return catalog.create_table_if_not_exists(self.identifier, schema, partition_spec=spec)

    def number_in(self, table: Any, application: str) -> int | None:
        number = table.properties.get(application)
        return None if number is None else int(number)

    def append(self, table: Any, rows: Any, application: str, number: int) -> None:
        """Append without retries. A commit names the snapshot it follows, and the catalog refuses it if the table has a newer one.

        By default pyiceberg then appends to the newer snapshot without looking at the number, so its retries are switched off. The
        setting overrides the stored property in this copy of the table only; a commit does not store it.

        Number and snapshot change in one commit, so another process that set the number has also made a newer snapshot.
        """
        table.properties[_RETRIES] = "0"
        with table.transaction() as transaction:
            transaction.append(rows)
            transaction.set_properties({application: str(number)})


def _pyiceberg(module: str) -> Any:
    return library(f"pyiceberg.{module}", "IcebergSink", "iceberg")
