"""Builds the files of a release from the current commit: ``python scripts/release.py [--out DIR]``.

The wheel, a software bill of materials (CycloneDX, from uv.lock), and ``sha256sums``. Two builds of one commit give the same bytes:
the time is that of the commit (SOURCE_DATE_EPOCH, if set, wins), the tools of the build are pinned, and only committed files take
part.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "scripts" / "build-constraints.txt"
EPOCH = "SOURCE_DATE_EPOCH"
EXTRAS = ("formats", "kafka", "postgresql", "mysql", "rocksdb", "redis", "delta", "iceberg", "hdfs")
"""Those that can be installed together with the tested version of fsspec."""


def seconds() -> int:
    """The time that the files carry."""
    if EPOCH in os.environ:
        return int(os.environ[EPOCH])
    return int(subprocess.check_output(["git", "log", "-1", "--format=%ct"], cwd=ROOT, text=True))


def build_wheel(out: Path, epoch: int) -> Path:
    """Build from an export of HEAD, so that neither changed files nor an earlier build take part."""
    with tempfile.TemporaryDirectory() as place:
        archive = subprocess.check_output(["git", "archive", "HEAD"], cwd=ROOT)
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(place, filter="data")
        environment = {**os.environ, EPOCH: str(epoch), "UV_CONSTRAINT": str(CONSTRAINTS), "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-m", "build", "--wheel", "--installer", "uv", "--outdir", str(out), place]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = out.glob("*.whl")
    return wheel


def bill_of_materials(epoch: int) -> dict[str, Any]:
    """What uv says that the lock file holds, with a serial number and a time that depend on nothing else."""
    uv = str(Path(sys.executable).with_name("uv"))
    extras = [part for extra in EXTRAS for part in ("--extra", extra)]
    command = [
        uv,
        "export",
        "--quiet",
        "--frozen",
        "--format",
        "cyclonedx1.5",
        "--preview-features",
        "sbom-export",
        *extras,
    ]
    bill: dict[str, Any] = json.loads(subprocess.check_output(command, cwd=ROOT))
    lock = hashlib.sha256((ROOT / "uv.lock").read_bytes()).hexdigest()
    bill["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'sha256:{lock}')}"
    bill["metadata"]["timestamp"] = datetime.fromtimestamp(epoch, UTC).isoformat()
    return bill


def checksums(files: list[Path]) -> str:
    """In the form that ``sha256sum --check`` reads."""
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(files))


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds the files of a release from the current commit.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    out: Path = parser.parse_args().out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        print(f"{out} is not empty: remove it, or choose another directory with --out", file=sys.stderr)
        return 1
    os.umask(0o022)  # the modes of files are part of a wheel
    epoch = seconds()
    wheel = build_wheel(out, epoch)
    bill = out / f"{wheel.name.split('-py3')[0]}.cdx.json"
    bill.write_text(json.dumps(bill_of_materials(epoch), indent=2, sort_keys=True) + "\n")
    (out / "sha256sums").write_text(checksums([wheel, bill]))
    print((out / "sha256sums").read_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
