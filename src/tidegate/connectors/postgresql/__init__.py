"""PostgreSQL: a sink with real prepared transactions."""
