"""The Spark context a job runs in: the program's own if there is one, else a new one with settings that suit rounds."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from pyspark import SparkConf, SparkContext

from tidegate.base.errors import ConfigurationError, EngineUnavailableError
from tidegate.base.private_dirs import has_account, own_place, user_name
from tidegate.common.dependencies import Dependencies
from tidegate.common.options import CHECKPOINT_DIR, CHECKPOINT_STORAGE, PYTHON_EXECUTABLE, SPARK_LOG_LEVEL
from tidegate.spark.bundle import make_bundle, staging, unpacked
from tidegate.spark.launch import DEFAULT_OPTIONS, forget_ahead, log_settings, start_jvm, start_jvm_ahead
from tidegate.spark.pyspark_internals import active_context, forget_lost, is_lost, log_in_as, submitted_settings

log = logging.getLogger(__name__)

_SETTINGS = {
    "spark.python.worker.reuse": "true",
    "spark.speculation": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.shuffle.compress": "false",
    "spark.driver.maxResultSize": "0",
    # A job runs for ever, and each round is a Spark job: what Spark remembers of past jobs must not grow.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "40",
    "spark.ui.retainedTasks": "400",
    "spark.sql.ui.retainedExecutions": "5",
}
_LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The JVM shares its cores with the Python workers, which do the work. The optimizing compiler alone took a third of a core
    # in the first minutes, only to compile copying of bytes and scheduling. Spark visits the stages of a job recursively: these
    # stacks are large enough for hundreds of levels (300 failed with Java's default of 1 MB).
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss16m",
}
FAILURES_COUNT_FOR = {"spark.executor.failuresValidityInterval": "1h"}
"""On YARN and Kubernetes an application ends after some failed executors. A job runs for ever, so old failures must not count."""
_CLUSTER_SETTINGS = {
    # A task that does not get its home (homes.py) soon runs elsewhere. Spark's default of 3 s is longer than a round, and every
    # level of a round would wait for it.
    "spark.locality.wait": "300ms",
    # A task without a home must run where there is space. Spark would prefer a host with many of its rows. If there are several,
    # the union with the anchor names the same one for all tasks, so all of them would settle there.
    "spark.shuffle.reduceLocality.enabled": "false",
    # Spark's default is infinite: no home would ever be given back to the cluster, however long the job is idle.
    "spark.dynamicAllocation.cachedExecutorIdleTimeout": "60s",
    **FAILURES_COUNT_FOR,
}
_WORKER_PATH = "spark.executorEnv.PYTHONPATH"
_PYTHON = "spark.pyspark.python"

_UNIX_SOCKETS, _SOCKET_DIR = "spark.python.unix.domain.socket.enabled", "spark.python.unix.domain.socket.dir"
"""Unix sockets between the JVM and its Python workers halve the cost of a Python stage."""
_LONGEST_SOCKET = 107
_SOCKET_NAME = len("/.") + 36 + len(".sock")
"""Spark names a socket by a UUID."""
_JAVA_TMPDIR = re.compile(r"-Djava\.io\.tmpdir=(\"[^\"]*\"|\S+)")
_JAVA_OPTIONS = [f"spark.{who}.{which}JavaOptions" for who in ("driver", "executor") for which in ("default", "extra")]
_JAVA_VARIABLES = ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"]

_OPENING = threading.Lock()
"""Jobs that start at the same time, or lose their JVM together, share one new context."""
_CREATED: weakref.WeakSet[SparkContext] = weakref.WeakSet()
"""Contexts that Tidegate may replace. A context of the program has sessions and settings that only the program can bring back."""


def spark_context(configuration: Mapping[str, Any]) -> SparkContext:
    """Return the active context after checks, or a new one. ``spark.*`` keys of the configuration win over our settings.

    It is a context without a session: a session makes the start half as long again, and rounds are RDD jobs. ``spark.master``
    defaults to ``local[*,4]``, because plain ``local[N]`` never retries a task.
    """
    check_settings(configuration)
    with _OPENING:
        active = active_context()
        if active is not None and is_lost(active) and active not in _CREATED:
            raise EngineUnavailableError(
                "The Spark context was lost while the job ran",
                found="the program had made the context itself, so Tidegate cannot replace it",
                cure="start the program again: with a fixed tidegate.job-id the job continues from its last checkpoint",
            )
        forget_lost()
        active = active_context()
        if active is None:
            return _create(configuration)
    forget_ahead()
    _check_speculation(active.getConf().get("spark.speculation", "false"))
    _warn_of_ignored(active, configuration)
    return active


def check_settings(configuration: Mapping[str, Any]) -> None:
    """Refuse invalid settings before Spark starts: a context keeps the settings it was started with, for every later job too."""
    _check_speculation(configuration.get("spark.speculation", "false"))
    _check_memory_storage(configuration)
    _check_unix_sockets(configuration)


def _check_memory_storage(configuration: Mapping[str, Any]) -> None:
    """Refuse storage in the driver's memory on a cluster: tasks write state files, and reach that memory only on its host."""
    master = _master(configuration)
    in_memory = configuration.get(CHECKPOINT_STORAGE.key) == "jobmanager"
    if in_memory and not configuration.get(CHECKPOINT_DIR.key) and not master.startswith("local"):
        raise ConfigurationError(
            "Checkpoints in the driver's memory need tasks on the driver's host",
            where="execution.checkpointing.storage: jobmanager",
            found=f"spark.master {master}",
            cure="set execution.checkpointing.dir to a directory that all hosts reach",
        )


def is_local(configuration: Mapping[str, Any]) -> bool:
    """Return whether tasks will run in processes of this host."""
    return master_of(configuration).partition("[")[0] == "local"


def master_of(configuration: Mapping[str, Any]) -> str:
    """Return the master of the active context, or of the context that will be opened."""
    active = active_context()
    return (active.master if active is not None else None) or _master(configuration)


def start_ahead(configuration: Mapping[str, Any]) -> None:
    """Begin to start Spark with the configuration that is known before the program runs.

    If the program then changes settings or its environment, Spark is started a second time when the program executes.
    """
    try:
        check_settings(configuration)
        start_jvm_ahead(_conf(configuration))
    except Exception as error:  # spark_context raises it again
        log.debug("Spark is not started ahead: %s", error)


def _create(configuration: Mapping[str, Any]) -> SparkContext:
    conf = _conf(configuration)
    start_jvm(conf)
    _log_in()
    context = SparkContext.getOrCreate(conf)
    context.pythonExec = conf.get(_PYTHON) or context.pythonExec  # pyspark itself looks at PYSPARK_PYTHON alone
    _CREATED.add(context)
    context.setLogLevel(_log_level(configuration))
    return context


def _conf(configuration: Mapping[str, Any]) -> SparkConf:
    given = submitted_settings()
    own = {**given, **{key: str(value) for key, value in configuration.items() if key.startswith("spark.")}}
    master = _master(configuration, "local[*,4]")
    settings = {
        **_SETTINGS,
        **(_LOCAL_SETTINGS if master.startswith("local") else _CLUSTER_SETTINGS),
        **own,
        "spark.master": master,
    }
    if not given:  # else the JVM runs already
        settings |= log_settings({**own, **_account_settings(own)}, _log_level(configuration)) or _account_settings(own)
    if _UNIX_SOCKETS not in own:
        settings[_UNIX_SOCKETS] = "true" if _why_no_unix_sockets(settings, master) is None else "false"
    if master.startswith("local"):
        settings[_WORKER_PATH] = _import_path(own.get(_WORKER_PATH))
    executable = configuration.get(PYTHON_EXECUTABLE.key)
    if executable:
        settings |= _executable(executable, Dependencies.of(configuration), master.startswith("local"))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return SparkConf().setAppName(str(configuration.get("pipeline.name") or "tidegate")).setAll(list(settings.items()))


def _account_settings(own: Mapping[str, str]) -> dict[str, str]:
    """Name the user to Java. Java reads both from the system's accounts, and gives '?' for a user without an account."""
    if has_account():
        return {}
    options = f"-Duser.name={user_name()} -Duser.home={own_place()}"
    return {DEFAULT_OPTIONS: f"{options} {own.get(DEFAULT_OPTIONS, '')}".strip()}


def _log_in() -> None:
    """Log in to Hadoop. Its own login reads the system's accounts and fails for a user without one, before it opens any file."""
    if not has_account():
        log_in_as(os.environ.get("HADOOP_USER_NAME") or user_name())


def _import_path(first: str | None) -> str:
    """Let workers import what the driver can import, above all the modules beside the program."""
    paths = [*(first.split(os.pathsep) if first else []), *(path or os.getcwd() for path in sys.path)]
    return os.pathsep.join(dict.fromkeys(paths))


def _log_level(configuration: Mapping[str, Any]) -> str:
    return str(configuration.get(SPARK_LOG_LEVEL.key, SPARK_LOG_LEVEL.default))


def _executable(executable: str, dependencies: Dependencies, local: bool) -> dict[str, str]:
    """Return Spark's settings for the Python of the workers. Spark unpacks a Python in an archive where an executor starts."""
    for archive, target in dependencies.archives:
        if executable.startswith(f"{target}/"):
            if local:
                work = unpacked(str(make_bundle(dependencies, {}, staging()))).work
                return {_PYTHON: f"{work}/{executable}"}
            return {_PYTHON: f"./{executable}", "spark.archives": f"{archive}#{target}"}
    return {_PYTHON: executable}


def _master(configuration: Mapping[str, Any], default: str = "local") -> str:
    """Return the master of the configuration, else of spark-submit. A driver that runs on a cluster cannot leave the cluster."""
    given = submitted_settings()
    named = configuration.get("spark.master")
    if given.get("spark.submit.deployMode") == "cluster":
        named = None
    return str(named or given.get("spark.master") or os.environ.get("TIDEGATE_MASTER") or default)


def _check_unix_sockets(configuration: Mapping[str, Any]) -> None:
    if str(configuration.get(_UNIX_SOCKETS)).strip().lower() != "true":
        return
    reason = _why_no_unix_sockets(configuration, _master(configuration))
    if reason is not None:
        raise ConfigurationError(
            f"Unix sockets are not possible here: the path of a socket has {_LONGEST_SOCKET} characters at most",
            where=f"{_UNIX_SOCKETS}=true",
            found=reason,
            cure=f"remove {_UNIX_SOCKETS}, or set {_SOCKET_DIR} to a directory with a short path on all hosts",
        )


def _why_no_unix_sockets(settings: Mapping[str, Any], master: str) -> str | None:
    """Return None if their paths are short enough. Spark puts sockets into the JVM's directory for temporary files on each host."""
    directory = settings.get(_SOCKET_DIR)
    if directory is None and not master.startswith(("local", "spark://")):
        return f"{_SOCKET_DIR} is not set, and with the master {master} the path of the executors' directory is long or not known"
    texts = [str(settings.get(key, "")) for key in _JAVA_OPTIONS] + [os.environ.get(key, "") for key in _JAVA_VARIABLES]
    temporary = [found.strip('"') for text in texts for found in _JAVA_TMPDIR.findall(text)] or ["/tmp"]
    for path in [str(directory)] if directory is not None else temporary:
        length = len(os.fsencode(path.rstrip("/"))) + _SOCKET_NAME
        if length > _LONGEST_SOCKET:
            return f"{path}, in which a socket's path has {length} characters"
    return None


def _check_speculation(value: Any) -> None:
    if str(value).strip().lower() == "true":
        raise ConfigurationError(
            "Speculative execution is on: two attempts of the same task would write at the same time",
            found="spark.speculation=true",
            cure="set spark.speculation=false",
        )


def _warn_of_ignored(context: SparkContext, configuration: Mapping[str, Any]) -> None:
    conf = context.getConf()
    wanted = {key: str(value) for key, value in configuration.items() if key.startswith("spark.")}
    # Only the keys: a value may be a secret
    ignored = [key for key, value in sorted(wanted.items()) if conf.get(key) != value]
    if ignored:
        log.warning(
            "Spark already runs in this process with other settings: %s cannot take effect. "
            "Set it before the first job, or stop the Spark context first",
            ", ".join(ignored),
        )
