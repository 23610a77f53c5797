"""Untrusted text for a terminal: an exception, a key or a name may contain escapes that a terminal obeys, and line feeds."""

from __future__ import annotations

import logging
import re

_OBEYED = "\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
"""Control characters except tab and line feed, characters that change direction or lines, and lone surrogates."""
_IN_TEXT = re.compile(f"[{_OBEYED}]")
_IN_LINE = re.compile(f"[{_OBEYED}\t\n]")


def plain(text: str) -> str:
    """Replace characters that a terminal would obey by visible escapes (``\\u001b``, also valid in JSON). Tabs and line feeds
    stay."""
    return _IN_TEXT.sub(_escape, text)


def plain_line(text: str) -> str:
    """Do the same, and escape tabs and line feeds too."""
    return _IN_LINE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


class PlainFormatter(logging.Formatter):
    """Formats log records for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return plain(super().format(record))
