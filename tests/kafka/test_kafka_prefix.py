"""A transactional id prefix belongs to one live job, and jobs that share one by mistake leave each other's output alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.kafka_tools import Broker, Topics
from tests.kafka.test_kafka_outages import make_sink
from tests.waiting import eventually
from tidegate.base.errors import ConfigurationError
from tidegate.common import Configuration, WatermarkStrategy
from tidegate.connectors.kafka import prefix_hold
from tidegate.connectors.kafka.cluster import Cluster
from tidegate.connectors.kafka.committer import open_transactions
from tidegate.connectors.kafka.prefix_hold import PrefixHold
from tidegate.connectors.kafka.sink import KafkaSink
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.operators.contracts.sink import Committer, CommitterContext, WriterContext

Hold = Callable[..., PrefixHold]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_hold, "SESSION_MS", 1_500)
    monkeypatch.setattr(prefix_hold, "_BEAT_S", 0.2)


@pytest.fixture
def hold(broker: Broker) -> Any:
    """Takes a prefix as a job does, and is there when this returns."""
    cluster = Cluster.of({"bootstrap.servers": broker.bootstrap_servers})
    taken: list[PrefixHold] = []

    def take(prefix: str, mark: str, job: str = "job") -> PrefixHold:
        taken.append(PrefixHold.take(cluster, prefix, mark, job))
        eventually(lambda: taken[-1]._generation >= 0)
        return taken[-1]

    yield take
    for each in taken:
        if each._users:
            each.release()


def test_a_prefix_that_another_live_job_has_is_refused(hold: Hold, topics: Topics) -> None:
    prefix = topics.new(1)
    first = hold(prefix, "aaa", "payments")
    with pytest.raises(ConfigurationError, match="Another running job uses the transactional id prefix") as caught:
        hold(prefix, "bbb", "invoices")
    text = str(caught.value)
    assert f"prefix '{prefix}'" in text and "job payments on 127.0.0.1 is alive" in text and "stop that job" in text
    first.release()
    hold(prefix, "bbb", "invoices")


def test_sinks_of_one_job_share_the_prefix(hold: Hold, topics: Topics) -> None:
    prefix = topics.new(1)
    first, second = hold(prefix, "aaa"), hold(prefix, "aaa")
    assert first is second
    first.release()
    with pytest.raises(ConfigurationError, match="Another running job uses"):
        hold(prefix, "bbb")


def crash(held: PrefixHold, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing any more, as a process that was killed."""
    monkeypatch.setattr(held, "_leave", lambda cluster: None)
    held.release()


def test_crashed_job_frees_the_prefix_and_may_restart_at_once(
    hold: Hold, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = topics.new(1)
    crash(hold(prefix, "aaa"), monkeypatch)
    with pytest.raises(ConfigurationError, match="Another running job uses"):
        hold(prefix, "bbb")
    crash(hold(prefix, "aaa"), monkeypatch)

    def free() -> bool:
        try:
            hold(prefix, "bbb")
        except ConfigurationError:
            return False
        return True

    eventually(free)


def test_one_of_two_jobs_that_start_at_the_same_moment_gives_up(
    hold: Hold, topics: Topics, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = topics.new(1)
    with monkeypatch.context() as blind:
        blind.setattr(PrefixHold, "_refuse_others", lambda self, cluster: None)
        first, second = hold(prefix, "aaa"), hold(prefix, "bbb")
    eventually(lambda: second.lost)
    assert first.lost is None
    sink = make_sink(broker.bootstrap_servers, prefix)
    committer: Any = sink.create_committer(CommitterContext("job", "sink", str(tmp_path)))
    committer._hold = second
    with pytest.raises(ConfigurationError, match="Another running job uses"):
        committer.commit([])
    committer._hold = None


def test_job_with_the_prefix_of_another_fails_before_it_starts(
    hold: Hold, broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.new()
    hold(topic, "aaa", "payments")
    settings = {"execution.checkpointing.dir": str(tmp_path), "execution.checkpointing.interval": "10 ms"}
    settings |= {"execution.target": "simulated"}

    def run() -> None:
        env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(settings))
        numbers = env.from_source(NumberSequenceSource(1, 10), WatermarkStrategy.no_watermarks(), "numbers")
        numbers.map(str).sink_to(make_sink(broker.bootstrap_servers, topic))
        env.execute()

    with pytest.raises(ConfigurationError, match=r"job payments on 127\.0\.0\.1 is alive"):
        run()
    assert topics.read(topic, committed=False) == []


def started(sink: KafkaSink, directory: Path) -> tuple[Committer, Any]:
    """The committer and a writer of job 'job' in a directory."""
    committer = sink.create_committer(CommitterContext("job", "sink", str(directory)))
    assert committer is not None
    writer = sink.create_writer(WriterContext("job", "sink", 0, 1, 1, None, "a1", 0, str(directory), 1), [])
    return committer, writer


def test_the_same_job_in_two_directories_leaves_the_other_alone(broker: Broker, topics: Topics, tmp_path: Path) -> None:
    """Same program, same job id, same prefix: a restore of the one took the other's open transaction for its own."""
    topic = topics.new(1)
    sink = make_sink(broker.bootstrap_servers, topic)
    committer, writer = started(sink, tmp_path / "one")
    other, own = started(sink, tmp_path / "two")
    for each in (writer, own):
        each.write_batch(["x"], None)
    prepared = writer.prepare_commit(False)
    own.prepare_commit(False)
    other.abort_lingering([], [])
    [left] = open_transactions(Cluster.of(sink.properties), topic)
    assert left.transactional_id == prepared.committables[0]["id"]
    committer.commit(prepared.committables)
    assert topics.read(topic) == ["x"]
    again, _ = started(sink, tmp_path / "one")  # the mark stays what it was
    assert again._base == committer._base  # type: ignore[attr-defined]
