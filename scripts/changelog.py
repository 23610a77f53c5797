"""Makes CHANGELOG.md from fragments: ``python scripts/changelog.py check``, ``... release VERSION DATE``.

A fragment is a file ``changes/NAME.KIND.md`` with one entry: sentences that a user of Tidegate understands. A change that users
notice comes with its fragment. ``release`` moves all fragments into a section of CHANGELOG.md and deletes them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
KINDS = ("security", "removed", "deprecated", "changed", "added", "fixed")
"""In the order of a section: what can break a program stands first."""
MARK = "<!-- releases -->\n"
_FILE = re.compile(rf"[a-z0-9-]+\.({'|'.join(KINDS)})\.md")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


class ChangelogError(Exception):
    """Which file is wrong, and what it should be."""


def fragments(root: Path) -> dict[str, list[tuple[Path, str]]]:
    """Kind -> its fragments with their text, by name."""
    found: dict[str, list[tuple[Path, str]]] = {kind: [] for kind in KINDS}
    for path in sorted((root / "changes").iterdir()):
        if path.name == "README.md":
            continue
        match = _FILE.fullmatch(path.name)
        if match is None:
            raise ChangelogError(f"{path}: a fragment is named NAME.KIND.md, KIND one of {', '.join(KINDS)}")
        text = " ".join(path.read_text().split())
        if not text.endswith(".") or text.startswith(("-", "#", "*")):
            raise ChangelogError(f"{path}: a fragment is plain sentences, and ends with a full stop")
        found[match[1]].append((path, text))
    return found


def section(found: dict[str, list[tuple[Path, str]]]) -> str:
    parts = [
        f"### {kind.capitalize()}\n\n" + "".join(f"- {text}\n" for _, text in entries)
        for kind, entries in found.items()
        if entries
    ]
    return "\n".join(parts)


def release(root: Path, version: str, date: str) -> None:
    """Put the fragments into a new section at the top of CHANGELOG.md, and delete them."""
    if not _VERSION.fullmatch(version) or not _DATE.fullmatch(date):
        raise ChangelogError(f"release VERSION DATE, for example 0.2.0 2027-01-31; found: {version} {date}")
    path = root / "CHANGELOG.md"
    before, mark, after = path.read_text().partition(MARK)
    if not mark:
        raise ChangelogError(f"{path}: the line {MARK.strip()} is missing")
    if re.search(rf"^## {re.escape(version)}\b", after, re.MULTILINE):
        raise ChangelogError(f"{path}: there is a section of {version}")
    found = fragments(root)
    if not any(found.values()):
        raise ChangelogError("changes/ has no fragment: there is nothing to release")
    path.write_text(f"{before}{mark}\n## {version} ({date})\n\n{section(found)}{after}")
    for entries in found.values():
        for fragment, _ in entries:
            fragment.unlink()


def main(arguments: list[str]) -> int:
    try:
        if arguments[:1] == ["release"] and len(arguments) == 3:
            release(ROOT, *arguments[1:])
        elif arguments == ["check"]:
            found = fragments(ROOT)
            print(f"{sum(map(len, found.values()))} fragments\n\n{section(found)}", end="")
        else:
            print(__doc__)
            return 2
    except ChangelogError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
