"""Texts that may appear in no file: whoever is given one says so here, and whoever stores a program asks."""

from __future__ import annotations

from collections.abc import Iterable

_known: set[bytes] = set()


def hide(texts: Iterable[str]) -> None:
    """These are secret, as long as the process lives."""
    _known.update(text.encode() for text in texts if text)


def are_in(content: bytes) -> bool:
    return any(secret in content for secret in _known)


def masked(text: str) -> str:
    """Without them, for a message."""
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret.decode(), "***")
    return text
