"""Text of strangers on a terminal: an exception, a key or a name may hold escapes that a terminal obeys, and line feeds."""

from __future__ import annotations

import logging
import re

_OBEYED = "\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
"""Control characters but tab and line feed, what changes the direction of a text or its lines, and halves of characters."""
_IN_TEXT = re.compile(f"[{_OBEYED}]")
_IN_LINE = re.compile(f"[{_OBEYED}\t\n]")


def plain(text: str) -> str:
    """The text with visible escapes (``\\u001b``, which is valid in JSON too) in place of what a terminal would obey. Tabs and line
    feeds stay."""
    return _IN_TEXT.sub(_escape, text)


def plain_line(text: str) -> str:
    """The same, and in one line."""
    return _IN_LINE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


class PlainFormatter(logging.Formatter):
    """Formats log records for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return plain(super().format(record))
