"""A JVM or a context that is gone: how it is known, and how pyspark is brought to start a new one in the same process."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pyspark import SparkContext


def is_lost(context: SparkContext) -> bool:
    """Whether no job can run in it any more."""
    try:
        return bool(context._jsc.sc().isStopped())
    except Exception:  # no connection, or no context object any more
        return True


def forget_lost() -> None:
    """pyspark keeps one JVM and one context for the life of the process and never asks whether they still live; a start that
    failed half-way leaves them too. What is gone is let go of here, so that the next context gets a JVM that lives.

    Python workers of a JVM that died end by themselves, maybe late. They are what any late task is: their files have names of
    their own, their rounds count for nobody.
    """
    context = SparkContext._active_spark_context
    if context is not None and is_lost(context):
        _let_go(context)
    gateway = SparkContext._gateway
    if gateway is not None and _has_ended(gateway):
        with suppress(Exception):
            gateway.close()  # our ends of the connections
        SparkContext._gateway = SparkContext._jvm = None


def _let_go(context: SparkContext) -> None:
    with suppress(Exception):  # a context that was stopped in a JVM that lives
        context.stop()
    context._jsc = None  # else stop asks the JVM first, and does nothing else if that does not answer
    with suppress(Exception):
        context.stop()
    SparkContext._active_spark_context = None


def _has_ended(gateway: Any) -> bool:
    """``proc`` None: the JVM has started us (spark-submit), and would have taken us along."""
    process = getattr(gateway, "proc", None)
    return process is not None and process.poll() is not None
