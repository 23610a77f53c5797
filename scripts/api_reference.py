"""What the API reference of the site shows: public classes and functions of every module that users import, and their members."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import Any

GROUPS = {
    "Programs": [
        "tidegate.datastream.functions",
        "tidegate.datastream.state",
        "tidegate.datastream.window",
        "tidegate.datastream",
    ],
    "Types and configuration": [
        "tidegate.common.typeinfo",
        "tidegate.common.types",
        "tidegate.common.time",
        "tidegate.common.watermark_strategy",
        "tidegate.common.restart_strategy",
        "tidegate.common",
        "tidegate.table",
        "tidegate.metrics",
    ],
    "Connectors": ["tidegate.datastream.connectors.*", "tidegate.datastream.connectors"],
    "Formats": ["tidegate.datastream.formats.*"],
    "Snapshots": ["tidegate.state_reader", "tidegate.state_writer"],
    "Testing": ["tidegate.testing", "tidegate.testing.*"],
    "PyFlink's names": ["tidegate.pyflink_compat"],
}
"""Group of the sidebar -> modules, by PyFlink's paths where PyFlink has them. ``.*``: the modules of the package. A thing that
several modules export stands on the page of the first one; the other pages link to it."""
HIDDEN = {"tidegate.testing.kill_hook", "tidegate.testing.sink_run"}
"""Modules that other processes load by name. Nobody calls them."""


@cache
def groups() -> dict[str, list[str]]:
    """Group -> its modules that export something."""
    return {group: [name for name in _expanded(names) if exported(name)] for group, names in GROUPS.items()}


def _expanded(names: list[str]) -> Iterator[str]:
    for name in names:
        if not name.endswith(".*"):
            yield name
            continue
        package = importlib.import_module(name[:-2])
        here = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
        yield from (
            f"{name[:-2]}.{own}" for own in here if not own.startswith("_") and f"{name[:-2]}.{own}" not in HIDDEN
        )


@cache
def exported(module: str) -> dict[str, Any]:
    """Name -> class or function that the module exports: ``__all__``, names that it resolves later, or its own definitions."""
    loaded = importlib.import_module(module)
    own = [name for name, value in vars(loaded).items() if getattr(value, "__module__", None) == module]
    names = {*getattr(loaded, "__all__", own), *getattr(loaded, "_LATER", ())}
    found = {name: getattr(loaded, name) for name in sorted(names) if not name.startswith("_")}
    return {name: value for name, value in found.items() if inspect.isclass(value) or inspect.isfunction(value)}


@cache
def home_of() -> dict[int, tuple[str, str]]:
    """The id of a class or function -> (module, name) under which its contract stands."""
    homes: dict[int, tuple[str, str]] = {}
    for modules in groups().values():
        for module in modules:
            for name, value in exported(module).items():
                homes.setdefault(id(value), (module, name))
    return homes


def members(cls: type) -> dict[str, Any]:
    """Public methods and properties of the class, in their order, without those of bases that are public themselves."""
    held: dict[str, Any] = {}
    for base in cls.__mro__:
        if base is cls or (base.__module__.startswith("tidegate.") and id(base) not in home_of()):
            held = {**vars(base), **held}
    return {
        name: value
        for name, value in held.items()
        if not name.startswith("_") and inspect.isfunction(_function_of(value))
    }


def _function_of(value: Any) -> Any:
    return value.fget if isinstance(value, property) else getattr(value, "__func__", value)


def fields(cls: type) -> list[str]:
    """Members of an enum, fields of a record, constants with a documented value."""
    if issubclass(cls, Enum):
        return [member.name for member in cls]
    record = hasattr(cls, "__struct_fields__") or hasattr(cls, "__dataclass_fields__") or hasattr(cls, "_fields")
    return [name for name in inspect.get_annotations(cls) if record and not name.startswith("_")]


def inner_classes(cls: type) -> dict[str, type]:
    return {
        name: value
        for name, value in vars(cls).items()
        if inspect.isclass(value) and not name.startswith("_") and value.__qualname__ == f"{cls.__qualname__}.{name}"
    }


def undocumented() -> list[str]:
    """Public classes, methods, properties and functions without a docstring, inherited ones included."""
    every = {(module, name): exported(module)[name] for module, name in home_of().values()}
    return sorted({bare for (_, name), value in every.items() for bare in bare_names(name, value)})


def bare_names(name: str, value: Any) -> Iterator[str]:
    if not (value.__dict__.get("__doc__") if inspect.isclass(value) else inspect.getdoc(value)):
        yield name
    if inspect.isclass(value):
        yield from (f"{name}.{own}" for own in members(value) if not inspect.getdoc(getattr(value, own)))
        for inner_name, inner in inner_classes(value).items():
            yield from bare_names(f"{name}.{inner_name}", inner)


# -- pages


def index() -> str:
    head = (
        "# API reference\n\nEvery public class and function with its contract, made from the docstrings. "
        "Paths are PyFlink's, with `tidegate` for `pyflink`.\n[Releases](../releases.md) says which names are promised; "
        "[features](../features.md) counts them.\n"
    )
    parts = [head]
    for group, modules in groups().items():
        parts.append(f"\n## {group}\n\n" + "".join(f"- [`{name}`]({name}.md): {_purpose(name)}\n" for name in modules))
    return "".join(parts)


def _purpose(module: str) -> str:
    return (inspect.getdoc(importlib.import_module(module)) or "").partition("\n")[0].replace("``", "`")


def page(module: str) -> str:
    """The page of a module, with one directive of mkdocstrings for each class and function."""
    text = f"# `{module}`\n\n{(inspect.getdoc(importlib.import_module(module)) or '').replace('``', '`')}\n"
    elsewhere = []
    for name, value in exported(module).items():
        home, own = home_of()[id(value)]
        if (home, own) != (module, name):
            elsewhere.append(f"[`{name}`]({home}.md#{home}.{own})")
        else:
            text += _directive(f"{module}.{name}", value)
    if elsewhere:
        text += f"\n## Exported here too\n\n{', '.join(elsewhere)}\n"
    return text


def _directive(path: str, value: Any) -> str:
    text = f"\n::: {path}\n    options:\n      show_root_heading: true\n      show_root_full_path: false\n"
    if not inspect.isclass(value):
        return text
    shown = [*fields(value), *(name for name in members(value) if not _repeats(value, name)), *inner_classes(value)]
    own = [
        f"      {key}:\n" + "".join(f"        - {name}\n" for name in shown) for key in ("members", "inherited_members")
    ]
    return text + ("".join(own) if shown else "      members: false\n      inherited_members: false\n")


def _repeats(cls: type, name: str) -> bool:
    """Whether the method only implements what a public base says: it has no docstring of its own there."""
    own = cls.__dict__.get(name)
    return own is not None and not getattr(_function_of(own), "__doc__", None)
