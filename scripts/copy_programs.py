"""Copies the programs of examples/tutorials into their pages: ``python scripts/copy_programs.py [--check]``.

A page has a comment with the path of the program, ``<!-- examples/tutorials/fraud.py -->``, before the block that shows it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
_SHOWN = re.compile(r"(<!-- (examples/[\w/]+\.py) -->\n```py\n)(.*?)(^```$)", re.MULTILINE | re.DOTALL)


def pages() -> dict[Path, str]:
    """Page -> its text with the programs as they are now."""
    return {path: _current(path.read_text()) for path in sorted((ROOT / "docs" / "tutorials").glob("*.md"))}


def programs(page: Path) -> list[Path]:
    return [ROOT / match[2] for match in _SHOWN.finditer(page.read_text())]


def _current(text: str) -> str:
    return _SHOWN.sub(lambda match: match[1] + (ROOT / match[2]).read_text() + match[4], text)


def main() -> int:
    old = {path: text for path, text in pages().items() if path.read_text() != text}
    if "--check" in sys.argv:
        print(
            f"run: python scripts/copy_programs.py ({', '.join(path.name for path in old)})"
            if old
            else "pages are current"
        )
        return 1 if old else 0
    for path, text in old.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
