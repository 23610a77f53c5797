"""Settings for a JVM in a file of the user's own: every user of the host can read the arguments of a process."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

OPTION = "--properties-file"
_ESCAPED = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}


@contextlib.contextmanager
def properties_file(settings: Iterable[tuple[str, str]], arguments: list[str]) -> Iterator[str]:
    """A file that spark-submit takes in place of its defaults, which therefore stand in it too: those of Spark's ``conf``, or the
    file that ``arguments`` (the user's, for spark-submit) name. It exists while the JVM starts."""
    handle, path = tempfile.mkstemp(prefix="tidegate-", suffix=".conf")  # 0600
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(_defaults(arguments) + "\n\n")
            file.writelines(f"{_escaped(key, ' :=#!')}={_escaped(value)}\n" for key, value in settings)
        yield path
    finally:
        os.unlink(path)


def with_properties(command: list[str], path: str) -> list[str]:
    """The command of spark-submit with this file in place of the user's, whose content stands in it."""
    kept = list(command)
    for number in reversed(range(len(kept))):
        if kept[number] == OPTION:
            del kept[number : number + 2]
        elif kept[number].startswith(f"{OPTION}="):
            del kept[number]
    return [kept[0], OPTION, path, *kept[1:]]


def _defaults(arguments: list[str]) -> str:
    named = [value for name, value in itertools.pairwise(arguments) if name == OPTION]
    named += [argument.partition("=")[2] for argument in arguments if argument.startswith(f"{OPTION}=")]
    if named:
        return Path(named[-1]).read_text(encoding="utf-8")
    place = os.environ.get("SPARK_CONF_DIR") or os.path.join(_find_spark_home(), "conf")
    file = Path(place, "spark-defaults.conf")
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def _escaped(text: str, also: str = "") -> str:
    """As ``java.util.Properties`` reads it, in ASCII."""
    return "".join(_escaped_character(character, first, also) for first, character in enumerate(text))


def _escaped_character(character: str, position: int, also: str) -> str:
    if character in _ESCAPED:
        return _ESCAPED[character]
    if character in also or (character == " " and position == 0):
        return f"\\{character}"
    if " " <= character <= "~":
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[n]:02x}{units[n + 1]:02x}" for n in range(0, len(units), 2))
