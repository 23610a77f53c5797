"""Names that modules of PyFlink have at run time, and those that public programs import: each is found, or answered for."""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat import parity
from tidegate.base import imports
from tidegate.base.errors import NotInTidegateError

USED: dict[str, int] = json.loads((Path(__file__).parent / "used_names.json").read_text())["imports"]
"""``module:name`` -> how many of 206 public programs import the name."""
NOT_THERE = ("pyflink.table", "pyflink.connector.", "pyflink.testing.", "pyflink.fn_execution")
"""Packages that Tidegate does not have, or PyFlink itself does not have."""


@pytest.fixture
def _mapped() -> Iterator[None]:
    imports.install()
    yield
    imports.uninstall()


def found(used: str) -> bool:
    module, _, name = used.partition(":")
    try:
        exec(f"from {module} import {name}" if name else f"import {module}", {})
    except NotInTidegateError as error:
        return not (error.found and error.cure)
    return True


@pytest.mark.usefixtures("_mapped")
def test_every_name_that_public_programs_import_is_found_or_answered_for() -> None:
    lacking = {used: count for used, count in USED.items() if not found(used)}
    own = {used: count for used, count in lacking.items() if not used.startswith(NOT_THERE)}
    assert max(own.values()) <= 5 and sum(own.values()) <= 40, own


@pytest.mark.usefixtures("_mapped")
def test_a_name_that_a_module_of_pyflink_imports_is_that_of_its_home() -> None:
    recorded = json.loads(parity.MODULES.read_text())
    seen = 0
    for module, homes in recorded.items():
        for name, home in homes.items():
            if home in recorded and home != module and not home.endswith(f".{name}"):
                try:
                    asked, defined = importlib.import_module(module), getattr(importlib.import_module(home), name)
                except (ImportError, AttributeError):
                    continue
                assert getattr(asked, name) is defined, (module, name)
                seen += 1
    assert seen > 250


def test_re_exports_are_found_under_our_names_too() -> None:
    names: dict[str, object] = {}
    exec(
        "from tidegate.datastream.connectors import FileSource, FileSink, StreamFormat, OutputFileConfig, RollingPolicy\n"
        "from tidegate.datastream.connectors import NumberSequenceSource, KafkaSource, KafkaSink, DeliveryGuarantee as one\n"
        "from tidegate.datastream.connectors.kafka import DeliveryGuarantee as two\n"
        "from tidegate.datastream.functions import IN, OUT, KEY, W\n"
        "from tidegate.datastream.window import Time\n"
        "from tidegate.common.watermark_strategy import Duration\n",
        names,
    )
    assert names["one"] is names["two"]


@pytest.mark.parametrize(
    ("module", "name", "home", "real"),
    [
        ("common.serialization", "JsonRowDeserializationSchema", "datastream.formats.json", None),
        ("common.serialization", "JsonRowSerializationSchema", "datastream.formats.json", None),
        ("common.serialization", "AvroRowDeserializationSchema", "datastream.formats.avro", None),
        ("common.serialization", "CsvRowSerializationSchema", "datastream.formats.csv", None),
        ("datastream", "TimeCharacteristic", "datastream.former", None),
        ("datastream", "ExternalizedCheckpointCleanup", "datastream", "ExternalizedCheckpointRetention"),
        ("datastream", "FsStateBackend", "datastream.former", None),
        ("datastream.state_backend", "RocksDBStateBackend", "datastream.former", None),
    ],
)
def test_a_name_of_a_former_pyflink_is_found_with_one_notice(
    module: str, name: str, home: str, real: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    names: dict[str, object] = {}
    with caplog.at_level(logging.WARNING, "tidegate.configuration"):
        exec(f"from tidegate.{module} import {name} as first\nfrom tidegate.{module} import {name} as second", names)
    defined = getattr(importlib.import_module(f"tidegate.{home}"), real or name)
    assert names["first"] is names["second"] is defined
    [notice] = [record.getMessage() for record in caplog.records]
    assert notice.startswith(f"'tidegate.{module}.{name}' is deprecated, PyFlink 2 does not have it: ")
