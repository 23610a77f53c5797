"""Compare our API with what is recorded of PyFlink's: names, parameters, defaults, constants, members of enums, properties.

``python -m tests.compat.parity`` prints what is missing and not listed; with ``prune`` it removes from ``missing.json`` what
exists by now. Nothing adds to the list but a person with a reason.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tests.compat.api_values import values_of
from tests.compat.module_names import PACKAGES, has

HERE = Path(__file__).parent
API = HERE / "pyflink_api.json"
VALUES = HERE / "pyflink_values.json"
MODULES = HERE / "pyflink_modules.json"
"""The last two by scripts/record_pyflink_api.py."""
MISSING = HERE / "missing.json"


def compare() -> tuple[set[str], set[str]]:
    """Ids of what we have and of what we lack: ``module``, ``module:Class``, ``module:Class.method``,
    ``module:Class.method(parameter)``, and with the value that PyFlink has ``module:Class.CONSTANT=1``,
    ``module:Enum.MEMBER=member 0``, ``module:Class.method(parameter)=None``. Parts of a thing that is missing as a whole are
    not counted. ``module:name`` is also every name that PyFlink's module has at run time, wherever it is defined."""
    present: set[str] = set()
    missing: set[str] = set()
    values = json.loads(VALUES.read_text())
    for module_name, classes in json.loads(API.read_text()).items():
        module = _module(module_name)
        (missing if module is None else present).add(module_name)
        if module is not None:
            for class_name, methods in classes.items():
                _compare_class(module, module_name, class_name, methods, present, missing)
            ours = values_of(module.__name__, classes)
            _compare_values(module_name, values[module_name], ours, present, missing)
    for module_name, homes in json.loads(MODULES.read_text()).items():
        module = _module(module_name)
        (missing if module is None else present).add(module_name)
        if module is not None:
            for name, home in homes.items():
                if has(module, name):
                    present.add(f"{module_name}:{name}")
                elif home == module_name or _has_home(home, name):
                    missing.add(f"{module_name}:{name}")
    return present, missing


def _has_home(home: str, name: str) -> bool:
    """Whether we have what another module of PyFlink's defines; if not, it is missing there and nowhere else."""
    module = _module(home) if home.startswith(PACKAGES) else None
    return module is not None and (home.endswith(f".{name}") or has(module, name))


def _compare_values(
    module_name: str, theirs: dict[str, str], ours: dict[str, str], present: set[str], missing: set[str]
) -> None:
    """Of classes, methods and parameters that we have."""
    for name, value in theirs.items():
        whole, _, parameter = name.partition("(")
        holder = f"{module_name}:{name}" if parameter else f"{module_name}:{whole.rpartition('.')[0]}".rstrip(":")
        if holder in present and not parameter.lstrip("_").startswith("j_"):
            (present if ours.get(name) == value else missing).add(f"{module_name}:{name}={value}")


def _module(name: str) -> Any | None:
    ours = name.replace("pyflink", "tidegate", 1)
    try:
        return importlib.import_module(ours)
    except ModuleNotFoundError as error:
        if error.name is not None and ours.startswith(error.name):
            return None
        raise


def _compare_class(
    module: Any, module_name: str, class_name: str, methods: dict[str, list[str]], present: set[str], missing: set[str]
) -> None:
    holder = module
    identity = f"{module_name}:{class_name}"
    if class_name != "<functions>":
        for part in class_name.split("."):
            holder = getattr(holder, part, None)
        if holder is None:
            missing.add(identity)
            return
        present.add(identity)
    for method, parameters in methods.items():
        _compare_method(holder, f"{identity}.{method}", method, parameters, present, missing)


def _compare_method(
    holder: Any, identity: str, method: str, parameters: list[str], present: set[str], missing: set[str]
) -> None:
    function = getattr(holder, method, None)
    if function is None:
        missing.add(identity)
        return
    present.add(identity)
    try:
        target = holder if method == "__init__" else function
        signature = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        signature = []  # object.__init__
    ours = {parameter.name for parameter in signature}
    for parameter in parameters:
        name = parameter.lstrip("*")
        if not name.lstrip("_").startswith("j_"):  # Java objects
            (present if name in ours else missing).add(f"{identity}({name})")


def listed() -> dict[str, list[str]]:
    """Reason -> ids; ``*`` at the end of an id stands for anything."""
    reasons: dict[str, list[str]] = json.loads(MISSING.read_text())
    return reasons


def matches(identity: str, pattern: str) -> bool:
    return fnmatchcase(identity, pattern.replace("[", "[[]"))


def prune() -> None:
    """Take away what exists now."""
    present, _ = compare()
    kept = {
        reason: [pattern for pattern in patterns if not any(matches(identity, pattern) for identity in present)]
        for reason, patterns in listed().items()
    }
    MISSING.write_text(json.dumps({reason: ids for reason, ids in kept.items() if ids}, indent=1) + "\n")


def unlisted() -> list[str]:
    patterns = [pattern for group in listed().values() for pattern in group]
    _, missing = compare()
    return sorted(identity for identity in missing if not any(matches(identity, pattern) for pattern in patterns))


if __name__ == "__main__":
    if sys.argv[1:] == ["prune"]:
        prune()
    print("\n".join(unlisted()))
