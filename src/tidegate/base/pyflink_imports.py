"""Imports of ``pyflink`` that give Tidegate's modules: PyFlink programs, and what they import, run unchanged.

``pyflink.datastream`` then *is* the module object ``tidegate.datastream``, so a class has one identity by both names, and its
instances pickle by Tidegate's name whoever reads them.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from tidegate.base.errors import NotInTidegateError, ProgramError

THEIRS, OURS = "pyflink", "tidegate"
SHARED = ("common", "datastream", "metrics", "table", "util")
"""Packages right below ``pyflink`` that Tidegate has; another one of the same name here has nothing to do with it."""
_SOURCE = "a SourceFunction wraps Java code, which is not run; write a Source (docs/sources-and-sinks.md)"
FORMER_MODULES = {"datastream.time_characteristic": "datastream.former"}
"""Modules of former PyFlink versions -> where their names are."""
_OWN = (
    "there is no connector for {}; read it with a Python DataSource (from_data_source, docs/spark.md), write to it with a sink of "
    "your own (docs/own-sinks.md)"
)
ELSEWHERE = {
    "table": (
        "write the step with the DataStream API (map, key_by, window, process; KafkaSource, FileSource, FileSink), or use tables "
        "and SQL of Spark: env.from_dataframe(...) and stream.for_each_checkpoint(...), see docs/spark.md. Of pyflink.table only "
        "the types of columns are here: DataTypes, RowType"
    ),
    "ml": "Flink ML is not part of Tidegate; Spark has MLlib",
    "dataset": "the DataSet API was removed from Flink; use the DataStream API with RuntimeExecutionMode.BATCH",
    "connector": "PyFlink has no such package; connectors are in pyflink.datastream.connectors",
    "testing": "these are the tools of PyFlink's own tests; Tidegate's are in tidegate.testing",
    "java_gateway": "there is no Java gateway: nothing of a program runs in a JVM",
    "util": "these are PyFlink's own tools for Java objects, and there are none",
    "fn_execution": "this is the inside of PyFlink's workers; Spark's workers run the functions here",
    "datastream.SourceFunction": _SOURCE,
    "datastream.functions.SourceFunction": _SOURCE,
    "datastream.connectors.dynamic_kafka": "use one KafkaSource for each cluster, and union the streams",
    **{
        f"datastream.connectors.{module}": _OWN.format(system)
        for module, system in (
            ("cassandra", "Cassandra"),
            ("elasticsearch", "Elasticsearch"),
            ("kinesis", "Kinesis"),
            ("pulsar", "Pulsar"),
            ("rabbitmq", "RabbitMQ"),
        )
    },
}
"""What to use instead of modules and names that are not here; a longer name counts more."""


def install() -> bool:
    """From now on ``import pyflink`` means Tidegate, in this process and in the workers of its jobs. Calling it again does nothing.

    Gives whether apache-flink is installed here too: it is then not used.
    """
    if is_installed():
        return False
    loaded = sys.modules.get(THEIRS)
    if loaded is not None:
        raise ProgramError(
            "Imports of pyflink can be mapped to Tidegate only before the first one",
            found=f"pyflink is loaded from {getattr(loaded, '__file__', None)}",
            cure="install it at the top of the program, or start it by: tidegate run --pyflink job.py",
        )
    also_there = PathFinder.find_spec(THEIRS) is not None
    sys.meta_path.insert(0, _Finder())
    return also_there


def is_installed() -> bool:
    """Whether ``import pyflink`` means Tidegate in this process."""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


def uninstall() -> None:
    """``import pyflink`` means again what it meant before. For tests."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    for name in [name for name in sys.modules if name == THEIRS or name.startswith(f"{THEIRS}.")]:
        module = sys.modules.pop(name)
        if not vars(module).get("__path__", True):
            del module.__path__


class _Finder(MetaPathFinder):
    """Asked before Python looks for files, so it also wins over an installed apache-flink."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, rest = fullname.partition(".")
        if package == THEIRS:
            return ModuleSpec(fullname, _Alias(_ours(rest)))
        if package == OURS and _by_their_name(fullname) in sys.modules and PathFinder.find_spec(fullname, path) is None:
            # `from pyflink.datastream import X`: Python asks for a module X, the name of a class we do not have.
            raise _not_here(rest)
        return None


def _by_their_name(fullname: str) -> str:
    """Of the module that was asked for something by an import."""
    return THEIRS + fullname.rpartition(".")[0].removeprefix(OURS)


def _ours(rest: str) -> str:
    rest = FORMER_MODULES.get(rest, rest)
    name = f"{OURS}.{rest}" if rest else OURS
    if rest and (rest.partition(".")[0] not in SHARED or not _is_there(name)):
        raise _not_here(rest)
    return name


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of a name that PyFlink has: see pyflink_names.py
        return False


def _not_here(rest: str) -> NotInTidegateError:
    parent, _, last = rest.rpartition(".")
    cure = _elsewhere(rest) or _nearest(parent, last)
    tables = rest.partition(".")[0] == "table"
    return NotInTidegateError(
        "PyFlink's Table API is not part of Tidegate"
        if tables
        else "The program imports a name that Tidegate does not have",
        found=f"{THEIRS}.{rest}",
        cure=cure or "docs/features.md lists what is there, and why the rest is not",
        name=f"{THEIRS}.{rest}",
    )


def _elsewhere(rest: str) -> str | None:
    while rest and rest not in ELSEWHERE:
        rest = rest.rpartition(".")[0]
    return ELSEWHERE.get(rest)


def _nearest(parent: str, name: str) -> str | None:
    near = difflib.get_close_matches(name, dir(sys.modules.get(f"{OURS}.{parent}")), 1, 0.8)
    return f"there is {THEIRS}.{parent}.{near[0]}; docs/features.md lists what is missing, and why" if near else None


class _Alias(Loader):
    """Gives a module of ours, as it is, for another name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._own: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._name)
        if not hasattr(module, "__path__"):
            module.__path__ = []  # Python then asks the finder for a name that `from module import name` does not find
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own  # Python has put that of the alias in its place
