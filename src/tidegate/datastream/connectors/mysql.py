"""The sink for MariaDB and MySQL. Needs the extra ``mysql``."""

from tidegate.connectors.delivery import DeliveryGuarantee
from tidegate.connectors.mysql.sink import MySqlSink
from tidegate.connectors.sql.table import Table

__all__ = ["DeliveryGuarantee", "MySqlSink", "Table"]
