"""Delivery guarantees a user can ask of a sink."""

from __future__ import annotations

from enum import Enum


class DeliveryGuarantee(Enum):
    """EXACTLY_ONCE: also after failures. AT_LEAST_ONCE: repeated after failures. NONE: best effort, lost or
    repeated.
    """

    EXACTLY_ONCE = 0
    AT_LEAST_ONCE = 1
    NONE = 2
