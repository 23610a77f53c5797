"""The socket source: lines as Flink splits them, positions, and restarts with a write-ahead log."""

from __future__ import annotations

import os
import resource
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.unit.connectors.senders import Sender
from tests.waiting import eventually
from tidegate.base.errors import ArgumentTypeError, ProgramError, RestoreError, ServiceError
from tidegate.connectors.sockets import received_lines
from tidegate.connectors.sockets.received_lines import LinesInMemory, LinesOnStorage
from tidegate.connectors.sockets.source import SocketSource
from tidegate.operators.contracts.source import SourceContext, SplitEnumerator
from tidegate.testing.source_contract import read_interval


def opened(source: SocketSource, directory: Path, restored: Any = None, lease: int = 1) -> SplitEnumerator:
    return source.create_enumerator_in(SourceContext(f"{directory}/log", lease, 1), 1, restored)


def taken(source: SocketSource, enumerator: SplitEnumerator, limit: int = 1000) -> list[str]:
    return [line for part in enumerator.plan(limit, 0).intervals for line in read_interval(source, part)]


def read_to_end(source: SocketSource, enumerator: SplitEnumerator, limit: int = 2) -> list[str]:
    lines: list[str] = []

    def finished() -> bool:
        plan = enumerator.plan(limit, 0)
        for part in plan.intervals:
            lines.extend(read_interval(source, part))
        return plan.finished

    eventually(finished, "the source has ended")
    return lines


@pytest.mark.parametrize("write_ahead", [False, True])
@pytest.mark.parametrize(
    ("sent", "delimiter", "expected"),
    [
        ("a\nb\r\n\nc", "\n", ["a", "b", "", "c"]),
        ("", "\n", []),
        ("a||b|c||", "||", ["a", "b|c"]),
        ("ä€\n".encode() + b"\xff\n", "\n", ["ä€", "\ufffd"]),
    ],
)
def test_delimiters_split_lines_as_in_flink(
    write_ahead: bool, sent: str | bytes, delimiter: str, expected: list[str], tmp_path: Path
) -> None:
    with Sender(sent) as sender:
        source = SocketSource("127.0.0.1", sender.port, delimiter, write_ahead=write_ahead)
        enumerator = opened(source, tmp_path)
        assert read_to_end(source, enumerator) == expected
        enumerator.close()


def test_a_process_with_very_many_open_files_receives_lines(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with open(os.devnull) as nothing, Sender("a\nb\n") as sender:
        others = [os.dup(nothing.fileno()) for _ in range(1100)]
        try:
            source = SocketSource("127.0.0.1", sender.port)
            enumerator = opened(source, tmp_path)
            assert read_to_end(source, enumerator) == ["a", "b"]
            enumerator.close()
        finally:
            for other in others:
                os.close(other)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_source_connects_again_max_retry_times(tmp_path: Path) -> None:
    with Sender("a\nb", "c\n", "d\n", "never\n") as sender:
        source = SocketSource("127.0.0.1", sender.port, max_retry=2)
        object.__setattr__(source.address, "pause_s", 0.001)
        enumerator = opened(source, tmp_path)
        assert read_to_end(source, enumerator) == ["a", "bc", "d"]
        assert sender.connections == 3
        enumerator.close()


def test_without_a_sender_the_start_fails() -> None:
    with socket.socket() as bound:  # and not listening
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(ServiceError, match="cannot connect to its sender") as error:
            SocketSource("127.0.0.1", bound.getsockname()[1]).create_enumerator(1, None)
    assert "start the sender before the job" in str(error.value)


@pytest.mark.parametrize("arguments", [("h", "80"), ("", 80), ("h", 80, "")])
def test_wrong_arguments(arguments: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="socket_text_stream takes"):
        SocketSource(*arguments)


@pytest.mark.parametrize("arguments", [("h", 0), ("h", 1 << 16), ("h", 80, "\n", -2)])
def test_impossible_arguments(arguments: Any) -> None:
    with pytest.raises(ProgramError, match="not between 1 and 65535"):
        SocketSource(*arguments)


def test_guarantee_depends_on_the_log() -> None:
    plain, logged = SocketSource("h", 1), SocketSource("h", 1, write_ahead=True)
    assert not plain.can_replay and "write_ahead=True" in plain.to_raise
    assert logged.can_replay and not plain.can_stop and not logged.can_stop


def test_a_discarded_round_is_read_again_from_the_same_connection(tmp_path: Path) -> None:
    with Sender("a\nb\nc\n", holds=1) as sender:
        source = SocketSource("127.0.0.1", sender.port)
        enumerator = opened(source, tmp_path)
        before = enumerator.snapshot()
        eventually(lambda: enumerator._lines.end == 3, "the lines are there")  # type: ignore[attr-defined]
        assert taken(source, enumerator, 2) == ["a", "b"]
        assert enumerator.rewind(before)
        assert taken(source, enumerator) == ["a", "b", "c"]
        assert sender.connections == 1
        sender.release()
        enumerator.close()


def test_without_a_log_a_restart_loses_what_no_checkpoint_has(tmp_path: Path) -> None:
    with Sender("a\nb\nc\n", "d\n", holds=1) as sender:
        source = SocketSource("127.0.0.1", sender.port)
        first = opened(source, tmp_path)
        eventually(lambda: first._lines.end == 3, "the lines are there")  # type: ignore[attr-defined]
        assert taken(source, first, 1) == ["a"]
        position = first.snapshot()
        first.close()
        second = opened(source, tmp_path, position, lease=2)
        sender.release()
        assert read_to_end(source, second) == ["d"]
        second.close()


def test_with_a_log_a_restart_loses_nothing(tmp_path: Path) -> None:
    with Sender("a\nb\nc\n", "d\n", holds=1) as sender:
        source = SocketSource("127.0.0.1", sender.port, write_ahead=True)
        first = opened(source, tmp_path)
        eventually(lambda: first._lines.end == 3, "the lines are there")  # type: ignore[attr-defined]
        assert taken(source, first, 1) == ["a"]
        position = first.snapshot()
        assert taken(source, first, 1) == ["b"]
        first.close()
        second = opened(source, tmp_path, position, lease=2)
        sender.release()
        assert read_to_end(source, second) == ["b", "c", "d"]
        end = second.snapshot()
        second.close()
        connections = sender.connections
        third = opened(source, tmp_path, end, lease=3)
        assert third.plan(10, 0).finished and sender.connections == connections, "the sender has said all"


def test_a_log_from_before_the_first_checkpoint_counts(tmp_path: Path) -> None:
    with Sender("a\nb\n") as sender:
        source = SocketSource("127.0.0.1", sender.port, write_ahead=True)
        first = opened(source, tmp_path)
        assert read_to_end(source, first) == ["a", "b"]
        first.close()
    second = opened(source, tmp_path, None, lease=2)  # the sender no longer listens
    assert read_to_end(source, second) == ["a", "b"]


def test_another_job_continues_with_the_log_of_the_first(tmp_path: Path) -> None:
    log = LinesOnStorage(f"{tmp_path}/one", 1, 1, None)
    log.append(["a", "b"])
    other = LinesOnStorage(f"{tmp_path}/two", 1, 1, log.position(1))
    other.append(["c"])
    assert [file.rpartition("/")[0] for file, _, _ in other.take(1, 3)["files"]] == [
        f"{tmp_path}/one",
        f"{tmp_path}/two",
    ]
    other.completed(3)
    assert len(list((tmp_path / "one").iterdir())) == 1, "what another job has written is its own"


def test_files_are_deleted_when_no_retained_checkpoint_needs_them(tmp_path: Path) -> None:
    log = LinesOnStorage(f"{tmp_path}/log", 1, 2, None)
    for line in "abc":
        log.append([line])
    log.completed(2)
    assert len(list((tmp_path / "log").iterdir())) == 3
    log.completed(3)
    assert len(list((tmp_path / "log").iterdir())) == 1
    with pytest.raises(RestoreError, match="lines 0 to 1 are missing"):
        LinesOnStorage(f"{tmp_path}/log", 2, 1, {"offset": 0, "ended": False, "log": f"{tmp_path}/log"})


def test_lines_of_an_older_attempt_that_is_still_alive_do_not_count(tmp_path: Path) -> None:
    old = LinesOnStorage(f"{tmp_path}/log", 1, 1, None)
    old.append(["a"])
    new = LinesOnStorage(f"{tmp_path}/log", 2, 1, None)
    old.append(["zombie", "zombie"])
    new.append(["b"])
    newest = LinesOnStorage(f"{tmp_path}/log", 3, 1, None)
    files = newest.take(0, newest.end)["files"]
    assert [line for file, start, end in files for line in received_lines.read_log_file(file)[start:end]] == ["a", "b"]


def test_a_sender_waits_while_memory_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(received_lines, "MOST_WAITING", 1 << 16)
    with Sender("x" * 1000 + "\n", holds=1) as sender:
        sender._texts[:] = [("x" * 999 + "\n").encode() * 20_000]
        source = SocketSource("127.0.0.1", sender.port)
        enumerator = source.create_enumerator(1, None)
        lines = enumerator._lines  # type: ignore[attr-defined]
        count = 0

        def all_read() -> bool:
            nonlocal count
            assert lines._bytes <= (1 << 16) + (1 << 20) + (1 << 16)
            count += len(taken(source, enumerator, 5_000))
            return count == 20_000

        eventually(all_read, "everything was read")
        sender.release()
        enumerator.close()


def test_closing_does_not_wait_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(received_lines, "MOST_WAITING", 1)
    lines = LinesInMemory(0)
    lines.append(["x"])
    lines.close()
    lines.append(["y"])
    assert lines.end == 2
