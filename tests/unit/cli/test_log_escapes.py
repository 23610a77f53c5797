"""``tidegate logs`` on a terminal: a log may hold escapes of strangers."""

from __future__ import annotations

import os
import pty
import sys

import pytest

from tidegate.cli import commands

LOG = "caf\u00e9 \x1b]0;owned\x07\n".encode()


@pytest.mark.parametrize("on_terminal", [True, False])
def test_escapes_in_a_log_are_shown_on_a_terminal_and_kept_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, on_terminal: bool
) -> None:
    reading, writing = pty.openpty() if on_terminal else os.pipe()
    with open(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        for byte in LOG:  # a character may come in parts
            commands._write(bytes([byte]))
        stream.flush()
        found = os.read(reading, 1000)
    os.close(reading)
    expected = "caf\u00e9 \\u001b]0;owned\\u0007\r\n".encode() if on_terminal else LOG
    assert found == expected
