"""Connectors under PyFlink's module paths."""

from tidegate.datastream.connectors.base import DeliveryGuarantee, Sink, Source

__all__ = ["DeliveryGuarantee", "Sink", "Source"]
