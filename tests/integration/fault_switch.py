"""A fault hook that tests switch on and off while the session's workers run: one file for each point."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

DIRECTORY = "TIDEGATE_SWITCHED_FAULTS"


def hook(name: str, where: dict[str, Any]) -> None:
    """Raises what the file of the point says, if its text occurs in where the point is."""
    try:
        error, _, text = Path(os.environ[DIRECTORY], name).read_text().partition(" ")
    except FileNotFoundError:
        return
    if text in str(where):
        raise OSError(getattr(errno, error), os.strerror(getattr(errno, error)))


class FaultSwitch:
    """The test's side of it. ``on`` makes every passing of the point fail until ``off``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def on(self, point: str, error: str = "ENOSPC", text: str = "") -> None:
        """``text`` must occur in what the point tells of itself, for example a part of a path."""
        hidden = self._directory / ".next"
        hidden.write_text(f"{error} {text}")
        hidden.rename(self._directory / point)  # never seen half written

    def off(self) -> None:
        for path in self._directory.iterdir():
            path.unlink()
