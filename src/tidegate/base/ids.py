"""Identifiers: job ids, attempt tokens, stable hashes of names."""

from __future__ import annotations

import hashlib
import secrets


def new_job_id() -> str:
    """Return a random job id of 32 hex digits, as in Flink."""
    return secrets.token_hex(16)


def new_token() -> str:
    """Return a short random token, unique for each attempt of a task or job."""
    return secrets.token_hex(6)


def stable_hash(text: str) -> str:
    """Return 32 hex digits, the same for the same text in every process."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
