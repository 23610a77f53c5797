"""Runs the Python blocks of documentation pages, each page in a namespace of its own, all in one Spark session.

python snippets.py PAGE ...
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

END = "--- end of a block"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, text) of all fenced blocks, in order."""
    return _BLOCK.findall(page.read_text())


def promised_outputs(page: Path) -> list[list[str] | None]:
    """For each Python block of a page what it says that the block prints: the block without a language right after it. None: it
    says nothing. A line ``...`` stands for any lines; lines that begin with ``$`` are commands."""
    text = page.read_text()
    found = list(_BLOCK.finditer(text))
    promised: list[list[str] | None] = []
    for block, following in zip(found, [*found[1:], None], strict=False):
        if block[1] != "python":
            continue
        is_next = following is not None and not following[1] and not text[block.end() : following.start()].strip()
        lines = following[2].splitlines() if following is not None and is_next else []
        promised.append([line for line in lines if not line.startswith("$")] or None)
    return promised


def keeps(promised: list[str], printed: list[str]) -> bool:
    """Whether the lines are those promised. Subtasks print in any order: only what stands around a ``...`` has to be in order."""
    if "..." not in promised:
        return sorted(promised) == sorted(printed)
    gap = promised.index("...")
    before, behind = promised[:gap], promised[gap + 1 :]
    enough = len(printed) >= len(before) + len(behind)
    return enough and printed[:gap] == before and printed[len(printed) - len(behind) :] == behind


def main() -> None:
    for name in sys.argv[1:]:
        # Functions of __main__ are pickled by value, as in a user's program.
        namespace = {"__name__": "__main__"}
        for language, text in blocks(Path(name)):
            if language == "python":
                exec(compile(text, name, "exec"), namespace)
                print(END, flush=True)


if __name__ == "__main__":
    main()
