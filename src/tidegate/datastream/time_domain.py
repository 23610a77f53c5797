"""TimeDomain: whether a timer is of event time or of processing time."""

from tidegate.operators.contracts.functions import TimeDomain

__all__ = ["TimeDomain"]
