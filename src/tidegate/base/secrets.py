"""Secret texts, which no file may contain. Code that gets a secret registers it here; code that stores a program checks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

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


_NAMES = re.compile(
    r"(passw(or)?d|secret|token|credential|authorization|auth-params|basic-auth|jaas\.config|http-headers|api-?key|"
    r"(access|account|master|sas|service|private)[._-]?key)(?![._-]?(id|file|path|location)\b)",
    re.IGNORECASE,
)
"""What the name of a secret contains, if it is not the name of a file with the secret."""
_IN_TEXTS = re.compile(rf"({_NAMES.pattern}[^\s:=,;&]*\s*[:=]\s*)(\"[^\"]*\"|'[^']*'|[^\s,;&]+)", re.IGNORECASE)
_IN_ADDRESSES = re.compile(r"(://[^/@:\s]*:)[^/@\s]+@")


def masked_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return settings as texts, sorted by name, for people who may see the job but not its secrets: values of secret names,
    passwords in addresses, and registered secrets are replaced."""
    return {name: _masked_value(name, settings[name]) for name in sorted(settings) if settings[name] is not None}


def _masked_value(name: str, value: Any) -> str:
    if _NAMES.search(name):
        return "***"
    if isinstance(value, Mapping):
        return ",".join(f"{key}:{_masked_value(str(key), part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ";".join(_masked_value("", part) for part in value)
    return masked_text(str(value).lower() if isinstance(value, bool) else str(value))


def masked_text(text: str) -> str:
    """Replace secrets in a text: registered ones, passwords in addresses, and what follows the name of a secret."""
    text = _IN_ADDRESSES.sub(r"\1***@", text)
    return masked(_IN_TEXTS.sub(lambda found: f"{found[1]}***", text))


def masked_command(arguments: Iterable[str]) -> str:
    """Return a command without the values of options with secret names."""
    shown: list[str] = []
    hides = False
    for argument in arguments:
        shown.append("***" if hides else masked_text(argument))
        hides = argument.startswith("-") and "=" not in argument and _NAMES.search(argument) is not None
    return " ".join(shown)
