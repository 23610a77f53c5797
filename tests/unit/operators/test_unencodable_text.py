"""Text that cannot be encoded, wherever it comes: it travels, or the job fails once and names operator and record."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.executor import Simulated
from tidegate.base.errors import ConfigurationError, JobFailedError
from tidegate.common import Encoder, Types, WatermarkStrategy
from tidegate.connectors.files.bucket_assigners import BucketAssigner
from tidegate.datastream import DataStream, KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import FileSink, FileSource, StreamFormat
from tidegate.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor

BAD = "bad \ud800 text"
PATIENCE_S = 60


@pytest.fixture
def env(simulated: Simulated) -> StreamExecutionEnvironment:
    """With checkpoints and the strategy that is the default then: it restarts for ever."""
    return simulated(
        **{
            "execution.checkpointing.interval": "10 ms",
            "tidegate.round.max-records": 2,
            "parallelism.default": 2,
            "restart-strategy.type": None,
        }
    )


def texts(env: StreamExecutionEnvironment) -> DataStream:
    return env.from_collection(["a", "b", BAD, "c"], Types.STRING())


def failure(env: StreamExecutionEnvironment) -> str:
    job = env._start("bad text")
    with pytest.raises(JobFailedError) as caught:
        job.result(PATIENCE_S)
    return str(caught.value)


class Keeps(KeyedProcessFunction):
    """``declare``: the state it keeps texts in; ``keep``: how."""

    def __init__(self, declare: Callable[[Any], Any], keep: Callable[[Any, str], None]) -> None:
        self.declare, self.keep = declare, keep

    def open(self, runtime_context: Any) -> None:
        self.state = self.declare(runtime_context)

    def process_element(self, value: str, ctx: KeyedProcessFunction.Context) -> Any:
        self.keep(self.state, value)
        yield value


STATES = {
    "value": Keeps(lambda c: c.get_state(ValueStateDescriptor("s", Types.STRING())), lambda s, v: s.update(v)),
    "list": Keeps(lambda c: c.get_list_state(ListStateDescriptor("s", Types.STRING())), lambda s, v: s.add(v)),
    "map": Keeps(
        lambda c: c.get_map_state(MapStateDescriptor("s", Types.STRING(), Types.STRING())), lambda s, v: s.put(v, v)
    ),
}


def test_shuffles_keys_and_collecting_take_it(env: StreamExecutionEnvironment) -> None:
    stream = texts(env).rebalance().map(lambda v: v, Types.STRING()).key_by(lambda v: v, Types.STRING())
    assert sorted(stream.map(lambda v: v).execute_and_collect()) == sorted(["a", "b", BAD, "c"])


def test_printing_shows_it(env: StreamExecutionEnvironment, capsys: pytest.CaptureFixture[str]) -> None:
    texts(env).print()
    env.execute()
    assert sorted(line[3:] for line in capsys.readouterr().out.splitlines()) == ["a", "b", "bad \\ud800 text", "c"]


@pytest.mark.parametrize("kind", STATES)
def test_a_state_of_texts(env: StreamExecutionEnvironment, kind: str) -> None:
    texts(env).key_by(lambda v: v).process(STATES[kind]).add_sink(lambda v: None)
    text = failure(env)
    assert "The value does not fit the declared type of its state, STRING." in text
    assert "state 's' of operator 'KEYED PROCESS'" in text
    assert "'bad \\ud800 text'" in text


def test_a_file_sink(env: StreamExecutionEnvironment, tmp_path: Path) -> None:
    sink = FileSink.for_row_format(str(tmp_path / "out"), Encoder.simple_string_encoder()).build()
    texts(env).sink_to(sink).name("lines")
    text = failure(env)
    assert "Text cannot be encoded in its character set, utf-8" in text
    assert "sink FileSink 'lines'" in text
    assert "surrogates not allowed: record 'bad \\ud800 text'" in text
    assert "replace the characters in a map" in text


def test_a_charset_that_lacks_a_character(env: StreamExecutionEnvironment, tmp_path: Path) -> None:
    sink = FileSink.for_row_format(str(tmp_path / "out"), Encoder.simple_string_encoder("ISO-8859-1")).build()
    env.from_collection([(1, "a"), (2, "\u20ac")]).sink_to(sink)
    text = failure(env)
    assert "cannot be encoded in its character set, latin-1" in text
    assert "record (2, '\u20ac')" in text


class ByText(BucketAssigner):
    def get_bucket_id(self, element: Any, context: Any) -> str:
        return str(element)


def test_the_name_of_a_bucket(env: StreamExecutionEnvironment, tmp_path: Path) -> None:
    builder = FileSink.for_row_format(str(tmp_path / "out"), Encoder.simple_string_encoder())
    texts(env).map(lambda v: v.replace(" ", "_")).sink_to(builder.with_bucket_assigner(ByText()).build())
    assert "bad_\\ud800_text" in failure(env)


def test_the_name_of_a_file(env: StreamExecutionEnvironment, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path / "in") + b"/\xff.txt")).write_text("1\n")
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(tmp_path / "in")).build()
    env.from_source(source, WatermarkStrategy.no_watermarks(), "files").print()
    with pytest.raises(ConfigurationError, match="The name of a file is not valid UTF-8") as caught:
        env.execute()
    assert "\\udcff.txt" in str(caught.value.found)
