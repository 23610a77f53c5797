"""State backends: where running state lives."""

from __future__ import annotations

from abc import ABC, abstractmethod

__all__ = ["HashMapStateBackend", "StateBackend"]


class StateBackend(ABC):
    """What ``StreamExecutionEnvironment.set_state_backend`` takes; the same as the key ``state.backend.type``."""

    @property
    @abstractmethod
    def type_name(self) -> str:
        """The value of ``state.backend.type`` that stands for it."""


class HashMapStateBackend(StateBackend):
    """Memory-mapped local stores, cached in dicts while a round runs."""

    @property
    def type_name(self) -> str:
        return "hashmap"
