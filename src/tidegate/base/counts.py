"""Numbers of things in the words of a person."""

from __future__ import annotations


def count(number: int, what: str) -> str:
    """``1 round``, ``2 rounds``, ``1,000 rounds``. ``what``: the singular of a noun with a plural in s."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")
