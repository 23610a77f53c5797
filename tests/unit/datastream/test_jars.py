"""Jars of PyFlink programs are accepted, and a notice says for each what does its work here."""

from __future__ import annotations

import logging

import pytest

from tests.programs import configuration_of
from tidegate.base.errors import ArgumentTypeError
from tidegate.common import Configuration
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.program import counterpart

KAFKA = "file:///opt/flink-sql-connector-kafka-3.0.2-1.18.jar"
OTHER = "file:///opt/my-udfs.jar"
KAFKA_NOTICE = f"'{KAFKA}' is accepted and has no effect: KafkaSource and KafkaSink are built in (docs/kafka.md)"
OTHER_NOTICE = (
    f"'{OTHER}' is accepted and has no effect: Java code is not run; docs/sources-and-sinks.md lists the connectors that are "
    "built in"
)


def environment(settings: dict[str, str] | None = None) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(settings or {}))


def notices(env: StreamExecutionEnvironment, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Of a program that is planned twice."""
    env.from_collection([1]).print()
    with caplog.at_level(logging.WARNING, "tidegate.configuration"):
        env.get_execution_plan()
        env.get_execution_plan()
    return caplog.messages


def test_added_jars_and_classpaths_give_one_notice_each(caplog: pytest.LogCaptureFixture) -> None:
    env = environment()
    env.add_jars(KAFKA)
    env.add_jars(OTHER, KAFKA)
    env.add_classpaths("file:///opt/flink-connector-jdbc-3.1.jar")
    assert notices(env, caplog) == [
        KAFKA_NOTICE,
        OTHER_NOTICE,
        "'file:///opt/flink-connector-jdbc-3.1.jar' is accepted and has no effect: JDBC sinks write to PostgreSQL and MariaDB "
        "without a Java driver (docs/postgresql.md, docs/mariadb.md)",
    ]


def test_jars_of_the_configuration_give_the_same_notices(caplog: pytest.LogCaptureFixture) -> None:
    env = environment({"pipeline.jars": f"{KAFKA};{OTHER}", "pipeline.classpaths": KAFKA})
    assert notices(env, caplog) == [KAFKA_NOTICE, OTHER_NOTICE]


def test_jars_that_are_added_come_after_those_of_the_configuration() -> None:
    env = environment({"pipeline.jars": KAFKA})
    env.add_jars(OTHER)
    assert configuration_of(env).get_string("pipeline.jars", None) == f"{KAFKA};{OTHER}"


@pytest.mark.parametrize(
    ("jar", "text"),
    [
        ("flink-sql-avro-1.18.jar", "the Avro format is built in"),
        ("/opt/flink-json-1.18.0.jar", "the JSON format is built in"),
        ("flink-csv-1.18.0.jar", "the CSV format is built in"),
        ("flink-sql-parquet-1.18.0.jar", "the Parquet format is built in"),
        ("flink-sql-orc.jar", "the ORC format is built in"),
        ("postgresql-42.7.jar", "the PostgreSQL connector is built in"),
        ("mysql-connector-java-8.jar", "the MariaDB and MySQL connector is built in"),
        ("iceberg-flink-runtime-1.17.jar", "IcebergSink is built in"),
        ("flink-sql-connector-kinesis-4.jar", "there is no Kinesis connector"),
        ("flink-sql-avro-confluent-registry-1.18.jar", "there is no client of a schema registry"),
        ("file:///kafka/my.jar", "Java code is not run; docs/sources-and-sinks.md"),
    ],
)
def test_the_name_of_the_file_decides_what_the_notice_says(jar: str, text: str) -> None:
    assert text in counterpart(jar)


def test_a_jar_that_is_no_text_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="add_jars takes a non-empty text"):
        environment().add_jars(["a.jar"])  # type: ignore[arg-type]
