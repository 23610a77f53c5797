"""InputDependencyConstraint: kept for programs that name it; a round always has all its inputs."""

from __future__ import annotations

from enum import Enum

__all__ = ["InputDependencyConstraint"]


class InputDependencyConstraint(Enum):
    """When a task may start, in Flink's batch scheduling."""

    ANY = 0
    ALL = 1
