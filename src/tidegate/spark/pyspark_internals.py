"""Everything of pyspark that is not its public API. No other module may use such names: ``tests/unit/spark`` checks it.

Tested with pyspark 4.1 to 4.3 (``make test-sparks``). A new version must keep: one JVM and one context of a process in class
attributes of ``SparkContext``, ``Popen`` as a name in ``pyspark.java_gateway``, and the Java objects that ``_jsc`` and ``_jrdd``
hold.
"""

from __future__ import annotations

import os
import pickle
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pyspark import RDD, SparkConf, SparkContext, java_gateway
from pyspark.find_spark_home import _find_spark_home

from tidegate.base.errors import EngineUnavailableError

TESTED = ("4.1", "4.2", "4.3")
PROPERTIES_OPTION = "--properties-file"
_ENDED_TOO_SOON = 1
_GATEWAY = "PYSPARK_GATEWAY_PORT"
"""spark-submit sets it: the port of the JVM that has started this process."""

# -- the context -----------------------------------------------------------------------------------------------------------


def active_context() -> SparkContext | None:
    """Return the context of the process. None if there is none, or it was stopped."""
    context = SparkContext._active_spark_context
    return None if context is None or context._jsc is None else context


def is_lost(context: SparkContext) -> bool:
    """Return whether no job can run in the context any more."""
    try:
        return bool(context._jsc.sc().isStopped())
    except Exception:  # no connection, or no context object any more
        return True


def forget_lost() -> None:
    """Drop a context and a JVM that are gone, so that the next context gets a JVM that lives.

    pyspark keeps one JVM and one context for the life of the process and never checks whether they still live. A start that failed
    half-way leaves them too. Python workers of a JVM that died end by themselves, maybe late. Such a worker is like any late task:
    its files have names of their own, and its rounds are not accepted.
    """
    context = SparkContext._active_spark_context
    if context is not None and is_lost(context):
        with suppress(Exception):  # a context that was stopped in a JVM that lives
            context.stop()
        context._jsc = None  # else stop() asks the JVM first, and does nothing more if the JVM does not answer
        with suppress(Exception):
            context.stop()
        SparkContext._active_spark_context = None
    gateway = SparkContext._gateway
    if gateway is not None and _has_ended(gateway):
        with suppress(Exception):
            gateway.close()  # our ends of the connections
        SparkContext._gateway = SparkContext._jvm = None


def _has_ended(gateway: Any) -> bool:
    """``proc`` None: the JVM has started this process (spark-submit), which would have ended with the JVM."""
    process = getattr(gateway, "proc", None)
    return process is not None and process.poll() is not None


def has_python_file(context: SparkContext, name: str) -> bool:
    """Return whether executors get this file on their Python path already."""
    return name in (context._python_includes or [])


# -- the JVM ---------------------------------------------------------------------------------------------------------------


class _NoticedPopen(subprocess.Popen[Any]):
    """pyspark waits until the JVM says where it listens, or ends. pyspark overlooks an end with exit code 0 and waits for ever.

    ``properties`` is the file with the settings. pyspark itself would pass settings as arguments, which every user can read.
    """

    def __init__(self, command: list[str], properties: str | None = None, **more: Any) -> None:
        super().__init__(command if properties is None else with_properties(command, properties), **more)

    def poll(self) -> int | None:
        ended = super().poll()
        return _ENDED_TOO_SOON if ended == 0 else ended


vars(java_gateway)["Popen"] = _NoticedPopen


def with_properties(command: list[str], path: str) -> list[str]:
    """Return the command of spark-submit with this file instead of the user's file, whose content stands in this file."""
    rest = list(command)
    for number in reversed(range(len(rest))):
        if rest[number] == PROPERTIES_OPTION:
            del rest[number : number + 2]
        elif rest[number].startswith(f"{PROPERTIES_OPTION}="):
            del rest[number]
    return [rest[0], PROPERTIES_OPTION, path, *rest[1:]]


def launch_gateway(stderr: int, properties: str) -> Any:
    """Start a JVM and return the gateway to it. pyspark does not know of the JVM before ``use_gateway``."""
    return java_gateway.launch_gateway(None, {"stderr": stderr, "properties": properties})  # type: ignore[no-untyped-call]


def use_gateway(gateway: Any) -> None:
    """Let pyspark use this JVM for the next context of the process."""
    SparkContext._ensure_initialized(gateway=gateway)


def has_jvm() -> bool:
    return SparkContext._gateway is not None


def log_in_as(user: str) -> None:
    """Log in to Hadoop, in the JVM, as this user."""
    assert SparkContext._jvm is not None
    users = SparkContext._jvm.org.apache.hadoop.security.UserGroupInformation
    users.setLoginUser(users.createRemoteUser(user))


def spark_conf_dir() -> str:
    """Return the directory of Spark's own configuration files."""
    return os.environ.get("SPARK_CONF_DIR") or os.path.join(spark_home(), "conf")


def spark_home() -> str:
    """Return Spark's directory. pyspark searches it in ways that end the process if there is none."""
    try:
        return str(_find_spark_home())
    except SystemExit:
        raise EngineUnavailableError(
            "Spark is not installed here",
            found="no SPARK_HOME, and no directory of Spark around the package pyspark",
            cure="set SPARK_HOME to Spark's directory, or install pyspark from PyPI, which contains Spark",
        ) from None


def submitted_settings() -> Mapping[str, str]:
    """Return the settings of spark-submit, if spark-submit has started this process in its JVM; else an empty mapping."""
    if _GATEWAY not in os.environ:
        return {}
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


# -- jobs ------------------------------------------------------------------------------------------------------------------


def collect(rdd: RDD[Any]) -> list[Any]:
    """Return all rows. ``rdd.collect()`` would open a socket each time, and the JVM never forgets its path (``deleteOnExit``)."""
    return [row for packed in rdd._jrdd.collect() for row in pickle.loads(packed)]


def release_shuffles(rdd: RDD[Any]) -> None:
    """Delete the shuffle files of the RDD. Spark itself would wait for a garbage collection of the driver's JVM."""
    rdd._jrdd.rdd().cleanShuffleDependencies(False)


def was_run_again(context: SparkContext, stage: int) -> bool:
    """Return whether Spark has run the stage more than once. Spark registers a new attempt of a stage before its first task."""
    known = context._jsc.statusTracker().getStageInfo(stage)
    return known is not None and known.currentAttemptId() > 0


# -- places ----------------------------------------------------------------------------------------------------------------


class Beside:
    """The unions of RDDs with the same others, ``SparkContext.union`` with two calls to the JVM instead of about fifteen."""

    def __init__(self, context: SparkContext, others: Sequence[RDD[Any]]) -> None:
        gateway = SparkContext._gateway
        assert gateway is not None
        self._context = context
        self._all = gateway.new_array(gateway.jvm.org.apache.spark.api.java.JavaRDD, 1 + len(others))
        for number, other in enumerate(others):
            self._all[1 + number] = other._jrdd

    def __call__(self, rdd: RDD[Any]) -> RDD[Any]:
        """``rdd`` has the serializer of the others."""
        self._all[0] = rdd._jrdd
        return RDD(self._context._jsc.union(self._all), self._context, rdd._jrdd_deserializer)


def executors(context: SparkContext) -> frozenset[str]:
    """Return the ids of the executors that are registered now. In local mode there is none, because the driver does their work."""
    return frozenset(context._jsc.sc().getExecutorIds().mkString(" ").split())


def forget_block(rdd: RDD[Any], partition: int) -> None:
    """Let Spark forget where a partition of a cached RDD is: it is computed and cached again where a task next needs it."""
    jvm = SparkContext._jvm
    assert jvm is not None
    # Py4J calls a method only if it can load the types of all methods of the class. Spark 4.3's SparkEnv has a method with a type of
    # protobuf, which pyspark does not ship. A field needs no other type.
    field = jvm.java.lang.Class.forName("org.apache.spark.SparkEnv").getDeclaredField("blockManager")
    field.setAccessible(True)
    blocks = field.get(rdd.context._jsc.sc().env())
    blocks.master().removeBlock(jvm.org.apache.spark.storage.RDDBlockId(rdd._jrdd.id(), partition))


def piped(context: SparkContext, command: list[str]) -> list[str]:
    """Run a command in the JVM of every executor that is there, once for each core, and return the lines that it prints.

    Spark gives each free core one task. No Python worker takes part.
    """
    assert context._gateway is not None
    tasks, words = max(1, context.defaultParallelism), context._gateway.jvm.java.util.ArrayList()
    nothing = context._gateway.jvm.java.util.ArrayList()
    for word in command:
        words.add(word)
    return [str(line) for line in context._jsc.parallelize(nothing, tasks).pipe(words).collect()]
