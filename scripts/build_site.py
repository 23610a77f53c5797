"""Build the site of this version beside those of other versions: ``python -m scripts.build_site [--site build/site]``.

``<site>/<version>/`` has the pages, ``<site>/versions.json`` the list for the selector in the header, and ``<site>/index.html``
leads to the newest version. Keep the directory between releases, or copy the published one into it: other versions in it stay.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).parents[1]
_FRONT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Tidegate</title>
<meta http-equiv="refresh" content="0; url={newest}/index.html">
</head>
<body><a href="{newest}/index.html">Tidegate {newest}</a></body>
</html>
"""


def this_version() -> str:
    found = re.search(r'__version__ = "(.+)"', (ROOT / "src" / "tidegate" / "__init__.py").read_text())
    assert found is not None
    return found[1]


def build(site: Path) -> None:
    """Build the pages of this version. A warning of MkDocs, such as a dead link, fails the build."""
    out = site / this_version()
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(out.resolve())]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    list_versions(site)


def list_versions(site: Path) -> None:
    """Write the list of the versions in the directory, the newest first, and the page that leads to the newest."""
    versions = sorted(filter(None, map(_version, site.iterdir())), reverse=True)
    entries = [
        {"version": str(version), "title": str(version), "aliases": ["latest"] if version == versions[0] else []}
        for version in versions
    ]
    (site / "versions.json").write_text(json.dumps(entries, indent=1) + "\n")
    (site / "index.html").write_text(_FRONT.format(newest=versions[0]))


def _version(directory: Path) -> Version | None:
    """Return None for a directory that is not the site of a version."""
    try:
        version = Version(directory.name)
    except InvalidVersion:
        return None
    return version if str(version) == directory.name and (directory / "index.html").is_file() else None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--site", type=Path, default=ROOT / "build" / "site")
    build(parser.parse_args().site)
