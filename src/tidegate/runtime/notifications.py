"""Which functions want to hear of checkpoints."""

from __future__ import annotations

from typing import Any

from tidegate.datastream.functions import Function
from tidegate.graph.transformation import OperatorSpec

_HOOK = "notify_checkpoint_complete"


def is_notified(spec: OperatorSpec) -> bool:
    """Whether the user's function has the hook, other than the empty one all functions inherit."""
    function = getattr(spec, "function", None)
    function = getattr(function, "_function", function)  # below a wrapper for a declared type
    hook: Any = getattr(type(function), _HOOK, None)
    return hook is not None and hook is not getattr(Function, _HOOK)
