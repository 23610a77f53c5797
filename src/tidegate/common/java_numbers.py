"""Floating-point numbers as Java writes them: ``1.0E20`` where Python says ``1e+20``."""

from __future__ import annotations

import struct


def double_text(value: float) -> str:
    return _number_text(value, repr(value))


def float_text(value: float) -> str:
    """Of a number of four bytes."""
    return _number_text(value, _digits_of_float(value))


def _number_text(value: float, shortest: str) -> str:
    """Plain from a thousandth up to ten million, else one digit before the point and an exponent. ``shortest``: as Python
    writes the digits that tell the value from its neighbours."""
    if value != value or value in (float("inf"), float("-inf")):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return format(value, "f") if "e" in shortest else shortest
    digits, _, exponent = format(value, f".{_significant(shortest) - 1}e").partition("e")
    return f"{digits if '.' in digits else digits + '.0'}E{int(exponent)}"


def _significant(shortest: str) -> int:
    mantissa = shortest.lstrip("-").partition("e")[0].replace(".", "").strip("0")
    return max(1, len(mantissa))


def _digits_of_float(value: float) -> str:
    """The fewest digits that give the same four bytes."""
    for precision in range(1, 10):
        text = repr(float(f"{value:.{precision}g}"))
        if struct.pack("f", float(text)) == struct.pack("f", value):
            return text
    return repr(value)
