"""Secret texts, which no file may contain. Code that gets a secret registers it here; code that stores a program checks."""

from __future__ import annotations

import json
from collections.abc import Iterable

_known: set[bytes] = set()


def hide(texts: Iterable[str]) -> None:
    """Register secrets for the life of the process."""
    for text in filter(None, texts):
        _known.update((text.encode(), json.dumps(text, ensure_ascii=False)[1:-1].encode()))  # also as JSON has it


def are_in(content: bytes) -> bool:
    """Return whether the content contains a secret."""
    return any(secret in content for secret in _known)


def masked(text: str) -> str:
    """Replace secrets in a text, for a message."""
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret.decode(), "***")
    return text
