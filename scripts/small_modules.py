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
    importers: dict[str, set[str]] = defaultdict(set)
    for module, path in modules.items():
        for name in imported(ast.parse(path.read_text()), modules):
            if not (path.name == "__init__.py" and name.startswith(f"{module}.")):
                importers[name].add(module.removeprefix("tidegate."))
    of_pyflink = set(json.loads((SOURCE / "pyflink_names.json").read_text())["names"])
    settings = (ROOT / "pyproject.toml").read_text()
    below = 0
    for module, path in modules.items():
        lines = len(path.read_text().splitlines())
        plain = path.name not in {"__init__.py", "__main__.py"}
        if (
            plain
            and lines < ENOUGH_LINES
            and len(importers[module]) < 2
            and module not in of_pyflink
            and module not in settings
        ):
            below += 1
            print(
                f"{lines:4}  {module.removeprefix('tidegate.'):45} {', '.join(importers[module]) or '(nobody in src)'}"
            )
    lines = sum(len(path.read_text().splitlines()) for path in modules.values())
    print(f"{below} of {len(modules)} modules are below the rule; {lines} lines")


if __name__ == "__main__":
    main()
