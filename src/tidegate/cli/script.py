"""Running the user's file: as a program, or a function of it."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType

import cloudpickle

from tidegate.base import pyflink_imports
from tidegate.base.errors import ConfigurationError
from tidegate.cli.outcome import say
from tidegate.control.launch import runs_program


def run_script(
    script: str,
    arguments: list[str],
    *,
    pyflink: bool = False,
    entry: str | None = None,
    beside: AbstractContextManager[None] | None = None,
) -> None:
    """``entry``: the function to call, without arguments; then the file is no ``__main__``. ``beside``: is around the program."""
    path = Path(script)
    if not path.is_file():
        found = f"{script} is a directory" if path.is_dir() else f"no file {script}"
        raise ConfigurationError("A program is a Python file", found=found, cure="check the path")
    if pyflink and pyflink_imports.install():
        say("apache-flink is installed here too; with --pyflink it is not used", err=True)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    with beside or nullcontext():
        if entry is None:
            runpy.run_path(os.path.abspath(script), run_name="__main__")
        else:
            runs_program(script)
            _call(_loaded(path), entry, script)


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None:
        raise ConfigurationError(
            "-c takes a function of a Python file", found=f"{path}, which is none", cure="name it *.py"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)  # as functions of __main__ are: workers need not have the file
    return module


def _call(module: ModuleType, entry: str, script: str) -> None:
    function = getattr(module, entry, None)
    if not callable(function):
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        raise ConfigurationError(
            "-c names a function of the program",
            where=script,
            found=f"no function {entry!r}; it has {', '.join(sorted(own)) or 'none'}",
            cure="check the name",
        )
    function()
