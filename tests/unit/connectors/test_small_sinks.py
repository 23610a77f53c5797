"""Print, collect, function and discarding sinks."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from tidegate.base.errors import ArgumentTypeError
from tidegate.connectors.functions.function_sink import FunctionSink, SinkContext, SinkRuntimeContext
from tidegate.connectors.values.sinks import CollectSink, DiscardingSink, Once, PrintSink, collected, prefix
from tidegate.operators.contracts.sink import CommitterContext, Prepared, Publication, Sink, WriterContext
from tidegate.testing.sink_contract import SinkContract
from tidegate.testing.sink_run import SinkRun


def context(subtask: int = 0, parallelism: int = 1, attempt: str = "a") -> WriterContext:
    return WriterContext("job", "sink", subtask, parallelism, 0, None, attempt, 1000, "unused")


def write(sink: Sink, values: list[Any], at: WriterContext | None = None, stamps: list[int] | None = None) -> Prepared:
    writer = sink.create_writer(at or context(), [])
    writer.write_batch(values, stamps)
    prepared = writer.prepare_commit(False)
    writer.close()
    return prepared


class TestCollectContract(SinkContract):
    survives_restart = False

    def make_sink(self, directory: Path) -> Sink:
        self.reader = collected(str(directory))
        return CollectSink(str(directory))

    def visible(self, directory: Path) -> list[Any]:
        return list(collected(str(directory))._values)


class TestCollect:
    def test_a_waiting_iterator_gets_values(self) -> None:
        channel, found = collected("waiting"), list[Any]()
        reader = threading.Thread(target=lambda: found.extend(channel))
        reader.start()
        run = SinkRun(CollectSink("waiting"), "unused", lambda n: {"n": n})
        run.step(4, checkpoint=True)
        channel.close()
        reader.join(timeout=60)
        assert sorted(value["n"] for value in found) == [0, 1, 2, 3]

    def test_an_error_is_raised_after_the_last_value(self) -> None:
        channel = collected("broken")
        channel.put("a", [1, 2])
        channel.close(RuntimeError("the job failed"))
        assert (next(channel), next(channel)) == (1, 2)
        with pytest.raises(RuntimeError, match="the job failed"):
            next(channel)
        with pytest.raises(StopIteration):
            next(channel)

    def test_records_of_a_channel_without_a_reader_are_dropped(self) -> None:
        channel = collected("x")
        channel.put("a", [1])
        assert collected("x") is channel
        seen = weakref.ref(channel)
        del channel
        assert seen() is None
        run = SinkRun(CollectSink("x"), "unused", lambda n: {"n": n})
        run.step(4, checkpoint=True)
        assert list(collected("x")._values) == []

    def test_collected_records_wait_for_checkpoints_only_if_there_are_any(self) -> None:
        assert CollectSink.publication is Publication.CHECKPOINT_OR_ROUND


class TestPrint:
    @pytest.mark.parametrize(
        ("identifier", "parallelism", "front"), [("", 1, ""), ("", 2, "2> "), ("id", 1, "id> "), ("id", 4, "id:2> ")]
    )
    def test_the_prefix_of_a_line_is_flinks(self, identifier: str, parallelism: int, front: str) -> None:
        assert prefix(identifier, 1, parallelism) == front

    @pytest.mark.parametrize("stderr", [False, True])
    def test_lines_appear_once_when_committed(self, stderr: bool, capsys: pytest.CaptureFixture[str]) -> None:
        sink = PrintSink("out", stderr)
        prepared = write(sink, [1, "two", None], context(1, 2))
        assert capsys.readouterr() == ("", "")
        committer = sink.create_committer(CommitterContext("job", "sink", "unused"))
        committer.commit(prepared.committables)
        committer.commit(prepared.committables)
        text = "out:2> 1\nout:2> two\nout:2> None\n"
        assert capsys.readouterr() == (("", text) if stderr else (text, ""))

    def test_lines_are_printed_after_each_round(self) -> None:
        assert PrintSink.publication is Publication.ROUND
        assert write(PrintSink(), []).committables == []


class Recorder:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def open(self, runtime: SinkRuntimeContext) -> None:
        self.calls.append(("open", runtime.get_index_of_this_subtask(), runtime.get_number_of_parallel_subtasks()))

    def invoke(self, value: Any, at: SinkContext) -> None:
        self.calls.append((value, at.timestamp(), at.current_processing_time()))

    def flush(self) -> None:
        self.calls.append("flush")

    def close(self) -> None:
        self.calls.append("close")


class TestFunction:
    def test_it_is_opened_invoked_flushed_and_closed_once(self) -> None:
        recorder = Recorder()
        write(FunctionSink(recorder), ["a", "b"], context(1, 2), [5, 6])
        assert recorder.calls == [("open", 1, 2), ("a", 5, 1000), ("b", 6, 1000), "flush", "close"]

    def test_an_aborted_writer_is_closed(self) -> None:
        recorder = Recorder()
        writer = FunctionSink(recorder).create_writer(context(), [])
        writer.abort()
        writer.close()
        assert recorder.calls == [("open", 0, 1), "close"]

    def test_a_plain_function_and_a_one_argument_invoke(self) -> None:
        class OnlyValue:
            def invoke(self, value: Any) -> None:
                found.append(value)

        found: list[Any] = []
        write(FunctionSink(found.append), [1, 2])
        write(FunctionSink(OnlyValue()), [3])
        assert found == [1, 2, 3]

    def test_an_object_that_is_no_sink_function_is_refused(self) -> None:
        with pytest.raises(ArgumentTypeError, match="add_sink takes a function, or an object with invoke"):
            FunctionSink(7)

    def test_a_function_sink_needs_no_commit(self) -> None:
        assert FunctionSink(print).create_committer(CommitterContext("job", "sink", "x")) is None


def test_the_discarding_sink_keeps_nothing() -> None:
    assert write(DiscardingSink(), [1, 2]) == Prepared([], [])


@pytest.mark.parametrize("count", [1, 25_000])
def test_a_commit_that_is_repeated_has_no_effect_however_large_it_is(count: int) -> None:
    """A long checkpoint interval with short rounds makes many committables. A restart commits all of them again."""
    reader = collected("large")
    prepared = write(CollectSink("large"), ["x"]).committables[0]
    committables = [{**prepared, "id": f"attempt {n}"} for n in range(count)]
    committer = CollectSink("large").create_committer(CommitterContext("job", "sink", "unused"))
    committer.commit(committables[: count // 2])
    committer.commit(committables)
    committer.recover(committables)
    assert len(reader._values) == count


def test_ids_of_earlier_commits_are_forgotten() -> None:
    once = Once()
    for name in ("a", "b", "c"):
        once.begin([name])
        assert [once.first(name), once.first(name)] == [True, False]
    assert once._ids == {"c"}
