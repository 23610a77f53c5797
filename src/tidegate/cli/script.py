"""Runs the user's file: as a program, or a function of the file."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from types import ModuleType

import cloudpickle

from tidegate.base import imports
from tidegate.base.errors import ConfigurationError, TidegateError
from tidegate.cli.outcome import say
from tidegate.common import global_configuration
from tidegate.common.configuration import effective
from tidegate.common.options import TARGET
from tidegate.control.launch import runs_program


def run_script(
    script: str,
    arguments: list[str],
    *,
    pyflink: bool = False,
    entry: str | None = None,
    around: AbstractContextManager[None] | None = None,
) -> None:
    """Run the file, inside the context ``around``. ``entry`` is a function to call without arguments; the file is then not
    ``__main__``."""
    path = refuse_missing(script)
    if pyflink and imports.install():
        say("apache-flink is installed here too; with --pyflink it is not used", err=True)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    with around or nullcontext():
        if entry is None:
            runpy.run_path(os.path.abspath(script), run_name="__main__")
        else:
            runs_program(script)
            _call(_loaded(path), entry, script)


def refuse_missing(script: str) -> Path:
    path = Path(script)
    if not path.is_file():
        found = f"{script} is a directory" if path.is_dir() else f"no file {script}"
        raise ConfigurationError("There is no program at this path", found=found, cure="check the path")
    return path


@contextmanager
def spark_ahead() -> Iterator[None]:
    """Start Spark while the program is read and builds its graph. The program itself raises errors of the configuration.

    A JVM that the program did not use ends with the program.
    """
    configuration = None
    with suppress(TidegateError):
        configuration = effective(global_configuration.load())
    if configuration is None or configuration[TARGET.key] != TARGET.default:
        yield
        return
    from tidegate.spark.launch import forget_ahead  # pyspark: other commands do not need it
    from tidegate.spark.session import start_ahead

    start_ahead(configuration)
    try:
        yield
    finally:
        forget_ahead()


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None:
        raise ConfigurationError("-c needs a Python file", found=str(path), cure="rename the file to *.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)  # like functions of __main__: workers do not need the file
    return module


def _call(module: ModuleType, entry: str, script: str) -> None:
    function = getattr(module, entry, None)
    if not callable(function):
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        raise ConfigurationError(
            "-c names no function of the program",
            where=script,
            found=f"no function {entry!r}; there are: {', '.join(sorted(own)) or 'none'}",
            cure="check the name",
        )
    function()
