"""Names of PyFlink's API that a module of ours does not have itself. It answers with what another module has under the name: one
that PyFlink's module imports from there, or one of a former PyFlink. For what is not here at all it says so, and where to read on.

``pyflink_names.json`` lists all of PyFlink's modules, classes and methods, and what its modules import from each other. It is
looked at only when a name has not been found, so it need not be changed when one comes to be: what exists is never reported.
"""

from __future__ import annotations

import dis
import json
import pkgutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from functools import cache
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, NoReturn

from tidegate.former_names import FORMER, MOVED

_ROOT = "tidegate."
_PAGE = "docs/features.md lists what is there, and why the rest is not"
_IMPORT_FROM = dis.opmap["IMPORT_FROM"]


def install() -> None:
    """From now on modules of this package with PyFlink's names answer for what they lack. Called once, by the package itself."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


@cache
def _listed() -> dict[str, Any]:
    content = pkgutil.get_data("tidegate", "pyflink_names.json")  # on a cluster the package is a zip file
    assert content is not None
    listed: dict[str, Any] = json.loads(content)
    return listed


def _names() -> dict[str, dict[str, list[str]]]:
    """Module -> class -> methods, under our names."""
    names: dict[str, dict[str, list[str]]] = _listed()["names"]
    return names


def _homes() -> dict[str, dict[str, str]]:
    """Module -> name -> the module that it is imported from, under our names."""
    homes: dict[str, dict[str, str]] = _listed()["homes"]
    return homes


def _told(name: str) -> str:
    for reason, never in _listed()["never"].items():
        if name.rpartition(".")[2] in never:
            return f"{name} is part of PyFlink's API but has no meaning here: {reason}. {_PAGE}"
    return f"{name} is part of PyFlink's API but not there yet in Tidegate. {_PAGE}"


class _Finder(MetaPathFinder):
    """Comes before the finder that finds our modules, and adds to those with a PyFlink name what they say of missing ones."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in MOVED:
            return ModuleSpec(fullname, _Moved(MOVED[fullname]))
        if not fullname.startswith(_ROOT) or fullname not in _names():
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None:
            raise ModuleNotFoundError(_told(fullname), name=fullname)
        if spec.loader is not None:
            spec.loader = _Marking(spec.loader)
        return spec


class _Moved(Loader):
    """Give the module itself under its former name, so that a class has one identity under both names."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._own: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._name)
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own  # Python has replaced it by the spec of the former name


class _Marking(Loader):
    """A loader and, behind it, the marks. Not a change of the loader itself: that of a zip file loads all modules in it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _mark(module)


def _mark(module: ModuleType) -> None:
    classes = _names()[module.__name__]
    for name, methods in classes.items():
        found = getattr(module, name, None)
        if isinstance(found, type) and found.__module__.startswith(_ROOT) and not issubclass(found, Enum):
            nested = [each.removeprefix(f"{name}.") for each in classes if each.startswith(f"{name}.")]
            for method in (*methods, *nested):
                if not (method.startswith("_") or hasattr(found, method)):
                    setattr(found, method, _Missing(f"{name}.{method}"))
    module.__getattr__ = _answering(module, {*classes, *classes.get("<functions>", ())})  # type: ignore[method-assign]


class _Missing:
    """Stands on a class for a method it lacks. A subclass that has the method hides it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> NoReturn:
        raise AttributeError(
            _told(self._name), name=self._name.rpartition(".")[2], obj=instance if instance is not None else owner
        )


def _answering(module: ModuleType, known: set[str]) -> Callable[[str], Any]:
    """The module's ``__getattr__``: behind its own, if it has one."""
    own = vars(module).get("__getattr__")
    homes = _homes().get(module.__name__, {})

    def __getattr__(name: str) -> Any:
        if own is not None:
            with suppress(AttributeError):
                return own(name)
        found = _former(module.__name__, name) or (name in homes and _held(homes[name], name))
        if found:
            return found
        if name not in known:
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}", name=name, obj=module)
        if _is_import(sys._getframe(1)):  # which would turn an AttributeError into its own words
            raise ImportError(_told(f"{module.__name__}.{name}"), name=module.__name__)
        raise AttributeError(_told(f"{module.__name__}.{name}"), name=name, obj=module)

    return __getattr__


def _held(home: str, name: str) -> Any:
    """The module itself if the name is its own, else what the module has under the name; None if one of them is not here."""
    try:
        module = import_module(home)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("tidegate", "pyflink"):
            return None
        raise
    return module if home.endswith(f".{name}") else getattr(module, name, None)


def _former(module: str, name: str) -> Any:
    """A name that PyFlink's module had in a former version, with a notice; None if it had none."""
    home, ours, instead = FORMER.get(f"{module.removeprefix(_ROOT)}.{name}", (None, "", ""))
    if home is None:
        return None
    from tidegate.common.configuration import former  # not earlier: this module comes before all others

    former(f"{module}.{name}", instead)
    return getattr(import_module(_ROOT + home), ours)


def _is_import(frame: Any) -> bool:
    """Whether the frame is at ``from ... import ...``."""
    return bool(frame.f_code.co_code[frame.f_lasti] == _IMPORT_FROM)
