"""What a forked child does with the stores of its parent: nothing, not even close them.

A child that user code forks (``os.fork``, ``multiprocessing`` with the start method fork) has copies of all objects of the worker,
and shares with it what the system keeps: files, locks, mapped memory. RocksDB's threads are not in it, so whoever closes or opens
a store there waits for ever. LMDB's readers are in memory that both see, so whoever closes one there ends the parent's.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

from tidegate.base.errors import StateAccessError

RULE: Final = "State and timers can be used only by the process that runs the operator."
CURE: Final = (
    "use state in the function itself, and hand values to the child process and back; "
    "or start the child with multiprocessing.get_context('spawn')"
)


def keep_for_ever(handle: Any) -> None:
    """Never finalize an object, nor what it refers to. Not at the end of the process either: that is why a list would not do."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))


def used_in_child(where: str) -> StateAccessError:
    return StateAccessError(
        RULE, where=where, found="a child process that was forked while the operator ran", cure=CURE
    )
