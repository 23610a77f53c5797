"""The JDBC sink, onto PostgreSQL (extra ``postgresql``), MariaDB and MySQL (extra ``mysql``)."""

from tidegate.connectors.jdbc.options import JdbcConnectionOptions, JdbcExecutionOptions
from tidegate.connectors.jdbc.sink import JdbcSink

__all__ = ["JdbcConnectionOptions", "JdbcExecutionOptions", "JdbcSink"]
