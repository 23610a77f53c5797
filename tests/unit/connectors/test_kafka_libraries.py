"""The Kafka connector uses private parts of its client libraries: these versions, and these parts of them, are tested."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module, metadata
from pathlib import Path

import pytest

from tidegate.connectors.kafka import libraries

TESTED = {"kafka-python": ("3.0.12",), "aiokafka": ("0.14.0",)}
"""Before a version is added: run ``make kafka`` with it, and compare the parts below with their source."""

CURE = "run `make kafka` with this version, then add it to TESTED; or pin a tested version in pyproject.toml"

PARTS = {
    "kafka.admin.client:KafkaAdminClient": "_find_coordinator_id close describe_transactions describe_producers "
    "abort_transaction list_transactions describe_configs alter_group_offsets list_group_offsets",
    "kafka.net.manager:KafkaConnectionManager": "run send call_soon close broker_version get_connection reset_backoff",
    "kafka.cluster:ClusterMetadata": "brokers bootstrap_brokers request_update",
    "aiokafka.record._crecords.cutil": "crc32c_cython",
}
ATTRIBUTES = {
    "kafka.admin.client:KafkaAdminClient": ["_manager", "_net"],
    "kafka.net.manager:KafkaConnectionManager": ["cluster"],
    "kafka.cluster:ClusterMetadata": ["_coordinators"],
}
"""Parts that the constructor sets."""


def found(name: str) -> object:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute) if attribute else import_module(module)


@pytest.mark.parametrize("package", TESTED)
def test_installed_version_of_a_client_library_is_one_of_the_tested(package: str) -> None:
    version = metadata.version(package)
    assert version in TESTED[package], f"{package} {version} is not tested (tested: {TESTED[package]}): {CURE}"


@pytest.mark.parametrize("name", PARTS)
def test_client_library_has_the_private_parts_that_the_connector_uses(name: str) -> None:
    missing = [part for part in PARTS[name].split() if not hasattr(found(name), part)]
    assert not missing, f"{name} lacks {missing}, which connectors/kafka/libraries.py uses: {CURE}"


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_constructor_of_a_client_class_sets_the_attributes_that_the_connector_uses(name: str) -> None:
    code = inspect.getsource(found(name).__init__)  # type: ignore[misc]
    missing = [part for part in ATTRIBUTES[name] if f"self.{part} = " not in code]
    assert not missing, f"{name} lacks {missing}, which connectors/kafka/libraries.py uses: {CURE}"


def test_only_one_module_imports_the_client_libraries() -> None:
    own = Path(libraries.__file__)
    importing = {
        str(path)
        for path in own.parents[2].rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [])
        + ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [])
        if (name or "").split(".")[0] in ("kafka", "aiokafka")
    }
    assert importing == {str(own)}


def test_checksum_of_the_client_library_is_crc32c() -> None:
    assert libraries.crc32c(b"123456789") == 0xE3069283
