"""What executors must have is what a task imports, and it is looked for by a function that needs none of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

from tidegate.spark.shipping import PACKAGES, looking

IMPORTED = """
import sys
import tidegate.operators.kinds.registry, tidegate.spark.task, tidegate.state.stores
print(*{name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names))
"""


def test_the_list_is_what_a_task_imports() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)
    imported = set(done.stdout.split()) & packages_distributions().keys()
    # The last package is optional for the packages that ask for it
    brought_along = {"tidegate", "pyspark", "py4j", "typing_extensions"}
    assert {name for name in imported - brought_along if not name.startswith("_")} == PACKAGES.keys()


def test_what_is_missing_is_named_with_host_and_python(tmp_path: Path) -> None:
    (tmp_path / "no_such_module.py").touch()  # an executor's directory has files that Spark has brought
    program = looking({"sys": "a", "no_such_module": "z-package", "nor_this_one": "b-package"})
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert json.loads(done.stdout.removeprefix("tidegate found: ")) == [
        os.uname().nodename,
        sys.executable,
        version,
        ["b-package", "z-package"],
    ]
