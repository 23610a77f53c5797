"""What a job promises of its output: the weakest part decides."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.checkpoint.policy import CheckpointPolicy
from tidegate.common import Encoder, WatermarkStrategy
from tidegate.connectors.number_sequence import NumberSequenceSource
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import FileSink
from tidegate.graph.plan import build
from tidegate.runtime.guarantee import guarantee_of


class Once(NumberSequenceSource):
    can_replay = False


def files() -> FileSink:
    return FileSink.for_row_format("/tmp/x", Encoder.simple_string_encoder()).build()


def promised(source: Any, sinks: str, *, checkpoints: bool = True, **policy: Any) -> str:
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    for sink in sinks.split():
        stream.sink_to(files()) if sink == "files" else stream.print() if sink == "print" else stream.add_sink(print)
    return str(guarantee_of(build(env._program(None), 1, None, {}), CheckpointPolicy(100, **policy) if checkpoints else None))


@pytest.mark.parametrize(
    ("sinks", "expected"),
    [
        ("files", "exactly-once"),
        ("files print", "at-least-once (sink 'Print to Std. Out' repeats output after a failure)"),
        ("files function", "at-least-once (sink 'Unnamed' repeats output after a failure)"),
    ],
)
def test_of_sinks(sinks: str, expected: str) -> None:
    assert promised(NumberSequenceSource(0, 9), sinks) == expected


def test_of_a_source_that_cannot_be_read_again() -> None:
    assert promised(Once(0, 9), "files") == "at-most-once (source 'numbers' cannot be read again)"


def test_of_the_mode() -> None:
    found = promised(NumberSequenceSource(0, 9), "files", at_least_once=True)
    assert found == "at-least-once (execution.checkpointing.mode)"
    found = promised(Once(0, 9), "files", at_least_once=True)
    assert found == "at-most-once (source 'numbers' cannot be read again)"


def test_without_checkpoints() -> None:
    found = promised(NumberSequenceSource(0, 9), "files", checkpoints=False)
    assert found == "no guarantee (without checkpoints a failure ends the job)"
