"""What the API holds besides names: constants, members of enums, properties, defaults of parameters. As text, to be compared.

Imported by ``parity.py`` for our modules, and by ``scripts/record_pyflink_api.py`` in an environment with real PyFlink.
"""

from __future__ import annotations

import enum
import importlib
import inspect
from types import FunctionType, ModuleType
from typing import Any

PLAIN = (bool, int, float, str, bytes, tuple, list, dict, type(None))
MODULE = "<module>"
"""Stands for the class of what a module itself holds."""


def text(value: Any) -> str:
    """Equal for values that are alike, whatever package their classes are of."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, type | FunctionType):
        return f"<{value.__name__}>"
    return repr(value) if isinstance(value, PLAIN) else f"<{type(value).__name__}>"


def values_of(module: str, names: dict[str, dict[str, list[str]]]) -> dict[str, str]:
    """Id -> text, of a module and the given classes and methods of it that exist: ``Class.CONSTANT``, ``Class.MEMBER``,
    ``Class.property``, ``Class.method(parameter)``."""
    found: dict[str, str] = {}
    holder = importlib.import_module(module)
    found |= {name: text(value) for name, value in _constants(vars(holder))}
    for class_name, methods in names.items():
        part = holder if class_name == "<functions>" else _find(holder, class_name)
        if part is not None:
            found |= {f"{class_name}.{key}": value for key, value in _class_values(part, methods).items()}
    return found


def _find(module: ModuleType, class_name: str) -> Any:
    found: Any = module
    for part in class_name.split("."):
        found = getattr(found, part, None)
    return found


def _class_values(holder: Any, methods: dict[str, list[str]]) -> dict[str, str]:
    values: dict[str, str] = {}
    if isinstance(holder, type):
        held = {name: value for base in reversed(holder.__mro__[:-1]) for name, value in vars(base).items()}
        values |= {name: "property" for name, value in held.items() if _public(name) and isinstance(value, property)}
        if issubclass(holder, enum.Enum):
            values |= {name: f"member {member.value!r}" for name, member in holder.__members__.items()}
        else:
            values |= {name: text(value) for name, value in _constants(held)}
    for method in methods:
        values |= {f"{method}({name})": default for name, default in _defaults(holder, method)}
    return values


def _constants(held: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in held.items() if _public(name) and isinstance(value, (*PLAIN, enum.Enum))]


def _public(name: str) -> bool:
    return not name.startswith("_") and name != "TYPE_CHECKING"  # imported from typing


def _defaults(holder: Any, method: str) -> list[tuple[str, str]]:
    function = holder if method == "__init__" else getattr(holder, method, None)
    try:
        parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):  # missing, or object.__init__
        return []
    return [(p.name, text(p.default)) for p in parameters if p.default is not p.empty]
