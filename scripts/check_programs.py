"""Check the types of all programs in docs/, in examples/ and of a new project strictly, with mypy, pyright and pyrefly.

``python -m scripts.check_programs [mypy] [pyright] [pyrefly]`` from the top directory. The blocks of a page are one program.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.integration.snippets import blocks

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
PROJECT = ROOT / "src" / "tidegate" / "cli" / "project"
INFERRED = ROOT / "tests" / "unit" / "datastream" / "test_inferred_types.py"
_UNTYPED = "from typing import Any\n\ndef __getattr__(name: str) -> Any: ...\n"
_STUBS = {
    "prices.pyi": "def cents(euros: float) -> int: ...\n",
    "pyarrow/__init__.pyi": _UNTYPED,
    "pyarrow/compute.pyi": _UNTYPED,
    "pyarrow/parquet.pyi": _UNTYPED,
}
"""A module that a program of the pages writes; and pyarrow, which has no types."""
_MYPY = """[mypy]
strict = true
mypy_path = {path}
follow_imports = silent
"""


def write_programs(directory: Path) -> list[Path]:
    """Write each page and each example as a module of its own, and return the modules."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        parts = [text for language, text in blocks(page) if language == "python"]
        if parts:
            name = "_".join(page.relative_to(ROOT).with_suffix("").parts).replace("-", "_")
            (directory / f"page_{name}.py").write_text("\n".join(parts))
    for example in sorted((ROOT / "examples").rglob("*.py")):
        name = "_".join(example.relative_to(ROOT).with_suffix("").parts)
        # Not the programs of several files: mypy checks them as tests
        if example.parent.name not in ("demo", "kafka", "snapshot"):
            (directory / f"{name}.py").write_text(example.read_text())
    (directory / "inferred.py").write_text(INFERRED.read_text())
    for name in ("job.py", "test_job.py"):  # of tidegate init
        (directory / name).write_text((PROJECT / f"{name}.txt").read_text())
    (directory / "pyarrow").mkdir()
    for name, text in _STUBS.items():
        (directory / name).write_text(text)
    return sorted(directory.glob("*.py"))


def commands(directory: Path) -> dict[str, list[str]]:
    python = sys.executable
    (directory / "pyrightconfig.json").write_text(
        json.dumps(
            {
                "typeCheckingMode": "strict",
                "extraPaths": [str(ROOT), str(ROOT / "src")],
                "reportMissingTypeStubs": False,
                "reportMissingModuleSource": False,
                "reportIncompleteStub": False,
            }
        )
    )
    (directory / "mypy.ini").write_text(_MYPY.format(path=f"{ROOT / 'src'}:{ROOT}"))
    return {
        "mypy": [str(BIN / "mypy"), "--config-file", "mypy.ini", "--python-executable", python, "."],
        "pyright": [str(BIN / "pyright"), "--pythonpath", python],
        "pyrefly": [
            str(BIN / "pyrefly"),
            "check",
            "--python-interpreter-path",
            python,
            "--search-path",
            str(ROOT / "src"),
        ],
    }


def main() -> int:
    failed = 0
    with tempfile.TemporaryDirectory() as place:
        modules = write_programs(Path(place))
        print(f"{len(modules)} programs")
        for name, command in commands(Path(place)).items():
            if not sys.argv[1:] or name in sys.argv[1:]:
                print(f"{name}:", flush=True)
                failed |= subprocess.run(command, cwd=place, check=False).returncode
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
