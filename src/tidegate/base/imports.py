"""The one import hook of Tidegate, for the names of modules, and the import of optional libraries.

- ``pyflink.x`` is the module object ``tidegate.x`` after ``install()``. A class has one identity under both names, and
  its instances pickle by Tidegate's name.
- A former module name of Tidegate is the module that has replaced it (``MOVED``).
- A module with a PyFlink path answers with what another module has under a name: PyFlink's module imports the name from
  there, or a former PyFlink had it. For a name that Tidegate lacks, the error says so and names the page to read.

``pyflink_names.json`` lists all modules, classes and methods of PyFlink, and what its modules import from each other.
It is consulted only when a name was not found. So it need not change when Tidegate gets a name: an existing name is
never reported as missing.

The libraries of an extra are imported when a format or a connector is first used.
"""

from __future__ import annotations

import difflib
import dis
import importlib.util
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

from tidegate.base.errors import ConfigurationError, NotInTidegateError, ProgramError
from tidegate.base.former_names import ELSEWHERE, FORMER, FORMER_MODULES, MOVED, former

_THEIRS, _OURS = "pyflink", "tidegate"
_SHARED = ("common", "datastream", "metrics", "table", "util")
"""Packages directly below ``pyflink`` that Tidegate has. Other packages of Tidegate are not visible under ``pyflink``."""
_PAGE = "docs/features.md lists what is there, and why the rest is not"
_IMPORT_FROM = dis.opmap["IMPORT_FROM"]


class _Finder(MetaPathFinder):
    """Stands before all other finders: ``pyflink`` means Tidegate even where apache-flink is installed."""

    def __init__(self) -> None:
        self.maps_pyflink = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, rest = fullname.partition(".")
        if package == _THEIRS and self.maps_pyflink:
            return ModuleSpec(fullname, _SameModule(_ours(rest), answers_imports=True))
        if package != _OURS or not rest:
            return None
        if fullname in MOVED:
            return ModuleSpec(fullname, _SameModule(MOVED[fullname]))
        listed = fullname in _names()
        if not listed and not self._was_asked_as_pyflink(fullname):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None and self._was_asked_as_pyflink(fullname):
            # `from pyflink.datastream import X`: Python asks for a module X, the name of a class that Tidegate lacks.
            raise _not_here(rest)
        if not listed:
            return None
        if spec is None:
            raise ModuleNotFoundError(_missing_text(fullname), name=fullname)
        if spec.loader is not None:
            spec.loader = _MarkingLoader(spec.loader)
        return spec

    def _was_asked_as_pyflink(self, fullname: str) -> bool:
        parent = _THEIRS + fullname.rpartition(".")[0].removeprefix(_OURS)
        return self.maps_pyflink and parent in sys.modules


_finder = _Finder()


def answer_for_names() -> None:
    """Put the hook in place. Called once, by the package itself."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


# -- pyflink means Tidegate ----------------------------------------------------------------------------------------------


def install() -> bool:
    """Let ``import pyflink`` mean Tidegate, in this process and in the workers of its jobs. A second call does nothing.

    Return whether apache-flink is installed here too: it is then not used.
    """
    if _finder.maps_pyflink:
        return False
    loaded = sys.modules.get(_THEIRS)
    if loaded is not None:
        raise ProgramError(
            "Imports of pyflink can be mapped to Tidegate only before the first one",
            found=f"pyflink is loaded from {getattr(loaded, '__file__', None)}",
            cure="install it at the top of the program, or start it by: tidegate run --pyflink job.py",
        )
    is_also_there = PathFinder.find_spec(_THEIRS) is not None
    if _finder in sys.meta_path:  # another finder may stand before it by now
        sys.meta_path.remove(_finder)
    sys.meta_path.insert(0, _finder)
    _finder.maps_pyflink = True
    return is_also_there


def is_installed() -> bool:
    """Return whether ``import pyflink`` means Tidegate in this process."""
    return _finder.maps_pyflink


def uninstall() -> None:
    """Undo ``install``. For tests."""
    _finder.maps_pyflink = False
    for name in [name for name in sys.modules if name == _THEIRS or name.startswith(f"{_THEIRS}.")]:
        module = sys.modules.pop(name)
        if not vars(module).get("__path__", True):
            del module.__path__


class _SameModule(Loader):
    """Gives a module of Tidegate, as it is, under another name.

    With ``answers_imports``, Python asks the finder for a name that ``from module import name`` does not find.
    """

    def __init__(self, name: str, *, answers_imports: bool = False) -> None:
        self._name, self._answers_imports = name, answers_imports
        self._own: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._name)
        if self._answers_imports and not hasattr(module, "__path__"):
            module.__path__ = []
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own  # Python has replaced it by the spec of the other name


def _ours(rest: str) -> str:
    rest = FORMER_MODULES.get(rest, rest)
    name = f"{_OURS}.{rest}" if rest else _OURS
    if rest and (rest.partition(".")[0] not in _SHARED or not _is_there(name)):
        raise _not_here(rest)
    return name


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a name of PyFlink that Tidegate lacks
        return False


def _not_here(rest: str) -> NotInTidegateError:
    parent, _, last = rest.rpartition(".")
    is_table = rest.partition(".")[0] == "table"
    return NotInTidegateError(
        "PyFlink's Table API is not part of Tidegate"
        if is_table
        else "The program imports a name that Tidegate does not have",
        found=f"{_THEIRS}.{rest}",
        cure=_elsewhere(rest) or _nearest(parent, last) or _PAGE,
        name=f"{_THEIRS}.{rest}",
    )


def _elsewhere(rest: str) -> str | None:
    while rest and rest not in ELSEWHERE:
        rest = rest.rpartition(".")[0]
    return ELSEWHERE.get(rest)


def _nearest(parent: str, name: str) -> str | None:
    near = difflib.get_close_matches(name, dir(sys.modules.get(f"{_OURS}.{parent}")), 1, 0.8)
    return f"there is {_THEIRS}.{parent}.{near[0]}; docs/features.md lists what is missing, and why" if near else None


# -- answers of modules with a PyFlink path ------------------------------------------------------------------------------


@cache
def _listed() -> dict[str, Any]:
    content = pkgutil.get_data(_OURS, "pyflink_names.json")  # on a cluster the package is a zip file
    assert content is not None
    listed: dict[str, Any] = json.loads(content)
    return listed


def _names() -> dict[str, dict[str, list[str]]]:
    """Module -> class -> methods, with Tidegate's module names."""
    names: dict[str, dict[str, list[str]]] = _listed()["names"]
    return names


def _missing_text(name: str) -> str:
    for reason, never in _listed()["never"].items():
        if name.rpartition(".")[2] in never:
            return f"{name} is part of PyFlink's API but has no meaning here: {reason}. {_PAGE}"
    return f"{name} is part of PyFlink's API but not there yet in Tidegate. {_PAGE}"


class _MarkingLoader(Loader):
    """Loads with another loader, then marks what the module lacks. It does not change the other loader: a zip file has one loader
    for all its modules."""

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
        found = vars(module).get(name)  # not getattr: a name that is resolved later may need the package of an extra
        if isinstance(found, type) and found.__module__.startswith(f"{_OURS}.") and not issubclass(found, Enum):
            nested = [each.removeprefix(f"{name}.") for each in classes if each.startswith(f"{name}.")]
            for method in (*methods, *nested):
                if not (method.startswith("_") or hasattr(found, method)):
                    setattr(found, method, _MissingMethod(f"{name}.{method}"))
    module.__getattr__ = _answering(module, {*classes, *classes.get("<functions>", ())})  # type: ignore[method-assign]


class _MissingMethod:
    """Stands on a class for a method that the class lacks. A subclass with the method hides it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> NoReturn:
        raise AttributeError(
            _missing_text(self._name),
            name=self._name.rpartition(".")[2],
            obj=instance if instance is not None else owner,
        )


def _answering(module: ModuleType, known: set[str]) -> Callable[[str], Any]:
    """Make the module's ``__getattr__``. One that the module has itself is asked first."""
    own = vars(module).get("__getattr__")
    homes: dict[str, str] = _listed()["homes"].get(module.__name__, {})

    def __getattr__(name: str) -> Any:
        if own is not None:
            with suppress(AttributeError):
                return own(name)
        found = _former(module.__name__, name) or (name in homes and _at_home(homes[name], name))
        if found:
            return found
        if name not in known:
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}", name=name, obj=module)
        if _is_import(sys._getframe(1)):  # an import would replace the text of an AttributeError by its own
            raise ImportError(_missing_text(f"{module.__name__}.{name}"), name=module.__name__)
        raise AttributeError(_missing_text(f"{module.__name__}.{name}"), name=name, obj=module)

    return __getattr__


def _at_home(home: str, name: str) -> Any:
    """Return the module itself if the name is its own, else what the module has under the name; None if Tidegate lacks either."""
    try:
        module = import_module(home)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in (_OURS, _THEIRS):
            return None
        raise
    return module if home.endswith(f".{name}") else getattr(module, name, None)


def _former(module: str, name: str) -> Any:
    """Return what a former PyFlink had under the name, with a notice to the user; None if it had nothing."""
    home, ours, instead = FORMER.get(f"{module.removeprefix(f'{_OURS}.')}.{name}", (None, "", ""))
    if home is None:
        return None
    former(f"{module}.{name}", instead)
    return getattr(import_module(f"{_OURS}.{home}"), ours)


def _is_import(frame: Any) -> bool:
    """Return whether the frame executes ``from ... import ...``."""
    return bool(frame.f_code.co_code[frame.f_lasti] == _IMPORT_FROM)


def library(name: str, wanted_by: str, extra: str = "formats") -> Any:
    """Import the module ``name`` of a library. Raises ConfigurationError with the name of the extra if it is missing."""
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ConfigurationError(
            f"{wanted_by} needs the package {package}",
            found=f"it cannot be imported: {error}",
            cure=f"pip install 'tidegate[{extra}]', in the environment of the workers too",
        ) from error
