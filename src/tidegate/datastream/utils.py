"""An optional interface of sources."""

from __future__ import annotations

from abc import ABC, abstractmethod

from tidegate.common.typeinfo import TypeInformation

__all__ = ["ResultTypeQueryable"]


class ResultTypeQueryable(ABC):
    """A source that knows the type of its records."""

    @abstractmethod
    def get_produced_type(self) -> TypeInformation: ...
