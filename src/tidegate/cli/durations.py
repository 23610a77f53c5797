"""How long something took, or is ago."""

from __future__ import annotations


def duration(ms: int, *, coarse: bool = False) -> str:
    """In the words of a person. ``coarse``: whole seconds, for what is read while it changes."""
    if ms < 1000 and not coarse:
        return f"{ms} ms"
    seconds = max(ms, 0) / 1000
    if seconds < 60:
        return f"{int(seconds)} s" if coarse or seconds == int(seconds) else f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    large, small = ((hours, "h"), (minutes, "min")) if hours else ((minutes, "min"), (rest, "s"))
    return f"{large[0]} {large[1]}" + (f" {small[0]} {small[1]}" if small[0] else "")
