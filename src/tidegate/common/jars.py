"""Jars of PyFlink programs: no Java code of a program runs, but most jars hold what is built in. A notice says so for each jar."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.common.configuration import notice

_NO_JAVA = "Java code is not run"
_FORMATS = "the {} format is built in (docs/formats.md)"
_COUNTERPARTS = {
    "confluent-registry": f"{_NO_JAVA}, and there is no client of a schema registry; read bytes and decode them in map()",
    "kinesis": f"{_NO_JAVA}, and there is no Kinesis connector",
    "pulsar": f"{_NO_JAVA}, and there is no Pulsar connector",
    "elasticsearch": f"{_NO_JAVA}, and there is no Elasticsearch connector",
    "rabbitmq": f"{_NO_JAVA}, and there is no RabbitMQ connector",
    "cassandra": f"{_NO_JAVA}, and there is no Cassandra connector",
    "kafka": "KafkaSource and KafkaSink are built in (docs/kafka.md)",
    "jdbc": "JDBC sinks write to PostgreSQL and MariaDB without a Java driver (docs/postgresql.md, docs/mariadb.md)",
    "postgresql": "the PostgreSQL connector is built in (docs/postgresql.md)",
    "mysql": "the MariaDB and MySQL connector is built in (docs/mariadb.md)",
    "mariadb": "the MariaDB and MySQL connector is built in (docs/mariadb.md)",
    "parquet": _FORMATS.format("Parquet"),
    "avro": _FORMATS.format("Avro"),
    "json": _FORMATS.format("JSON"),
    "csv": _FORMATS.format("CSV"),
    "orc": _FORMATS.format("ORC"),
    "iceberg": "IcebergSink is built in (docs/iceberg.md)",
    "delta": "DeltaSink is built in (docs/delta.md)",
    "rocksdb": "the state backend rocksdb is built in (docs/state-backends.md)",
    "s3-fs": "paths with s3:// are built in",
    "hadoop": "paths with hdfs:// are built in",
    "connector-files": "FileSource and FileSink are built in (docs/files.md)",
}
"""Part of a file's name -> what is there instead. The first part that fits counts."""


def notice_of_jars(jars: Iterable[str]) -> None:
    """One notice for each jar, in the life of the process."""
    for jar in jars:
        notice(jar, counterpart(jar))


def counterpart(jar: str) -> str:
    """What does the work of a jar here."""
    name = jar.rstrip("/").rpartition("/")[2].lower()
    known = next((text for part, text in _COUNTERPARTS.items() if part in name), None)
    return known or f"{_NO_JAVA}; docs/sources-and-sinks.md lists the connectors that are built in"
