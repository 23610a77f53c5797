"""The outer form of every small file of the checkpoint room: one header line, then JSON, checksummed and versioned."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec
import xxhash

from tidegate.base.errors import CorruptFileError, NewerFormatError, RestoreError
from tidegate.base.files import corrupt

T = TypeVar("T")

_HEADER = re.compile(rb"([a-z-]+) version=(\d{1,9}) bytes=(\d{1,15}) xxh3-128=([0-9a-f]{32})\n")
# The header's own form never changes, so that every version of Tidegate can tell damage from a newer version.


def seal(magic: str, version: int, body: object) -> bytes:
    """Encode ``body`` as indented JSON after a header. The checksum covers magic and version too."""
    return seal_bytes(magic, version, as_json(body))


def as_json(body: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(body), indent=1)


def seal_bytes(magic: str, version: int, data: bytes) -> bytes:
    """Do as ``seal``, for a body that is already encoded."""
    header = f"{magic} version={version} bytes={len(data)} xxh3-128={_checksum(magic, version, data)}\n"
    return header.encode() + data


def unseal(
    location: str, content: bytes, magic: str, readers: Mapping[int, Callable[[bytes], T]], cure: str | None = None
) -> T:
    """Verify and decode. ``readers``: one function for each version on disk that this Tidegate reads. ``cure``: the cure for
    damage, where another checkpoint is not the cure.

    Raises ``CorruptFileError`` (damage) or ``RestoreError`` (another kind of file, a newer version).
    """
    version, data = _verified(location, content, magic, cure)
    if version not in readers:
        known = ", ".join(str(number) for number in sorted(readers))
        raise NewerFormatError(
            "This Tidegate cannot read the version of a file on checkpoint storage.",
            where=location,
            found=f"{magic} version {version}; this Tidegate reads {known}",
            cure="run the job with the Tidegate version that wrote the file, or a later version",
        )
    try:
        return readers[version](data)
    except msgspec.MsgspecError as error:
        raise corrupt(location, f"the fields of {magic} version {version}", str(error), cure) from error


def _verified(location: str, content: bytes, magic: str, cure: str | None) -> tuple[int, bytes]:
    if not content.startswith(magic.encode() + b" "):
        raise _not_ours(location, content, magic, cure)
    match = _HEADER.match(content)
    if match is None:
        raise corrupt(location, "a header line", repr(content[:80]), cure)
    version, size, checksum = int(match[2]), int(match[3]), match[4].decode()
    data = content[match.end() :]
    found = _checksum(magic, version, data)
    if len(data) != size or found != checksum:
        expected = f"{size} bytes after the header, xxh3-128 {checksum}"
        raise corrupt(location, expected, f"{len(data)} bytes, xxh3-128 {found}", cure)
    return version, data


def _not_ours(location: str, content: bytes, magic: str, cure: str | None) -> RestoreError | CorruptFileError:
    # A truncated or flipped header must not be reported as "another kind of file": that would mislead the user.
    # With a cure, the file is a record of the job itself, and no user gave its path: with other content it is damaged.
    if cure or not content or magic.encode().startswith(content) or b"xxh3-128=" in content[:200]:
        return corrupt(location, f"a header line that starts with {magic}", repr(content[:80]), cure)
    return RestoreError(
        f"The file was not written by Tidegate (expected {magic}).",
        where=location,
        found=f"it starts with {content[:40]!r}",
        cure="give the path of a Tidegate checkpoint or savepoint",
    )


def _checksum(magic: str, version: int, data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(f"{magic} {version}\n".encode() + data)
