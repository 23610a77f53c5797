"""Two builds of one commit give the same bytes, and the checksums and the bill of materials are right."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def built(out: Path, *, umask: int, zone: str) -> dict[str, bytes]:
    """One build, as another person on another machine would do it."""
    environment = {**os.environ, "TZ": zone, "HOME": str(out.parent)}
    environment.pop("SOURCE_DATE_EPOCH", None)
    command = [
        "sh",
        "-c",
        f'umask {umask:04o} && exec "$@"',
        "sh",
        sys.executable,
        "scripts/release.py",
        "--out",
        str(out),
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return {path.name: path.read_bytes() for path in out.iterdir()}


def test_two_builds_give_the_same_bytes(tmp_path: Path) -> None:
    first = built(tmp_path / "one", umask=0o022, zone="UTC")
    second = built(tmp_path / "two", umask=0o077, zone="Asia/Tokyo")
    assert {name.rpartition(".")[2] for name in first} == {"whl", "json", "sha256sums"}
    assert first == second

    sums = dict(line.split("  ")[::-1] for line in first["sha256sums"].decode().splitlines())
    assert sums == {
        name: hashlib.sha256(content).hexdigest() for name, content in first.items() if name != "sha256sums"
    }

    (bill,) = [json.loads(content) for name, content in first.items() if name.endswith(".cdx.json")]
    assert bill["bomFormat"] == "CycloneDX"
    named = {(component["name"], component["version"]) for component in bill["components"]}
    locked = {
        (package["name"], package.get("version"))
        for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    }
    assert named <= locked
    assert {"pyspark", "lmdb", "msgspec", "pyarrow", "aiokafka", "psycopg"} <= {name for name, _ in named}
    assert not {"pytest", "ruff", "mkdocs"} & {name for name, _ in named}, "what only tests need is not delivered"


def test_a_directory_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old.whl").write_text("")
    command = [sys.executable, "scripts/release.py", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "is not empty" in done.stderr
