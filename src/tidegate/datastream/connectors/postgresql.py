"""The PostgreSQL sink. Needs the extra ``postgresql``."""

from tidegate.connectors.delivery import DeliveryGuarantee
from tidegate.connectors.postgresql.sink import PostgreSqlSink
from tidegate.connectors.sql.table import Table

__all__ = ["DeliveryGuarantee", "PostgreSqlSink", "Table"]
