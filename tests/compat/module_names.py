"""The public names that each of PyFlink's modules has at run time: what it defines, and what it re-exports.

Run by ``scripts/record_pyflink_api.py`` in an environment with real PyFlink; ``parity.py`` asks our modules for the same names.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import Any

PACKAGES = ("pyflink.common", "pyflink.datastream", "pyflink.metrics", "pyflink.util")
PLAIN = (bool, int, float, str, bytes)


def names_by_module() -> dict[str, dict[str, str]]:
    """Module -> name -> the module that defines the name, or that the name stands for. PyFlink's own tests and names of other
    packages are left out."""
    return {name: names_of(importlib.import_module(name)) for name in sorted(_modules())}


def names_of(module: ModuleType) -> dict[str, str]:
    """Name -> home, of what belongs to the package of the module."""
    package = module.__name__.partition(".")[0]
    homes = {name: _home(module, name, getattr(module, name)) for name in sorted(dir(module)) if _public(name)}
    return {name: home for name, home in homes.items() if home is not None and home.partition(".")[0] == package}


def has(module: ModuleType, name: str) -> bool:
    """Whether ``from module import name`` works: it finds submodules too."""
    if hasattr(module, name):
        return True
    try:
        importlib.import_module(f"{module.__name__}.{name}")
    except ModuleNotFoundError:
        return False
    return True


def _modules() -> list[str]:
    found = list(PACKAGES)
    for package in PACKAGES:
        path = importlib.import_module(package).__path__
        found += [each.name for each in pkgutil.walk_packages(path, f"{package}.") if ".tests" not in each.name]
    return found


def _public(name: str) -> bool:
    return not name.startswith("_") and name != "TYPE_CHECKING"


def _home(module: ModuleType, name: str, value: Any) -> str | None:
    """None: not a name of the API. A constant says nothing of its home, but is written in capitals."""
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, PLAIN):
        return module.__name__ if name.isupper() else None
    home = getattr(value, "__module__", None)
    return home if isinstance(home, str) else None
