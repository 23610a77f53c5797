"""Spark starts while ``tidegate run`` reads and builds the program."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tidegate.base.errors import TidegateError
from tidegate.common import global_configuration
from tidegate.common.configuration import effective
from tidegate.common.options import TARGET


@contextlib.contextmanager
def spark_ahead() -> Iterator[None]:
    """Around the program. A wrong configuration is for the program to meet; a JVM it did not need goes with its end."""
    configuration = None
    with contextlib.suppress(TidegateError):
        configuration = effective(global_configuration.load())
    if configuration is None or configuration[TARGET.key] != TARGET.default:
        yield
        return
    from tidegate.spark.launch import forget_ahead  # pyspark: other commands do without
    from tidegate.spark.session import start_ahead

    start_ahead(configuration)
    try:
        yield
    finally:
        forget_ahead()
