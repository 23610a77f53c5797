"""MariaDB and MySQL: a sink with XA transactions."""
