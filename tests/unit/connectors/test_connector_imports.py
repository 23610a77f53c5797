"""Every connector has one import path. The import of a connector without its library names the extra to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tidegate.base.errors import ArgumentTypeError, ConfigurationError
from tidegate.datastream import connectors
from tidegate.operators.contracts.sink import Sink
from tidegate.operators.contracts.source import Source

SOURCES = [
    *("DataFrameSource", "DataGeneratorSource", "FileSource", "HybridSource", "KafkaSource", "NumberSequenceSource"),
    *("SocketSource", "StreamReaderSource"),
]
SINKS = [
    *(
        "DeltaSink",
        "FileSink",
        "ForEachCheckpointSink",
        "GenericWriteAheadSink",
        "IcebergSink",
        "KafkaSink",
        "MySqlSink",
    ),
    *("PostgreSqlSink", "RedisSink", "StreamingFileSink", "UpsertSink"),
]


@pytest.mark.parametrize(("names", "kind"), [(SOURCES, Source), (SINKS, Sink)])
def test_every_connector_has_one_import_path(names: list[str], kind: type) -> None:
    for name in names:
        found: dict[str, type] = {}
        exec(f"from tidegate.datastream.connectors import {name}", found)
        assert issubclass(found[name], kind)
        assert name in dir(connectors)


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("KafkaSource", "aiokafka", "kafka"),
        ("PostgreSqlSink", "psycopg", "postgresql"),
        ("MySqlSink", "pymysql", "mysql"),
        ("RedisSink", "redis", "redis"),
        ("DeltaSink", "deltalake", "delta"),
        ("IcebergSink", "pyiceberg", "iceberg"),
    ],
)
def test_the_import_of_a_connector_whose_library_is_missing_names_the_extra(
    name: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigurationError) as raised:
        exec(f"from tidegate.datastream.connectors import {name}", {})
    assert str(raised.value).startswith(f"{name} needs the package {package}\n  found: it cannot be imported: ")
    assert str(raised.value).endswith(
        f"\n  cure: pip install 'tidegate[{extra}]', in the environment of the workers too"
    )
    exec("from tidegate.datastream.connectors import FileSink", {})


def test_import_of_an_unknown_connector_fails_as_usual() -> None:
    with pytest.raises(ImportError, match="cannot import name 'FileSing'"):
        exec("from tidegate.datastream.connectors import FileSing", {})


@pytest.mark.parametrize(
    ("name", "arguments", "found", "maker"),
    [
        (
            "RedisSink",
            ("redis://:secret@host",),
            "str",
            "RedisSink.keys(...), RedisSink.hashes(...) or RedisSink.increments(...)",
        ),
        (
            "FileSource",
            ("/in",),
            "str",
            "FileSource.for_record_stream_format(...) or FileSource.for_bulk_file_format(...), then build()",
        ),
        ("FileSink", ("/out",), "str", "FileSink.for_row_format(...) or FileSink.for_bulk_format(...), then build()"),
        ("HybridSource", (1,), "int", "HybridSource.builder(first), then add_source(...) and build()"),
        ("KafkaSource", (), "", "KafkaSource.builder(), then build()"),
        ("KafkaSink", ({}, 1), "dict, int", "KafkaSink.builder(), then build()"),
    ],
)
def test_a_constructor_that_users_cannot_call_names_the_builder(
    name: str, arguments: tuple[object, ...], found: str, maker: str
) -> None:
    with pytest.raises(ArgumentTypeError) as raised:
        getattr(connectors, name)(*arguments)
    assert str(raised.value) == f"{name} is not made by its constructor\n  found: {name}({found})\n  cure: use {maker}"


def test_without_any_extra_the_api_is_imported_and_no_package_of_an_extra_is_tried() -> None:
    """Programs without these connectors run where no extra is installed, and do not wait for imports where all are."""
    program = """
import subprocess
import sys
extras = {"kafka", "aiokafka", "cramjam", "psycopg", "pymysql", "redis", "deltalake", "pyiceberg", "pyarrow", "fastavro"}
tried = set()
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in extras:
            tried.add(name)
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Nothing())
import tidegate.datastream, tidegate.datastream.connectors, tidegate.table
print(sorted(tried))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"
