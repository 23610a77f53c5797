"""What Spark's failures are said to be cured by."""

from __future__ import annotations

from tidegate.spark.engine import _cure


def test_a_program_with_too_many_levels_is_told_so() -> None:
    assert "spark.driver.extraJavaOptions=-Xss32m" in _cure("java.lang.StackOverflowError")
    assert "restart strategy" in _cure("java.lang.OutOfMemoryError")
