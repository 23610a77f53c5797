"""The PostgreSQL sink. Needs the extra ``postgresql``."""

from tidegate.connectors.postgresql.sink import PostgreSqlSink
from tidegate.connectors.sql.table import Table
from tidegate.operators.contracts.sink import DeliveryGuarantee

__all__ = ["DeliveryGuarantee", "PostgreSqlSink", "Table"]
