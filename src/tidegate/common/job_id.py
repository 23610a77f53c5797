"""JobID: the name of one job, and of its directory on checkpoint storage."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["JobID"]


@dataclass(frozen=True)
class JobID:
    """32 hexadecimal digits, or the value of ``tidegate.job-id``."""

    value: str

    def __str__(self) -> str:
        return self.value
