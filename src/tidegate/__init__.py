"""Tidegate: Flink-style DataStream programs in Python, run on Apache Spark."""

__version__ = "0.1.0"
