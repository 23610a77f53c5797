"""Directories that commands name: what a path may look like, and where it may lead."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

from tidegate.base.errors import ConfigurationError

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def checked_target(target: str, allowed: tuple[str, ...] | None, configured: str | None) -> str:
    """The directory as it was given; ``ConfigurationError`` if it must not be used.

    ``allowed`` None: the holder of the token may name any directory: the driver runs as the same user, who could write there
    without it. Links are followed before a path is compared.
    """
    if reason := _why_malformed(target):
        raise _refused(target, reason, "give an absolute path, or an address with its scheme (s3://bucket/savepoints)")
    if allowed is not None:
        places = [place for place in (*allowed, configured) if place]
        if not any(_lies_below(target, place) for place in places):
            listed = ", ".join(places) or "none"
            raise _refused(target, f"it is not below an allowed one: {listed}", "see tidegate.control.allowed-dirs")
    return target


def _why_malformed(target: str) -> str | None:
    if not target.strip() or any(ord(c) < 32 or ord(c) == 127 for c in target):
        return "it is empty or has control characters"
    if "::" in target:  # fsspec would open one file system inside another
        return "it names more than one file system"
    if not (target.startswith("/") or _SCHEME.match(target)):
        return "it is not absolute"
    return "it has .. in it" if _climbs(target) else None


def _climbs(text: str) -> bool:
    """Also where it is encoded, once or more: some store behind fsspec might decode what we do not."""
    for _ in range(4):
        if ".." in re.split(r"[/\\]", text):
            return True
        decoded = unquote(text)
        if decoded == text:
            return False
        text = decoded
    return True


def _lies_below(target: str, place: str) -> bool:
    return (_resolved(target) + "/").startswith(_resolved(place).rstrip("/") + "/")


def _resolved(address: str) -> str:
    if address.startswith("file://"):
        address = address.removeprefix("file://")
    return address if _SCHEME.match(address) else os.path.realpath(address)


def _refused(target: str, found: str, cure: str) -> ConfigurationError:
    return ConfigurationError(
        "A savepoint goes into a directory that commands may name", where=repr(target), found=found, cure=cure
    )
