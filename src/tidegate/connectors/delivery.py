"""The delivery guarantees that a user can ask of a sink."""

from __future__ import annotations

from enum import Enum


class DeliveryGuarantee(Enum):
    """Say what a failure may do to the output of a sink.

    EXACTLY_ONCE: no record is lost or duplicated. AT_LEAST_ONCE: records may be duplicated. NONE: they may be lost or duplicated.
    """

    EXACTLY_ONCE = 0
    AT_LEAST_ONCE = 1
    NONE = 2
