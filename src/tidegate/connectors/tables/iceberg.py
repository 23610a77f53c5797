"""Rows into an Iceberg table, through ``pyiceberg``: the commit of a checkpoint's rows sets its id as a property of the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.base import secrets
from tidegate.base.errors import ConfigurationError, ServiceError, TidegateError
from tidegate.connectors.formats.arrow_types import arrow_schema
from tidegate.connectors.tables.sink import TableSink, package

_RETRIES = "commit.retry.num-retries"
_FIRST_PARTITION_ID = 1000


class IcebergSink(TableSink):
    """``catalog`` and ``catalog_properties``: as ``pyiceberg.catalog.load_catalog`` takes them, which knows the properties by
    itself if its configuration on the driver has that name. ``identifier``: ``namespace.table``; both are made if they are not
    there. ``row_type``: ``Types.ROW_NAMED(...)``. ``partition_by``: names of columns, where the table is made.
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
                "A table of Iceberg is named with its namespace",
                where="IcebergSink",
                found=repr(identifier),
                cure="for example 'shop.orders'",
            )

    @property
    def where(self) -> str:
        return f"{self.identifier} of catalog {self.catalog}"

    def validate(self) -> None:
        """A table that is there takes the rows, by the check that every append makes; one that is not can be made."""
        table, schema = self._asked(), self._schema()
        if table is None:
            self._check_partitions(schema)
            return
        try:
            _pyiceberg("io.pyarrow")._check_pyarrow_schema_compatible(table.schema(), arrow_schema(self.row_type))
        except ValueError as error:
            raise ConfigurationError(
                "An Iceberg sink writes columns that the table has, and all that it requires",
                where=self.where,
                found=str(error),
                cure="change the table, or the row type",
            ) from error

    def _asked(self) -> Any:
        try:
            return self.table()
        except TidegateError:
            raise
        except Exception as error:
            raise self._problem(error) from None  # the library shows properties of the catalog

    def _problem(self, error: Exception) -> TidegateError:
        found = secrets.masked(f"{type(error).__name__}: {error}")
        if isinstance(error, ValueError | ImportError | _pyiceberg("exceptions").NotInstalledError):
            return ConfigurationError(
                "An Iceberg sink takes a catalog as pyiceberg knows it",
                where=self.where,
                found=found,
                cure="catalog_properties={'type': ..., 'uri': ...}, or that name in .pyiceberg.yaml on the driver",
            )
        return ServiceError(
            "An Iceberg sink needs a catalog that answers, and its tables' metadata",
            where=self.where,
            found=found,
            cure="start it; check its address, user and rights",
        )

    def _schema(self) -> Any:
        """In Iceberg's types."""
        arrow = _pyiceberg("io.pyarrow")
        try:
            made = arrow._pyarrow_to_schema_without_ids(arrow_schema(self.row_type))
        except arrow.UnsupportedPyArrowTypeException as error:
            raise ConfigurationError(
                "A column of an Iceberg table has a type that Iceberg knows",
                where="IcebergSink",
                found=str(error),
                cure="map it",
            ) from error
        return _pyiceberg("schema").assign_fresh_schema_ids(made)

    def _check_partitions(self, schema: Any) -> None:
        for name in self.partition_by:
            if not schema.find_type(name).is_primitive:
                raise ConfigurationError(
                    "An Iceberg table is partitioned by columns of plain values",
                    where="IcebergSink",
                    found=f"{name} is {schema.find_type(name)}",
                )

    def _catalog(self) -> Any:
        """Once: each has connections of its own, which it leaves open."""
        if self._loaded is None:
            self._loaded = _pyiceberg("catalog").load_catalog(self.catalog, **self.catalog_properties)
        return self._loaded

    def __getstate__(self) -> dict[str, Any]:
        """It travels to the tasks without."""
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
        """A commit says which snapshot it follows, and the catalog refuses it if the table has another one by now. By default the
        library then appends to that one, without a look at the number: so it may not try again. The setting is of this copy
        of the table's properties, which a commit does not store, and wins over what is stored.

        The number goes with the snapshot: whoever has set it has moved the table on, too.
        """
        table.properties[_RETRIES] = "0"
        with table.transaction() as transaction:
            transaction.append(rows)
            transaction.set_properties({application: str(number)})


def _pyiceberg(module: str) -> Any:
    return package(f"pyiceberg.{module}", IcebergSink.kind)
