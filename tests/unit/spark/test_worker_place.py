"""Where a worker runs: the executor's id is an argument of the JVM above it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.waiting import eventually
from tidegate.spark.task import _executor_id, _parent_of, _place


@contextmanager
def process(*arguments: str) -> Iterator[int]:
    """A process with these arguments, until the end of the block."""
    with subprocess.Popen([sys.executable, "-c", "input()", *arguments], stdin=subprocess.PIPE) as child:
        try:
            yield child.pid
        finally:
            child.communicate(b"\n")


def test_executor_id_is_the_one_in_the_command() -> None:
    with process("--driver-url", "spark://x", "--executor-id", "7", "--cores", "2") as pid:
        eventually(lambda: _executor_id(pid) == "7", "the command of the process can be read")
        assert _parent_of(pid) == os.getpid()


def test_command_without_an_executor_id_has_none() -> None:
    with process("--executor-id") as pid:
        assert _executor_id(pid) == ""
    assert _executor_id(None) == ""
    assert _parent_of(1 << 30) is None


def test_place_is_the_host_where_no_executor_has_started_the_process() -> None:
    assert _place(os.getpid()) == os.uname().nodename
