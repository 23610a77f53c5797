"""A hook for ``TIDEGATE_FAULT_HOOK``. It imports nothing of Tidegate, whose modules load it while they are loaded."""

from __future__ import annotations

import time
from typing import Any


def slow(name: str, where: dict[str, Any]) -> None:
    """Storage takes three seconds to publish a checkpoint."""
    if name == "storage.publish" and "_metadata" in str(where):
        time.sleep(3)
