"""Identifiers: job ids, attempt tokens, stable hashes of names."""

from __future__ import annotations

import hashlib
import secrets


def new_job_id() -> str:
    """A random job id, 32 hex digits as in Flink."""
    return secrets.token_hex(16)


def new_token() -> str:
    """A short random token, unique for each attempt of a task or job."""
    return secrets.token_hex(6)


def stable_hash(text: str) -> str:
    """The same 32 hex digits for the same text in every process."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
