"""What a job promises of its output: of every path from source to sink, the weakest part decides."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.programs import program_of
from tidegate.base.errors import ProgramError
from tidegate.checkpoint.policy import CheckpointPolicy
from tidegate.common import Encoder, WatermarkStrategy
from tidegate.connectors.kafka.sink import _GUARANTEES
from tidegate.connectors.values.ranges import NumberSequenceSource
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import FileSink
from tidegate.graph.plan import JobGraph, build
from tidegate.operators.contracts.sink import (
    DeliveryGuarantee,
    Publication,
    Sink,
    SinkGuarantee,
    SinkWriter,
    WriterContext,
)
from tidegate.runtime.guarantee import JobGuarantee, Promise, check_required, guarantee_of


class Once(NumberSequenceSource):
    can_replay = False
    to_raise = "switch its log on"


class AnySink(Sink):
    """Promises what it is told to."""

    def __init__(self, guarantee: SinkGuarantee, publication: Publication = Publication.CHECKPOINT) -> None:
        self.guarantee, self.publication = guarantee, publication

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        raise AssertionError("nothing is written")


def files() -> FileSink:
    return FileSink.for_row_format("/tmp/x", Encoder.simple_string_encoder()).build()


def graph_of(env: StreamExecutionEnvironment) -> JobGraph:
    return build(program_of(env), 1, None, {})


def promised(source: Any, *sinks: Any, checkpoints: bool = True, at_least_once: bool = False) -> JobGuarantee:
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    for sink in sinks:
        stream.print() if sink is print else stream.sink_to(sink) if isinstance(sink, Sink) else stream.add_sink(sink)
    return guarantee_of(graph_of(env), CheckpointPolicy(100, at_least_once=at_least_once) if checkpoints else None)


def written(value: Any) -> None:
    raise AssertionError("nothing is written")


@pytest.mark.parametrize(
    ("sinks", "expected"),
    [
        ((files,), "exactly-once"),
        ((files, print), "at-least-once (sink PrintSink at test_guarantee.py repeats output after a failure)"),
        ((files, written), "at-least-once (sink function written at test_guarantee.py repeats output after a failure)"),
    ],
)
def test_of_sinks(sinks: Any, expected: str) -> None:
    made = [sink() if sink is files else sink for sink in sinks]
    assert re.sub(r"\.py:\d+", ".py", str(promised(NumberSequenceSource(0, 9), *made))) == expected


def test_of_a_source_that_cannot_be_read_again() -> None:
    found = promised(Once(0, 9), files())
    assert str(found) == "at-most-once (source Once 'numbers' cannot be read again)"
    assert found.cure == "switch its log on" and found.loses and not found.repeats


def test_the_mode_makes_it_at_least_once() -> None:
    found = promised(NumberSequenceSource(0, 9), files(), at_least_once=True)
    reason = "execution.checkpointing.mode is AT_LEAST_ONCE, so output is committed with its round and repeats after a failure"
    assert (str(found), found.cure) == (f"at-least-once ({reason})", "execution.checkpointing.mode: EXACTLY_ONCE")
    assert promised(Once(0, 9), files(), at_least_once=True).promise is Promise.AT_MOST_ONCE


def test_without_checkpoints() -> None:
    found = promised(NumberSequenceSource(0, 9), files(), checkpoints=False)
    assert str(found) == "no guarantee (without checkpoints a failure ends the job)"
    assert found.cure == "env.enable_checkpointing(...)"


@pytest.mark.parametrize("source", [NumberSequenceSource, Once])
@pytest.mark.parametrize(
    ("sink", "replayed", "unreplayed"),
    [
        (AnySink(SinkGuarantee.NONE), Promise.AT_LEAST_ONCE, Promise.AT_MOST_ONCE),
        (AnySink(SinkGuarantee.WRITE_AHEAD), Promise.AT_LEAST_ONCE, Promise.AT_MOST_ONCE),
        (AnySink(SinkGuarantee.IDEMPOTENT, Publication.ROUND), Promise.EXACTLY_ONCE, Promise.AT_MOST_ONCE),
        (AnySink(SinkGuarantee.TWO_PHASE_COMMIT), Promise.EXACTLY_ONCE, Promise.AT_MOST_ONCE),
        (AnySink(SinkGuarantee.TWO_PHASE_COMMIT, Publication.ROUND), Promise.AT_LEAST_ONCE, Promise.AT_MOST_ONCE),
        (AnySink(SinkGuarantee.BEST_EFFORT), Promise.NONE, Promise.NONE),
    ],
)
def test_every_kind_of_sink_with_every_kind_of_source(
    source: Any, sink: Sink, replayed: Promise, unreplayed: Promise
) -> None:
    assert promised(source(0, 9), sink).promise is (unreplayed if source is Once else replayed)


def test_an_idempotent_sink_says_that_old_values_reappear() -> None:
    found = promised(NumberSequenceSource(0, 9), AnySink(SinkGuarantee.IDEMPOTENT))
    assert found.promise is Promise.EXACTLY_ONCE and found.reappears and found.cure is None
    assert re.fullmatch(
        r"old values may reappear for a moment after a failure: sink AnySink at test_guarantee\.py:\d+ overwrites",
        str(found.reason),
    )


def test_one_that_waits_for_the_checkpoint_has_no_old_values_and_repeats_where_rounds_are_committed() -> None:
    sink = AnySink(SinkGuarantee.IDEMPOTENT)
    sink.marks_checkpoints = True
    found = promised(NumberSequenceSource(0, 9), sink)
    assert found.promise is Promise.EXACTLY_ONCE and not found.reappears and found.reason is None
    assert promised(NumberSequenceSource(0, 9), sink, at_least_once=True).promise is Promise.AT_LEAST_ONCE


def test_kafka_without_a_guarantee_promises_nothing() -> None:
    assert _GUARANTEES[DeliveryGuarantee.NONE] is SinkGuarantee.BEST_EFFORT


def two_sources() -> JobGraph:
    """Two sources meet in one sink; one of them also goes to another alone, and one goes nowhere else."""
    env = StreamExecutionEnvironment.get_execution_environment()
    none = WatermarkStrategy.no_watermarks()
    good = env.from_source(NumberSequenceSource(0, 9), none, "good")
    bad = env.from_source(Once(0, 9), none, "bad")
    unread = env.from_source(NumberSequenceSource(0, 9), none, "unread")
    good.union(bad).key_by(lambda v: v).sum().sink_to(files()).name("both")
    good.map(lambda v: v).sink_to(files()).name("alone")
    unread.map(lambda v: v)
    return graph_of(env)


def test_every_path_has_a_guarantee_of_its_own() -> None:
    found = guarantee_of(two_sources(), CheckpointPolicy(100))
    assert list(found.lines()) == [
        "NumberSequenceSource 'good' -> FileSink 'both': exactly-once",
        "NumberSequenceSource 'good' -> FileSink 'alone': exactly-once",
        "Once 'bad' -> FileSink 'both': at-most-once (source Once 'bad' cannot be read again); to raise it: switch its log on",
        "NumberSequenceSource 'unread' -> (no sink): exactly-once",
    ]
    assert str(found) == "at-most-once (source Once 'bad' cannot be read again)"
    assert found.paths[2].facts() == {
        "source": "Once 'bad'",
        "sink": "FileSink 'both'",
        "guarantee": "at-most-once",
        "reason": "source Once 'bad' cannot be read again",
        "cure": "switch its log on",
    }


def test_what_is_required_and_not_kept_is_refused_with_every_reason() -> None:
    graph = two_sources()
    found = guarantee_of(graph, CheckpointPolicy(100))
    check_required(graph, found, None)
    check_required(graph, found, "at-most-once")
    with pytest.raises(ProgramError) as refused:
        check_required(graph, found, "exactly-once")
    assert str(refused.value) == (
        f"The job is not exactly-once, which tidegate.require-guarantee requires\n"
        f"  where: job '{graph.name}'\n"
        f"  found: Once 'bad' -> FileSink 'both': at-most-once (source Once 'bad' cannot be read again)\n"
        f"  cure: switch its log on"
    )


def test_nothing_is_required_of_a_job_that_keeps_it() -> None:
    graph = two_sources()
    check_required(graph, promised(NumberSequenceSource(0, 9), files()), "exactly-once")
