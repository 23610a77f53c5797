"""``pyflink.metrics.metricbase``: the interfaces of metrics."""

from tidegate.common.metrics import Counter, Distribution, Meter, Metric, MetricGroup

__all__ = ["Counter", "Distribution", "Meter", "Metric", "MetricGroup"]
