"""Spark's JVM, started without its banner: its log has a level from the first line on, and what Java says of itself is left out."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway

from tidegate.spark.properties import properties_file, with_properties

_LOG4J = "log4j2.properties"
DEFAULT_OPTIONS = "spark.driver.defaultJavaOptions"
_NO_NEWS = (
    b"WARNING: Using incubator modules",
    b"WARNING: A restricted method in java.lang.System has been called",
    b"WARNING: java.lang.System::load",
    b"WARNING: Use --enable-native-access=ALL-UNNAMED",
    b"WARNING: Restricted methods will be blocked in a future release",
    b"WARNING: A terminally deprecated method in sun.misc.Unsafe has been called",
    b"WARNING: sun.misc.Unsafe::",
    b"WARNING: Please consider reporting this to the maintainers",
    b"Picked up _JAVA_OPTIONS",
    b"Picked up JAVA_TOOL_OPTIONS",
    b"Picked up JDK_JAVA_OPTIONS",
)
"""Beginnings of lines a JVM writes about itself, with no switch to turn them off."""
_starting = threading.Lock()
_ahead: _Ahead | None = None
_QUIET_S, _MOST_LAST_WORDS = 0.05, 40
_ENDED_TOO_SOON = 1


def log_settings(settings: Mapping[str, str], level: str) -> dict[str, str]:
    """Spark's log at ``level`` from its first line on; nothing where the user has a configuration of it."""
    home = os.environ.get("SPARK_CONF_DIR") or os.path.join(_find_spark_home(), "conf")
    if os.path.exists(os.path.join(home, _LOG4J)):
        return {}
    file = Path(__file__).with_name(_LOG4J).as_uri()
    options = [f"-Dlog4j2.configurationFile={file}", f"-Dtidegate.spark.log-level={level}"]
    return {DEFAULT_OPTIONS: " ".join([*options, settings.get(DEFAULT_OPTIONS, "")]).strip()}


def start_jvm(conf: SparkConf) -> None:
    """Before the first context of the process; does nothing if there is a JVM already. What it and the Python workers write to
    their standard error comes out of ours, line by line."""
    with _starting:  # jobs may be started at once
        if SparkContext._gateway is None:
            SparkContext._ensure_initialized(gateway=_taken_ahead(conf) or _launch(conf))
        else:
            forget_ahead()


def start_jvm_ahead(conf: SparkConf) -> None:
    """Begin to start a JVM, beside what the program does until it executes. Only ``start_jvm`` ever uses it, and only if a JVM
    started there and then would be the same: then nobody can tell, but by the time. pyspark does not know of it, so a program
    that makes a Spark session of its own gets a JVM of its own."""
    global _ahead
    if "PYSPARK_GATEWAY_PORT" not in os.environ and SparkContext._gateway is None and _ahead is None:
        _ahead = _Ahead(conf)
        atexit.register(forget_ahead)


def forget_ahead() -> None:
    """End the JVM that was started ahead, if nobody has taken it."""
    global _ahead
    ahead, _ahead = _ahead, None
    if ahead is not None:
        ahead.forget()


class _Ahead:
    """A JVM on its way, and what it was made of."""

    def __init__(self, conf: SparkConf) -> None:
        self._made_of = _ingredients(conf)
        self._gateway: Future[Any] = Future()
        self._forgotten = threading.Event()
        threading.Thread(target=self._start, args=(conf,), name="tidegate-spark-ahead", daemon=True).start()

    def _start(self, conf: SparkConf) -> None:
        try:
            self._gateway.set_result(_launch(conf))
        except BaseException as error:  # it is shown by the start that counts, which comes to the same
            self._gateway.set_exception(error)
        if self._forgotten.is_set():
            self.forget()

    def taken(self, conf: SparkConf) -> Any | None:
        """The gateway, if it is what a start now would give."""
        if self._made_of != _ingredients(conf):
            self.forget()
            return None
        try:
            return self._gateway.result()
        except Exception:
            return None

    def forget(self) -> None:
        self._forgotten.set()
        if self._gateway.done() and self._gateway.exception() is None:
            gateway = self._gateway.result()
            with contextlib.suppress(Exception):
                gateway.proc.kill()
                gateway.close()


def _taken_ahead(conf: SparkConf) -> Any | None:
    global _ahead
    ahead, _ahead = _ahead, None
    return None if ahead is None else ahead.taken(conf)


def _ingredients(conf: SparkConf) -> tuple[object, ...]:
    """All a JVM and the Python workers it starts can know of us. The name of the application is told when it is known."""
    settings = {key: value for key, value in conf.getAll() if key != "spark.app.name"}
    return settings, dict(os.environ), os.getcwd()


class _NoticedPopen(subprocess.Popen[Any]):
    """pyspark waits for the JVM to say where it listens, or to end; but an end with code 0 it takes for none, and waits on.
    ``properties``: the file with the settings, which pyspark would make arguments."""

    def __init__(self, command: list[str], properties: str | None = None, **more: Any) -> None:
        super().__init__(command if properties is None else with_properties(command, properties), **more)

    def poll(self) -> int | None:
        ended = super().poll()
        return _ENDED_TOO_SOON if ended == 0 else ended


vars(java_gateway)["Popen"] = _NoticedPopen


def _launch(conf: SparkConf) -> Any:
    arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    with _own_stderr() as stderr, properties_file(conf.getAll(), arguments) as properties:
        return launch_gateway(None, {"stderr": stderr, "properties": properties})  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _own_stderr() -> Iterator[int]:
    """The writing end of a pipe into our standard error, for a process to inherit."""
    reading, writing = os.pipe()
    copying = threading.Thread(target=_copy, args=(reading,), name="tidegate-spark-stderr", daemon=True)
    copying.start()
    atexit.register(_hear_last_words, reading, copying)
    try:
        yield writing
    except BaseException:
        os.close(writing)
        copying.join(timeout=5)  # why it did not start comes before the error
        raise
    os.close(writing)


def _copy(source: int) -> None:
    with open(source, "rb", closefd=False) as lines:
        for line in lines:
            if not line.startswith(_NO_NEWS):
                _show(line)


def _show(line: bytes) -> None:
    try:
        assert sys.__stderr__ is not None
        sys.__stderr__.write(line.decode(errors="replace"))
        sys.__stderr__.flush()
    except Exception:  # closed, or no such thing: a JVM must not wait for a reader
        return


def _hear_last_words(source: int, copying: threading.Thread) -> None:
    """What was written before our end is shown. What comes later is the end of workers that have lost us: nobody's business."""
    waiting = select.poll()  # select() itself ends at descriptor 1023
    waiting.register(source, select.POLLIN)
    for _ in range(_MOST_LAST_WORDS):
        if not (waiting.poll(_QUIET_S * 1000) and copying.is_alive()):
            return
        copying.join(_QUIET_S)
