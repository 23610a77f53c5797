"""Tidegate: Flink-style DataStream programs in Python, run on Apache Spark."""

from tidegate.base.imports import answer_for_names as _answer_for_names

__version__ = "0.1.0"

_answer_for_names()
