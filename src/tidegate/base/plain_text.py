"""Text for people: untrusted text made safe for a terminal, and readable numbers and durations.

An exception, a key or a name may contain line feeds, and escapes that a terminal obeys.
"""

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


def count(number: int, what: str) -> str:
    """Return ``1 round``, ``2 rounds``, ``1,000 rounds``. ``what``: the singular of a noun with a plural in s."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def duration(ms: int, *, coarse: bool = False) -> str:
    """Write a duration: ``350 ms``, ``1.5 s``, ``2 min 3 s``. ``coarse``: whole seconds, for a text that keeps changing."""
    if ms < 1000 and not coarse:
        return f"{ms} ms"
    seconds = max(ms, 0) / 1000
    if seconds < 60:
        return f"{int(seconds)} s" if coarse or seconds == int(seconds) else f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    large, small = ((hours, "h"), (minutes, "min")) if hours else ((minutes, "min"), (rest, "s"))
    return f"{large[0]} {large[1]}" + (f" {small[0]} {small[1]}" if small[0] else "")
