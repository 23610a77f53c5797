"""Tidegate: Flink-style DataStream programs in Python, run on Apache Spark."""

from tidegate.pyflink_names import install as _answer_for_missing_names

__version__ = "0.1.0"

_answer_for_missing_names()
