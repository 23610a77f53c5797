"""The sink for MariaDB and MySQL. Needs the extra ``mysql``."""

from tidegate.connectors.mysql.sink import MySqlSink
from tidegate.connectors.sql.table import Table
from tidegate.operators.contracts.sink import DeliveryGuarantee

__all__ = ["DeliveryGuarantee", "MySqlSink", "Table"]
