"""Fetch the libraries of the page from npm and write them with their manifest: ``python -m scripts.vendor_scripts``.

Browsers resolve ``from "preact"`` only with an inline import map, which the page's content security policy forbids. So the names of
imports are replaced by relative paths, as the manifest lists them; nothing else is changed.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import urllib.request
from pathlib import Path
from typing import Any

VENDOR = Path(__file__).parent.parent / "src/tidegate/control/web/static/vendor"
MANIFEST = VENDOR / "manifest.json"
REGISTRY = "https://registry.npmjs.org"


def main() -> None:
    manifest = json.loads(MANIFEST.read_text())
    for entry in manifest:
        package = fetch(entry["package"], entry["version"])
        original = package[entry["path"]]
        changed = vendored(entry, original)
        (VENDOR / entry["file"]).write_bytes(changed)
        (VENDOR / entry["license_file"]).write_bytes(package["LICENSE"])
        entry |= {"npm_sha256": sha256(original), "sha256": sha256(changed)}
    MANIFEST.write_text(json.dumps(manifest, indent=2) + "\n")


def fetch(package: str, version: str) -> dict[str, bytes]:
    """Return the files of a package on npm by their paths in it."""
    with urllib.request.urlopen(f"{REGISTRY}/{package}/{version}", timeout=60) as answer:
        address = json.load(answer)["dist"]["tarball"]
    with urllib.request.urlopen(address, timeout=60) as answer:
        packed = io.BytesIO(answer.read())
    files: dict[str, bytes] = {}
    with tarfile.open(fileobj=packed) as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                files[member.name.partition("/")[2]] = content.read()
    return files


def vendored(entry: dict[str, Any], original: bytes) -> bytes:
    """Return the file as the page has it. ``imports`` gives the path for each imported name, ``drop`` texts that are left out."""
    for name, path in entry.get("imports", {}).items():
        for quote in ('"', "'"):
            for before in ("from", "from "):
                original = original.replace(f"{before}{quote}{name}{quote}".encode(), f'{before}"{path}"'.encode())
    for text in entry.get("drop", []):
        original = original.replace(text.encode(), b"")
    return original


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    main()
