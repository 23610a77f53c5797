"""The data generator source; PyFlink has it in Java only."""

from tidegate.connectors.data_generator import DataGeneratorSource, RateLimiterStrategy

__all__ = ["DataGeneratorSource", "RateLimiterStrategy"]
