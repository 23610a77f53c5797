"""Any statement of PostgreSQL, MariaDB or MySQL as a sink: PyFlink's JDBC connector, with Python's drivers."""
