"""Runs the Python blocks of documentation pages, each page in a namespace of its own, all in one Spark session.

python snippets.py PAGE ...
"""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, text) of all fenced blocks, in order."""
    return _BLOCK.findall(page.read_text())


def promised_output(page: Path) -> list[str]:
    """Lines of the blocks without a language that follow a Python block: what the page says it prints."""
    found = blocks(page)
    pairs = itertools.pairwise(found)
    outputs = [text for (before, _), (language, text) in pairs if before == "python" and not language]
    return [line for text in outputs for line in text.splitlines() if not line.startswith("$")]


def main() -> None:
    for name in sys.argv[1:]:
        # Functions of __main__ are pickled by value, as in a program of the user's.
        namespace = {"__name__": "__main__"}
        for language, text in blocks(Path(name)):
            if language == "python":
                exec(compile(text, name, "exec"), namespace)
        print(f"--- end of {name}", flush=True)


if __name__ == "__main__":
    main()
