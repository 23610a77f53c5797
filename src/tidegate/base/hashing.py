"""The two hashes that file handles carry: a fast one against damage, a cryptographic one against forgery."""

from __future__ import annotations

import hashlib
from typing import Any

import xxhash

_SHA256 = "sha256:"


def new_digest(strong: bool) -> Any:
    """Start a hash: ``update`` it, then pass it to ``hash_text``. ``strong``: SHA-256, else xxh3-128."""
    return hashlib.sha256() if strong else xxhash.xxh3_128()


def hash_text(digest: Any) -> str:
    """Return the text that a handle carries. Old handles hold bare hex, so xxh3-128 stays without a prefix."""
    text: str = digest.hexdigest()
    return _SHA256 + text if digest.name == "sha256" else text


def content_hash(data: bytes | memoryview, *, strong: bool = False) -> str:
    """Hash a whole content. ``strong``: see ``new_digest``."""
    if strong:
        return _SHA256 + hashlib.sha256(data).hexdigest()
    return xxhash.xxh3_128_hexdigest(data)


def is_strong(hash: str) -> bool:
    """Return whether a handle's hash also proves that nobody replaced the file."""
    return hash.startswith(_SHA256)


def shown_hash(hash: str) -> str:
    """Return the hash with the name of its algorithm, for messages."""
    return f"sha-256 {hash.removeprefix(_SHA256)}" if is_strong(hash) else f"xxh3-128 {hash}"
