"""Runs a smoke test on every version of Spark that Tidegate supports: ``python scripts/test_sparks.py [4.1 ...]``.

Each version has an environment of its own in ``.sparks``: what uv.lock has, with another pyspark. Ends with 1 if a test failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".sparks"
VERSIONS = ("4.1", "4.2", "4.3")
"""The range that pyproject.toml allows: tests/unit/docs/test_releases.py compares them."""
TESTS = (
    "tests/unit/spark/test_pyspark_internals.py",
    "tests/integration/test_examples.py::test_keyed_totals_is_the_program_of_the_readme_and_prints_what_it_says",
    "tests/integration/test_examples.py::test_two_phase_commit_has_every_order_once_although_the_job_failed",
    "tests/integration/test_spark_tutorials.py::test_the_program_prints_what_its_page_says[fraud.py]",
)
"""The private names of pyspark that Tidegate uses, state and timers, and a failure with a restart."""


def environment(version: str) -> Path:
    """Make the environment of a version, or bring it up to date, and return its Python."""
    venv = PLACE / version
    uv = [str(Path(sys.executable).with_name("uv")), "--quiet"]
    settings = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(venv)}
    if not (venv / "bin" / "python").exists():
        subprocess.run([*uv, "venv", "--python", sys.executable, str(venv)], check=True)
    sync = [*uv, "sync", "--frozen", "--inexact", "--extra", "dev", "--no-install-package", "pyspark"]
    subprocess.run(sync, check=True, cwd=ROOT, env=settings)
    python = venv / "bin" / "python"
    subprocess.run([*uv, "pip", "install", "--python", str(python), f"pyspark=={version}.*"], check=True)
    return python


def run_tests(version: str) -> bool:
    python = environment(version)
    found = subprocess.check_output([python, "-c", "import pyspark; print(pyspark.__version__)"], text=True).strip()
    print(f"== pyspark {found}", flush=True)
    if not found.startswith(f"{version}."):
        return False
    path = os.pathsep.join([str(python.parent), os.environ["PATH"]])
    kept = {key: value for key, value in os.environ.items() if key not in ("SPARK_HOME", "PYTHONPATH")}
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", *TESTS]
    return subprocess.run(command, cwd=ROOT, env={**kept, "PATH": path}, check=False).returncode == 0


def main(wanted: list[str]) -> int:
    PLACE.mkdir(exist_ok=True)
    results = {version: run_tests(version) for version in wanted or VERSIONS}
    print("\n".join(f"Spark {version}: {'ok' if good else 'FAILED'}" for version, good in results.items()))
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
