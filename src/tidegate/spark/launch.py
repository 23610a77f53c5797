"""Starts Spark's JVM: without its banner, with a log level from the first line on, and with settings in a file.

Every user of the host can read the arguments of a process, so settings are in a file that only this user can read.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import select
import shlex
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from pyspark import SparkConf

from tidegate.spark.pyspark_internals import (
    PROPERTIES_OPTION,
    has_jvm,
    launch_gateway,
    spark_conf_dir,
    use_gateway,
)

_LOG4J = "log4j2.properties"
DEFAULT_OPTIONS = "spark.driver.defaultJavaOptions"
_JAVA_NOTES = (
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
"""First words of the lines that a JVM writes about itself. No option of the JVM turns them off."""
_starting = threading.Lock()
_ahead: _Ahead | None = None
_QUIET_S, _MOST_LAST_LINES = 0.05, 40
_ESCAPED = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}


def log_settings(settings: Mapping[str, str], level: str) -> dict[str, str]:
    """Return settings for Spark's log at ``level`` from its first line on; none if the user has configured the log."""
    if os.path.exists(os.path.join(spark_conf_dir(), _LOG4J)):
        return {}
    file = Path(__file__).with_name(_LOG4J).as_uri()
    options = [f"-Dlog4j2.configurationFile={file}", f"-Dtidegate.spark.log-level={level}"]
    return {DEFAULT_OPTIONS: " ".join([*options, settings.get(DEFAULT_OPTIONS, "")]).strip()}


def start_jvm(conf: SparkConf) -> None:
    """Start a JVM before the first context of the process. Do nothing if the process has a JVM already.

    What the JVM and the Python workers write to standard error appears on ours, line by line.
    """
    with _starting:  # several jobs may start at once
        if not has_jvm():
            use_gateway(_taken_ahead(conf) or _launch(conf))
        else:
            forget_ahead()


def start_jvm_ahead(conf: SparkConf) -> None:
    """Begin to start a JVM while the program still builds its graph.

    Only ``start_jvm`` uses this JVM, and only if a JVM started at that moment would be the same. So a program notices nothing but
    the shorter start. pyspark does not know of the JVM: a program that makes its own Spark session gets its own JVM.
    """
    global _ahead
    if "PYSPARK_GATEWAY_PORT" not in os.environ and not has_jvm() and _ahead is None:
        _ahead = _Ahead(conf)
        atexit.register(forget_ahead)


def forget_ahead() -> None:
    """End the JVM that was started ahead, if nobody has taken it."""
    global _ahead
    ahead, _ahead = _ahead, None
    if ahead is not None:
        ahead.forget()


class _Ahead:
    """A JVM that is starting, and what it was made of."""

    def __init__(self, conf: SparkConf) -> None:
        self._made_of = _ingredients(conf)
        self._gateway: Future[Any] = Future()
        self._forgotten = threading.Event()
        threading.Thread(target=self._start, args=(conf,), name="tidegate-spark-ahead", daemon=True).start()

    def _start(self, conf: SparkConf) -> None:
        try:
            self._gateway.set_result(_launch(conf))
        except BaseException as error:  # start_jvm starts another JVM, which fails with the same error
            self._gateway.set_exception(error)
        if self._forgotten.is_set():
            self.forget()

    def taken(self, conf: SparkConf) -> Any | None:
        """Return the gateway, if a JVM started now would be the same."""
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
    """Return all that a JVM and its Python workers can know of this process. The name of the application is set later."""
    settings = {key: value for key, value in conf.getAll() if key != "spark.app.name"}
    return settings, dict(os.environ), os.getcwd()


def _launch(conf: SparkConf) -> Any:
    arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    with _own_stderr() as stderr, properties_file(conf.getAll(), arguments) as properties:
        return launch_gateway(stderr, properties)


# -- settings in a file ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def properties_file(settings: Iterable[tuple[str, str]], arguments: list[str]) -> Iterator[str]:
    """Write settings into a file that exists while the JVM starts.

    spark-submit reads the file instead of its defaults, so the file begins with the defaults: Spark's own, or those in the file
    that ``arguments`` (the user's arguments for spark-submit) name.
    """
    handle, path = tempfile.mkstemp(prefix="tidegate-", suffix=".conf")  # 0600
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(_defaults(arguments) + "\n\n")
            file.writelines(f"{_escaped(key, ' :=#!')}={_escaped(value)}\n" for key, value in settings)
        yield path
    finally:
        os.unlink(path)


def _defaults(arguments: list[str]) -> str:
    named = [value for name, value in itertools.pairwise(arguments) if name == PROPERTIES_OPTION]
    named += [argument.partition("=")[2] for argument in arguments if argument.startswith(f"{PROPERTIES_OPTION}=")]
    if named:
        return Path(named[-1]).read_text(encoding="utf-8")
    file = Path(spark_conf_dir(), "spark-defaults.conf")
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def _escaped(text: str, also: str = "") -> str:
    """Escape in ASCII, as ``java.util.Properties`` reads it."""
    return "".join(_escaped_character(character, first, also) for first, character in enumerate(text))


def _escaped_character(character: str, position: int, also: str) -> str:
    if character in _ESCAPED:
        return _ESCAPED[character]
    if character in also or (character == " " and position == 0):
        return f"\\{character}"
    if " " <= character <= "~":
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[n]:02x}{units[n + 1]:02x}" for n in range(0, len(units), 2))


# -- standard error --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _own_stderr() -> Iterator[int]:
    """Give the writing end of a pipe into our standard error, for a process to inherit."""
    reading, writing = os.pipe()
    copying = threading.Thread(target=_copy, args=(reading,), name="tidegate-spark-stderr", daemon=True)
    copying.start()
    atexit.register(_show_last_lines, reading, copying)
    try:
        yield writing
    except BaseException:
        os.close(writing)
        copying.join(timeout=5)  # why the JVM did not start is shown before the error
        raise
    os.close(writing)


def _copy(source: int) -> None:
    with open(source, "rb", closefd=False) as lines:
        for line in lines:
            if not line.startswith(_JAVA_NOTES):
                _show(line)


def _show(line: bytes) -> None:
    try:
        assert sys.__stderr__ is not None
        sys.__stderr__.write(line.decode(errors="replace"))
        sys.__stderr__.flush()
    except Exception:  # closed or missing: a JVM must not wait for a reader
        return


def _show_last_lines(source: int, copying: threading.Thread) -> None:
    """Show what was written before this process ends. Later lines are of workers that have lost their driver, and are not shown."""
    waiting = select.poll()  # select() itself ends at descriptor 1023
    waiting.register(source, select.POLLIN)
    for _ in range(_MOST_LAST_LINES):
        if not (waiting.poll(_QUIET_S * 1000) and copying.is_alive()):
            return
        copying.join(_QUIET_S)
