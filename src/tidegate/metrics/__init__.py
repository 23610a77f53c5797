"""Metrics of user functions. Exports what ``pyflink.metrics`` exports."""

from tidegate.metrics.metricbase import Counter, Distribution, Meter, Metric, MetricGroup

__all__ = ["Counter", "Distribution", "Meter", "Metric", "MetricGroup"]
