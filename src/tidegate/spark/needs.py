"""What the Python of executors must have: looked at before a job starts, on every host of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from pyspark import SparkContext

from tidegate.base.errors import DependencyError

PACKAGES = {
    "cloudpickle": "cloudpickle",
    "lmdb": "lmdb",
    "msgspec": "msgspec",
    "numpy": "numpy",
    "yaml": "pyyaml",
    "xxhash": "xxhash",
}
"""Module -> package, of those that every task imports. Storage, connectors and formats may need more, and say so themselves."""

Found = tuple[str, str, list[str]]
_checked: set[str] = set()


def check_executors(context: SparkContext) -> None:
    """Once for each context. ``DependencyError`` names host, Python and packages; without it a task would fail on unpickling."""
    if context.applicationId in _checked:
        return
    tasks = max(1, context.defaultParallelism)
    for host, python, missing in context.parallelize(range(tasks), tasks).mapPartitions(looking(PACKAGES)).collect():
        if missing:
            raise DependencyError(
                "Executors need the packages that Tidegate depends on",
                where=f"host {host}, Python {python}",
                found=f"no {', '.join(missing)}",
                cure=f"install them for that Python (pip install {' '.join(missing)}), or give the executors a packed "
                "environment (docs/clusters.md)",
            )
    _checked.add(context.applicationId)


def looking(packages: Mapping[str, str]) -> Callable[[Iterable[object]], Iterator[Found]]:
    """A function in a function travels by value: nothing of Tidegate is imported where it runs."""
    wanted = dict(packages)

    def look(rows: Iterable[object]) -> Iterator[Found]:
        import importlib.util
        import os
        import sys

        for _ in rows:
            pass
        missing = sorted(package for module, package in wanted.items() if importlib.util.find_spec(module) is None)
        yield os.uname().nodename, sys.executable, missing

    return look
