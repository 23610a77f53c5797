"""Functions as they are when an operator is added: what the program changes afterwards is nothing to it."""

from __future__ import annotations

from typing import Any

from tidegate.base.pickling import dumps


def pickled(part: Any) -> bytes | None:
    """What the executors will get. PyFlink pickles a function when its operator is added; so a lambda in a loop sees the
    loop's variable as it was then, and a list that grows later is not longer for it.

    None if it cannot be pickled: ``execute`` tells of it, with the operator's name.
    """
    try:
        return dumps(part)
    except Exception:  # pickling runs user code, which may raise anything
        return None
