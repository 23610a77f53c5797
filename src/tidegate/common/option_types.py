"""The types of configuration values: each parses values from code, YAML and the command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

from tidegate.common.time import Duration, Time, millis_of


@dataclass(frozen=True)
class OptionType:
    """``parse`` takes a raw value (a text, or a value of YAML) and raises ValueError if it is invalid."""

    name: str
    parse: Callable[[Any], Any]
    example: str


_QUANTITY = re.compile(r"^\s*(\d+)\s*([a-zµ]*)\s*$", re.IGNORECASE)


def _units(*groups: tuple[int, str]) -> dict[str, int]:
    return {label: size for size, labels in groups for label in labels.split()}


_NANOS = _units(
    (86_400_000_000_000, "d day days"),
    (3_600_000_000_000, "h hour hours"),
    (60_000_000_000, "m min minute minutes"),
    (1_000_000_000, "s sec secs second seconds"),
    (1_000_000, "ms milli millis millisecond milliseconds"),
    (1_000, "µs micro micros microsecond microseconds"),
    (1, "ns nano nanos nanosecond nanoseconds"),
)
_BYTES = _units(
    (1, "b bytes"),
    (1 << 10, "k kb kibibytes"),
    (1 << 20, "m mb mebibytes"),
    (1 << 30, "g gb gibibytes"),
    (1 << 40, "t tb tebibytes"),
)


def _quantity(raw: Any, units: dict[str, int], default_unit: str) -> int:
    match = _QUANTITY.match(str(raw))
    if match is None or isinstance(raw, bool):
        negative = str(raw).strip().startswith("-")
        raise ValueError("it is negative" if negative else "not a number with a unit")
    number, unit = match.groups()
    size = units.get(unit.lower() or default_unit)
    if size is None:
        raise ValueError(f"unknown unit {unit!r}")
    return int(number) * size


def parse_duration(raw: Any) -> int:
    """Return milliseconds of ``10 s``, ``500ms``, ``1 min``, a bare number of milliseconds, a Duration, Time or timedelta."""
    if isinstance(raw, Duration | Time | timedelta):
        return millis_of("a duration", raw)
    return _quantity(raw, _NANOS, "ms") // 1_000_000


def parse_memory(raw: Any) -> int:
    """Return bytes of ``64 mb``, ``1g`` or a bare number of bytes."""
    return _quantity(raw, _BYTES, "b")


def parse_bool(raw: Any) -> bool:
    if isinstance(raw, bool):
        return raw
    text = str(raw).strip().lower()
    if text not in ("true", "false"):
        raise ValueError("neither true nor false")
    return text == "true"


def parse_int(raw: Any) -> int:
    if isinstance(raw, bool | float):
        raise ValueError("not a whole number")
    return int(str(raw).strip())


def parse_float(raw: Any) -> float:
    if isinstance(raw, bool):
        raise ValueError("not a number")
    return float(str(raw).strip())


def parse_text(raw: Any) -> str:
    if isinstance(raw, list | dict):
        raise ValueError("not a single value")
    if isinstance(raw, bool):
        return str(raw).lower()
    return str(raw).strip()


def parse_list(raw: Any) -> list[str]:
    """``a;b`` (Flink's older spelling), ``[a, b]`` or a YAML list."""
    if isinstance(raw, list | tuple):
        return [str(item) for item in raw]
    text = str(raw).strip()
    if text.startswith("[") and text.endswith("]"):
        parts = text[1:-1].split(",")
    else:
        parts = text.split(";")
    return [part.strip().strip("'\"") for part in parts if part.strip()]


def parse_paths(raw: Any) -> list[str]:
    """Directories of this host, as Flink takes them: ``/a,/b`` or ``/a:/b``, a YAML list, or addresses ``file:///a``."""
    parts = raw if isinstance(raw, list | tuple) else _BETWEEN_PATHS.split(str(raw))
    return [_local_path(str(part).strip()) for part in parts if str(part).strip()]


_BETWEEN_PATHS = re.compile(r"[,;]|(?<!\bfile):")


def _local_path(text: str) -> str:
    address = urlsplit(text)
    if address.scheme not in ("", "file"):
        raise ValueError(f"{text!r} is not a directory of this host")
    return address.path.rstrip("/") or "/" if address.scheme else text


def parse_map(raw: Any) -> dict[str, str]:
    """``k:v,k:v`` or a YAML mapping."""
    if isinstance(raw, dict):
        return {str(key): parse_text(value) for key, value in raw.items()}
    pairs = [part.partition(":") for part in str(raw).split(",") if part.strip()]
    if any(not separator for _, separator, _ in pairs):
        raise ValueError("not pairs of key:value")
    return {key.strip(): value.strip() for key, _, value in pairs}


def parse_ports(raw: Any) -> str:
    """``9249``, or ``9249-9260``; 0: any that is free."""
    ports = ports_of(str(raw))
    if not 0 <= ports.start < ports.stop <= 1 << 16:
        raise ValueError("ports lie between 0 and 65535, the lower one comes first")
    return str(raw).strip()


def ports_of(text: str) -> range:
    """Return the ports of a parsed value."""
    first, dash, last = text.partition("-")
    return range(parse_int(first), parse_int(last if dash else first) + 1)


DURATION = OptionType("a duration", parse_duration, "10 s")
MEMORY = OptionType("a size of memory", parse_memory, "64 mb")
BOOL = OptionType("true or false", parse_bool, "true")
INT = OptionType("a whole number", parse_int, "4")
FLOAT = OptionType("a number", parse_float, "1.5")
TEXT = OptionType("a text", parse_text, "name")
LIST = OptionType("a list", parse_list, "a;b")
PATHS = OptionType("directories of the host", parse_paths, "/mnt/ssd1,/mnt/ssd2")
PORTS = OptionType("a port or a range of ports", parse_ports, "9249-9260")
MAP = OptionType("a map", parse_map, "k1:v1,k2:v2")


def choice(values: Sequence[str], synonyms: dict[str, str] | None = None) -> OptionType:
    """One of ``values``; case and the difference between ``-`` and ``_`` do not matter."""
    known = {_fold(value): value for value in values} | {_fold(k): v for k, v in (synonyms or {}).items()}

    def parse(raw: Any) -> str:
        value = known.get(_fold(raw.name if isinstance(raw, Enum) else str(raw)))
        if value is None:
            raise ValueError("not one of them")
        return value

    return OptionType("one of " + ", ".join(values), parse, values[0])


def _fold(text: str) -> str:
    return text.strip().lower().replace("-", "_")
