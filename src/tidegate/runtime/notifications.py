"""Which functions want to hear of checkpoints."""

from __future__ import annotations

from tidegate.graph.transformation import OperatorSpec
from tidegate.operators.contracts import functions


def is_notified(spec: OperatorSpec) -> bool:
    """Whether the user's function has the hook, other than the empty one all functions inherit."""
    return spec.method is not None and functions.is_notified(spec.function)
