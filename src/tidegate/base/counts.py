"""Numbers and durations as people read them."""

from __future__ import annotations


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
