"""``tidegate kafka transactions``: what is open is shown against the checkpoints, and ended as a restart would."""

from __future__ import annotations

import functools
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.kafka.kafka_tools import Broker, Topics
from tests.kafka.test_kafka_outages import make_sink
from tidegate.base import faults
from tidegate.base.errors import JobFailedError
from tidegate.base.files import Files
from tidegate.checkpoint.lease import acquire
from tidegate.cli.main import app
from tidegate.cli.outcome import ExitCode
from tidegate.common import Configuration, WatermarkStrategy
from tidegate.connectors.kafka import inspection
from tidegate.connectors.kafka.cluster import Cluster, TopicPartition
from tidegate.connectors.kafka.committer import open_transactions
from tidegate.connectors.kafka.sink_record import NAME, read
from tidegate.connectors.kafka.transactions import TransactionWriter, init_producer
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.testing.sink_run import Crash


def die_once(name: str, where: dict[str, Any]) -> None:
    if name == "C6.published":
        raise Crash(name)


def numbers_to(broker: Broker, topic: str, settings: dict[str, str]) -> StreamExecutionEnvironment:
    """A program that writes numbers to the topic, exactly once."""
    own = {"execution.checkpointing.interval": "10 ms", "execution.target": "simulated", **settings}
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(own)).set_parallelism(1)
    numbers = env.from_source(NumberSequenceSource(1, 10), WatermarkStrategy.no_watermarks(), "numbers")
    numbers.map(str).sink_to(make_sink(broker.bootstrap_servers, topic)).uid("sink")
    return env


@pytest.fixture
def crashed(broker: Broker, topics: Topics, tmp_path: Path) -> tuple[str, Path]:
    """A job that died after step 7 of its first checkpoint: its topic, its directory. A stray transaction is there too."""
    topic = topics.new(1)
    env = numbers_to(broker, topic, {"execution.checkpointing.dir": str(tmp_path), "tidegate.job-id": "numbers"})
    faults.install(die_once)
    with pytest.raises(JobFailedError):
        env.execute()
    faults.install(None)
    _stray(broker, topic, tmp_path / "numbers")
    return topic, tmp_path / "numbers"


def _stray(broker: Broker, topic: str, directory: Path) -> None:
    from tests.kafka.test_kafka_transactions import batch

    [place] = directory.glob(f"taskowned/*/{NAME}")
    record = read(Files(str(place.parent)))
    assert record is not None
    cluster = Cluster.of({"bootstrap.servers": broker.bootstrap_servers})
    writer = TransactionWriter(cluster, init_producer(cluster, f"{record.base}-1-stray-1", 60_000))
    writer.send([(TopicPartition(topic, 0), batch("stray"))])
    writer.flush()


def call(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["kafka", "transactions", *map(str, arguments)])


def test_what_is_open_is_shown_against_the_checkpoints(crashed: tuple[str, Path]) -> None:
    topic, directory = crashed
    shown = call(directory)
    assert shown.exit_code == 0, shown.output
    head, *rows = shown.output.splitlines()
    assert head.split() == ["TRANSACTION", "PRODUCER", "EPOCH", "STATE", "AGE", "CHECKPOINTS", "RECORDS"]
    [held] = [row for row in rows if "stray" not in row]
    [stray] = [row for row in rows if "stray" in row]
    assert held.startswith(f"{topic}-numbers-") and held.split()[-2:] == ["1", "10"] and " open " in held
    assert stray.split()[-2:] == ["none", "-"] and "s of 60" in stray
    found = json.loads(call(directory, "--json").output)
    assert {(each["state"], tuple(each["checkpoints"])) for each in found} == {("open", (1,)), ("open", ())}


def test_nothing_is_done_while_the_job_lives(crashed: tuple[str, Path], broker: Broker, topics: Topics) -> None:
    """Its driver is this process."""
    topic, directory = crashed
    cluster = Cluster.of({"bootstrap.servers": broker.bootstrap_servers})
    refused = call(directory, "--abort")
    assert refused.exit_code == ExitCode.DIRECTORY_IN_USE
    assert "LeaseError" in refused.output and "is alive" in refused.output
    assert len(open_transactions(cluster, topic)) == 2
    assert call(directory, "--abort", "--force").exit_code == 0
    assert len(open_transactions(cluster, topic)) == 1
    assert topics.read(topic) == []


def test_commit_and_abort(crashed: tuple[str, Path], topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, directory = crashed
    monkeypatch.setattr(inspection, "acquire", functools.partial(acquire, liveness=lambda owner: False))
    done = call(directory, "--commit", "--abort", "--json")
    assert [each["state"] for each in json.loads(done.output)] == ["committed"]
    assert sorted(map(int, topics.read(topic))) == list(range(1, 11))
    assert call(directory, "--commit").exit_code == 0
    assert len(topics.read(topic)) == 10


def test_a_job_that_has_ended_has_nothing_open(
    broker: Broker, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its id, and by its directory."""
    monkeypatch.setenv("TIDEGATE_HOME", str(tmp_path / "home"))
    settings = {"execution.checkpointing.dir": str(tmp_path), "tidegate.job-id": "ended"}
    numbers_to(broker, topics.new(1), settings).execute()
    for job in ("ended", tmp_path / "ended"):
        for options in ([], ["--abort"]):
            shown = call(job, *options)
            assert shown.exit_code == 0
            assert shown.output.startswith("the job has ended (finished) without a checkpoint: its sinks have")
        assert call(job, "--json").output.strip() == "[]"


def test_a_job_whose_directory_is_gone_says_how_to_name_its_transactions(
    broker: Broker, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_HOME", str(tmp_path / "home"))
    job = numbers_to(broker, topics.new(1), {}).execute()
    refused = call(job.get_job_id())
    assert refused.exit_code == ExitCode.BAD_SNAPSHOT
    assert "no such directory" in refused.output
    assert "--prefix PREFIX --bootstrap-servers HOST:PORT" in refused.output


def test_transactions_are_found_and_aborted_by_their_prefix(crashed: tuple[str, Path], broker: Broker) -> None:
    topic, _ = crashed
    servers = ["--bootstrap-servers", broker.bootstrap_servers]
    shown = json.loads(call("--prefix", topic, *servers, "--json").output)
    assert [each["state"] for each in shown] == ["open", "open"]
    assert json.loads(call("numbers", "--prefix", topic, *servers, "--json").output) != []
    assert json.loads(call("others", "--prefix", topic, *servers, "--json").output) == []
    assert json.loads(call("--prefix", topic, *servers, "--abort", "--force", "--json").output) == []
    assert open_transactions(Cluster.of({"bootstrap.servers": broker.bootstrap_servers}), topic) == set()


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ([], "neither a job nor --prefix"),
        (["--prefix", "p"], "no --bootstrap-servers"),
        (["--prefix", "p", "--bootstrap-servers", "b", "--commit"], "--commit"),
        (["--prefix", "p", "--bootstrap-servers", "b", "--abort"], "--abort without --force"),
    ],
)
def test_what_is_missing_to_name_transactions_is_said(arguments: list[str], found: str) -> None:
    refused = call(*arguments)
    assert refused.exit_code == ExitCode.BAD_PROGRAM and f"found: {found}" in refused.output


def test_a_directory_without_a_kafka_sink(tmp_path: Path) -> None:
    (tmp_path / "lease").mkdir()
    refused = call(tmp_path)
    assert refused.exit_code == ExitCode.BAD_SNAPSHOT and f"no taskowned/*/{NAME}" in refused.output
    refused = call(tmp_path, "--config", tmp_path / "missing")
    assert "--config names no file" in refused.output


def test_secrets_are_not_written_down(crashed: tuple[str, Path], caplog: pytest.LogCaptureFixture) -> None:
    _, directory = crashed
    secrets = directory.parent / "client.properties"
    secrets.write_text("# for tests\nsasl.password = hunter2-planted\nclient.id=me\n")
    with caplog.at_level(logging.DEBUG):
        shown = call(directory, "--config", secrets)
    assert shown.exit_code == 0 and "hunter2" not in shown.output + caplog.text
    assert not any(b"hunter2" in path.read_bytes() for path in directory.rglob("*") if path.is_file())
