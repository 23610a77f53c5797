"""Named fault points. They cost a global load and a comparison, and never stand on the per-record path.

A test installs a hook in this process, or sets ``TIDEGATE_FAULT_HOOK=module:function`` so that every process of a job
(driver, Python workers) finds it. The hook gets the name and the place of the point, and may raise, kill or wait.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

Hook = Callable[[str, dict[str, Any]], None]
_hook: Hook | None = None


class Killed(BaseException):
    """Raised by a hook to simulate the death of a process. No code handles it, and it blames no user code."""


def point(name: str, **where: Any) -> None:
    """Pass the fault point ``name`` (ids of FAULTS.md, e.g. ``"T2.before-segment"``)."""
    if _hook is not None:
        _hook(name, where)


def install(hook: Hook | None) -> None:
    """Set the hook of this process; None removes it."""
    global _hook
    _hook = hook


_path = os.environ.get("TIDEGATE_FAULT_HOOK")
if _path:
    _module, _, _function = _path.partition(":")
    install(getattr(importlib.import_module(_module), _function))
