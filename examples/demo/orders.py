"""The orders of the demo as a formula: order ``number`` is the same for whoever asks, whenever. Plain Python."""

from __future__ import annotations

CUSTOMERS = 2_000
START_MS = 1_767_225_600_000  # 2026-01-01 00:00 UTC
STEP_MS = 50
MAX_DELAY_MS = 20_000
"""Orders arrive out of order: an order's event time lies up to so much before its place in the stream."""

_MASK = (1 << 64) - 1

Order = tuple[int, int, int, int]
"""Number, customer, amount in cents, event time in milliseconds."""


def order(number: int) -> Order:
    """About one order in 200 is a large one."""
    bits = _mixed(number)
    cents = 500 + (bits >> 8) % 20_000
    if (bits >> 32) % 200 == 0:
        cents += 250_000
    event_ms = START_MS + number * STEP_MS - (bits >> 44) % MAX_DELAY_MS
    return number, bits % CUSTOMERS, cents, event_ms


def _mixed(number: int) -> int:
    """64 well stirred bits (splitmix64)."""
    bits = (number * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)
