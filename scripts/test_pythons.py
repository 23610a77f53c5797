"""Runs the unit tests with every Python that Tidegate supports: ``python scripts/test_pythons.py [3.12 ...]``.

An interpreter is taken from the PATH, else from Maven Central: Bytedeco publishes CPython there, whole, in a jar. Everything goes
into ``.pythons``. Ends with 1 if a test failed or a version could not be had.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".pythons"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
JARS = {
    "3.12": ("3.12.1-1.5.10", "a135fcf4dc01adebf7ea439252276fc3196db80f7e0dd3da0b61f1ec489b68bd"),
    "3.13": ("3.13.5-1.5.12", "50ad91aa0baa57f0235bb666b87d8bf2a44e215d28c250de1030502906af143b"),
    "3.14": ("3.14.3-1.5.13", "eb5f1a6fe2dc498ac18927189a37f28a47b0ba06ae6bd85112eff023fe2eb46f"),
}
"""Release and SHA-256 of the jar."""
ADDRESS = "https://repo1.maven.org/maven2/org/bytedeco/cpython/{release}/cpython-{release}-linux-x86_64.jar"
INSIDE = "org/bytedeco/cpython/linux-x86_64/"


def interpreter(version: str) -> Path | None:
    """A working ``python<version>``; None if there is none for this machine."""
    for found in (shutil.which(f"python{version}"), *_of_pyenv(version)):
        if found is not None and _runs(found):
            return Path(found)
    home = PLACE / version
    if not (home / "bin" / f"python{version}").exists() and version in JARS and os.uname().machine == "x86_64":
        unpack(fetch(*JARS[version]), home, version)
    own = home / "bin" / f"python{version}"
    return own if own.exists() else None


def _of_pyenv(version: str) -> list[str]:
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    return [str(path) for path in sorted(root.glob(f"versions/{version}.*/bin/python{version}"))]


def _runs(python: str) -> bool:
    """A shim of pyenv is on the PATH whether or not it leads to an interpreter."""
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def fetch(release: str, digest: str) -> bytes:
    address = ADDRESS.format(release=release)
    print(f"fetching {address} ...", flush=True)
    with urllib.request.urlopen(address, timeout=300) as answer:
        content: bytes = answer.read()
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise SystemExit(f"{address} is not what it was: SHA-256 {found}, expected {digest}")
    return content


def unpack(jar: bytes, home: Path, version: str) -> None:
    with zipfile.ZipFile(io.BytesIO(jar)) as archive:
        for item in archive.infolist():
            name = item.filename.removeprefix(INSIDE)
            if item.is_dir() or name == item.filename or name.startswith(f"lib/python{version}/test/"):
                continue
            target = home / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(item))
    (home / "bin" / f"python{version}").chmod(0o755)


def environment(version: str) -> dict[str, str]:
    """The fetched interpreters do not know where their own library is."""
    library = {"LD_LIBRARY_PATH": str(PLACE / version)} if (PLACE / version).exists() else {}
    return {**os.environ, **library, "PYTHONPATH": str(ROOT / "src")}


def run_tests(version: str, python: Path) -> bool:
    venv, env = PLACE / f"venv-{version}", environment(version)
    uv = [str(Path(sys.executable).with_name("uv")), "--quiet"]
    if not (venv / "bin" / "python").exists():
        subprocess.run([*uv, "venv", "--python", str(python), str(venv)], check=True, env=env)
    own = str(venv / "bin" / "python")
    subprocess.run(
        [*uv, "sync", "--frozen", "--inexact", "--extra", "dev"],
        check=True,
        cwd=ROOT,
        env={**env, "UV_PROJECT_ENVIRONMENT": str(venv)},
    )
    tests = ["tests/unit", "tests/architecture"]
    command = [
        own,
        "-m",
        "pytest",
        "-n",
        "2",
        "--dist",
        "worksteal",
        "-m",
        "not slow and not pyflink",
        "-p",
        "no:cacheprovider",
        *tests,
    ]
    return subprocess.run(command, cwd=ROOT, env=env, check=False).returncode == 0


def main(wanted: list[str]) -> int:
    PLACE.mkdir(exist_ok=True)
    results = {}
    for version in wanted or VERSIONS:
        python = interpreter(version)
        print(f"== Python {version}: {python or 'none to be had'}", flush=True)
        results[version] = "not to be had" if python is None else "ok" if run_tests(version, python) else "FAILED"
    print("\n".join(f"Python {version}: {result}" for version, result in results.items()))
    return 0 if set(results.values()) == {"ok"} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
