"""PyFlink's Kafka examples run by ``tidegate run --pyflink``, unchanged, against a real broker where they expect it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tests.compat.pyflink_place import pyflink_python
from tidegate.connectors.kafka.dev_broker import DevBroker

PORT = 9092
"""The examples name ``localhost:9092``. None of their topics is there: the broker creates them, as brokers do by default."""
ROWS = sorted(
    f"+I[{n},{text}]" for n, text in zip((1, 2, 3, 4, 5, 6, 6), ("hi", "hello") * 3 + ("hello",), strict=True)
)
DOCUMENTS = sorted(f'{{"id": {n}, "country": "{name}"}}' for n, name in ((1, "USA"), (2, "Canada"), (3, "Germany")))
PRINTED = {"json_format": ROWS, "csv_format": ROWS, "avro_format": ROWS, "bytearray_format": DOCUMENTS}
"""What each example prints when it reads its topic, in any order; it then waits for more."""

pytestmark = [pytest.mark.pyflink, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def examples() -> Path:
    find = "import pathlib, pyflink; print(pathlib.Path(pyflink.__file__).parent / 'examples' / 'datastream' / 'connectors')"
    return Path(subprocess.check_output([pyflink_python(), "-c", find], text=True).strip())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevBroker]:
    directory = tmp_path_factory.mktemp("kafka") / "broker"
    made = DevBroker(directory, PORT, properties={"auto.create.topics.enable": "true"})
    made.start()
    yield made
    made.delete()


def started(program: Path, errors: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tidegate.cli.main", "run", "--pyflink", "--master", "local[2]", str(program)]
    with errors.open("w") as out:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=out, text=True)


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_writes_its_topic_and_reads_it_again(
    name: str, examples: Path, broker: DevBroker, tmp_path: Path
) -> None:
    errors, expected = tmp_path / "errors", PRINTED[name]
    running = started(examples / f"kafka_{name}.py", errors)
    assert running.stdout is not None
    found: list[str] = []
    try:
        for line in running.stdout:
            record = line.strip().partition("> ")[2]
            found += [record] if record in expected else []
            if len(found) == len(expected):
                break
    finally:
        running.send_signal(signal.SIGINT)
        running.communicate()
    assert sorted(found) == expected, errors.read_text()[-3000:]


def test_the_example_of_row_fields_writes_keys_and_values(examples: Path, broker: DevBroker, tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    running = started(examples / "kafka_row_field_extractor_example.py", errors)
    running.communicate()
    assert running.returncode == 0, errors.read_text()[-3000:]
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "test", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition("row-extractor-example", 0, OFFSET_BEGINNING)])
    found = [message for message in consumer.consume(4, timeout=30) if message.error() is None]
    consumer.close()
    assert [message.key() for message in found] == [b"user-001", b"user-002", b"user-001", b"user-003"]
    assert json.loads(found[0].value() or b"")["item"] == "laptop"
