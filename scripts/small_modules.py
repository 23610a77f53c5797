"""Print the modules that the rule for folding asks about: small, with one importer or none, and no path of PyFlink.

CONTRIBUTING.md has the rule: a module has two importers, or about 80 lines, or a PyFlink path. An importer is another module of
``src``, by an import anywhere in it, or a place that names the module in ``pyproject.toml``. A package's own ``__init__.py``, which
exports its names, is none.

    .venv/bin/python -m scripts.small_modules
"""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "tidegate"
ENOUGH_LINES = 80
ENOUGH_IMPORTERS = 2
_BY_NAME = "programs import it by this name"
KEPT = {
    "cli.init": "a command, imported when it is called",
    "datastream.connectors.datagen": _BY_NAME,
    "datastream.connectors.mysql": _BY_NAME,
    "datastream.connectors.postgresql": _BY_NAME,
    "operators.kinds.registry": "names all kinds of operators in one place",
    "pyflink_compat": _BY_NAME,
    "spark.driver_main": "the file that spark-submit starts",
    "state_reader": _BY_NAME,
    "state_writer": _BY_NAME,
    "testing.two_phase_contract": _BY_NAME,
}
"""Module -> why it stays a module of its own."""


def module_of(path: Path) -> str:
    return ".".join(("tidegate", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


def imported(tree: ast.AST, modules: dict[str, Path]) -> set[str]:
    """The modules that a file imports; ``from package import name`` counts for the module of the name, if there is one."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                names.add(whole if whole in modules else str(node.module))
    return names & modules.keys()


def main() -> None:
    modules = {module_of(path): path for path in sorted(SOURCE.rglob("*.py"))}
    lines = {module: len(path.read_text().splitlines()) for module, path in modules.items()}
    importers: dict[str, set[str]] = defaultdict(set)
    for module, path in modules.items():
        for name in imported(ast.parse(path.read_text()), modules):
            if not (path.name == "__init__.py" and name.startswith(f"{module}.")):
                importers[name].add(module.removeprefix("tidegate."))
    elsewhere = set(json.loads((SOURCE / "pyflink_names.json").read_text())["names"])
    settings = (ROOT / "pyproject.toml").read_text()
    small = [
        module
        for module, path in modules.items()
        if path.name not in {"__init__.py", "__main__.py"}
        and lines[module] < ENOUGH_LINES
        and len(importers[module]) < ENOUGH_IMPORTERS
        and module not in elsewhere
        and module not in settings
    ]
    for module in small:
        name = module.removeprefix("tidegate.")
        print(f"{lines[module]:4}  {name:40} {', '.join(importers[module]) or '-':25} {KEPT.get(name, 'FOLD IT')}")
    without = [module for module in small if module.removeprefix("tidegate.") not in KEPT]
    print(
        f"{len(modules)} modules, {sum(lines.values())} lines; {len(small)} are small, {len(without)} of them without a reason"
    )


if __name__ == "__main__":
    main()
