"""The data generator source; PyFlink has it in Java only."""

from tidegate.connectors.values.data_generator import DataGeneratorSource, RateLimiterStrategy

__all__ = ["DataGeneratorSource", "RateLimiterStrategy"]
