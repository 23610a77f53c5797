"""What Spark's failures are said to be cured by, and which of them are final."""

from __future__ import annotations

import pytest

from tidegate.base.errors import ConfigurationError, DependencyError, StorageError
from tidegate.spark.engine import _cause, _cure, raised_in_task

STAGE_FAILED = """An error occurred while calling o55.collect.
: org.apache.spark.SparkException: [TASK_FAILED] Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most \
recent failure: Lost task 0.3 in stage 0.0 (TID 3) (127.0.0.1 executor driver): org.apache.spark.api.python.PythonException: \
Traceback (most recent call last):
  File "/site-packages/pyspark/worker.py", line 2059, in main
    process()
{}
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
"""


def test_program_with_too_many_levels_names_the_option() -> None:
    assert "spark.driver.extraJavaOptions=-Xss32m" in _cure("java.lang.StackOverflowError")
    assert "restart strategy" in _cure("java.lang.OutOfMemoryError")


@pytest.mark.parametrize(
    ("found", "cure"),
    [
        ("OSError: AF_UNIX path too long", "spark.python.unix.domain.socket.enabled=false"),
        ("java.net.SocketException: Unix domain path too long", "spark.python.unix.domain.socket.enabled=false"),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9", "PYSPARK_PYTHON"),
        ('java.io.IOException: Cannot run program "/no/python": error=2, No such file or directory', "PYSPARK_PYTHON"),
        ("ModuleNotFoundError: No module named 'lookups'", "python.files"),
    ],
)
def test_a_first_round_that_cannot_succeed_names_its_cure(found: str, cure: str) -> None:
    assert cure in _cure(found)


def test_an_error_of_a_task_keeps_its_class_and_parts() -> None:
    raised = ConfigurationError("a key is missing\nin the worker", where="hdfs:///", found="none\nof it", cure="set it")
    text = STAGE_FAILED.format(f"tidegate.base.errors.ConfigurationError: {raised}")
    told = raised_in_task(_cause(Exception(text)))
    assert type(told) is ConfigurationError and str(told) == str(raised)
    assert (told.where, told.found, told.cure) == ("hdfs:///", "none\nof it", "set it")
    assert type(raised_in_task("tidegate.base.errors.DependencyError: it is missing")) is DependencyError


@pytest.mark.parametrize(
    "cause",
    [
        f"tidegate.base.errors.{StorageError.__name__}: away for now",
        "ValueError: no number",
        "tidegate.base.errors.Nothing: of this name",
        "TidegateError: as such",
        "PortableError: no error of its own",
        "annotations: no class",
        "",
    ],
)
def test_what_a_restart_may_cure_is_left_to_the_strategy(cause: str) -> None:
    assert raised_in_task(cause) is None
