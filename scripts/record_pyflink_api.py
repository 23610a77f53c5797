"""Writes what real PyFlink's API holds into tests/compat: pyflink_values.json has constants, members of enums, properties and
defaults; pyflink_modules.json has the public names of each module at run time, with the modules that define them.

``.venv-pyflink/bin/python scripts/record_pyflink_api.py [--check]``: run it with an interpreter that has PyFlink 2.3
(scripts/pyflink_venv.sh). It also tells which recorded names PyFlink does not have: pyflink_api.json is then of another version.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COMPAT = ROOT / "tests" / "compat"
sys.path.insert(0, str(ROOT))
from tests.compat.api_values import values_of  # noqa: E402
from tests.compat.module_names import names_by_module  # noqa: E402

API, VALUES, MODULES = (COMPAT / f"pyflink_{name}.json" for name in ("api", "values", "modules"))


def recorded() -> dict[str, dict[str, str]]:
    api = json.loads(API.read_text())
    return {module: dict(sorted(values_of(module, names).items())) for module, names in api.items()}


def unknown() -> list[str]:
    """Classes and methods in pyflink_api.json that this PyFlink does not have."""
    found = []
    for module, classes in json.loads(API.read_text()).items():
        for class_name, methods in classes.items():
            holder: Any = importlib.import_module(module)
            for part in [] if class_name == "<functions>" else class_name.split("."):
                holder = getattr(holder, part, None)
            missing = [""] if holder is None else [f".{name}" for name in methods if not hasattr(holder, name)]
            found += [f"{module}:{class_name}{name}" for name in missing]
    return found


def main() -> int:
    texts = {
        path: json.dumps(found, indent=1) + "\n" for path, found in ((VALUES, recorded()), (MODULES, names_by_module()))
    }
    for name in unknown():
        print(f"recorded, and not in this PyFlink: {name}")
    if "--check" in sys.argv:
        return 0 if all(text == path.read_text() for path, text in texts.items()) else 1
    for path, text in texts.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
