"""Hashes of files and names, the key that signs snapshots, and the ids of jobs and attempts.

Files have one of two hashes: a fast one against damage, and a cryptographic one against forgery.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from typing import Any

import xxhash

from tidegate.base.errors import ConfigurationError

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


_LEAST_BYTES = 32
_CONTEXT = b"tidegate-snapshot-1\n"
"""Signatures of anything else made with the same key never verify as a snapshot's."""


class SigningKey:
    """A secret shared by all who write and restore a job's snapshots. It stays on the driver: tasks never get it."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def __repr__(self) -> str:
        return "SigningKey(***)"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("A signing key never leaves the driver.")

    @staticmethod
    def load(path: str, *, where: str) -> SigningKey:
        """Read the key from a file that only its owner can read. ``where``: the option or argument that named the file."""
        try:
            with open(path, "rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                secret = file.read().strip()
        except OSError as error:
            raise _bad(where, path, f"{type(error).__name__}: {error.strerror or error}") from error
        if not stat.S_ISREG(mode):
            raise _bad(where, path, "it is not a regular file")
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigurationError(
                "The signing key is readable by other users",
                where=where,
                found=f"{path} has mode {stat.S_IMODE(mode):04o}",
                cure=f"run: chmod 600 {path}",
            )
        if len(secret) < _LEAST_BYTES:
            raise _bad(where, path, f"{len(secret)} bytes, fewer than {_LEAST_BYTES}")
        return SigningKey(secret)

    def sign(self, content: bytes) -> str:
        return self._signature(hashlib.sha256(content).digest())

    def accepts(self, signature: str, digest: bytes) -> bool:
        """Return whether this key signed the content with this SHA-256 digest."""
        return hmac.compare_digest(self._signature(digest), signature)

    def _signature(self, digest: bytes) -> str:
        return hmac.new(self._secret, _CONTEXT + digest, hashlib.sha256).hexdigest()


def _bad(where: str, path: str, found: str) -> ConfigurationError:
    return ConfigurationError(
        "The signing key cannot be used",
        where=where,
        found=f"{path}: {found}",
        cure=f"make one: (umask 077; openssl rand -hex 32 > {path}), and copy it to every host that restores the job",
    )


def new_job_id() -> str:
    """Return a random job id of 32 hex digits, as in Flink."""
    return secrets.token_hex(16)


def new_token() -> str:
    """Return a short random token, unique for each attempt of a task or job."""
    return secrets.token_hex(6)


def stable_hash(text: str) -> str:
    """Return 32 hex digits, the same for the same text in every process."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def flink_job_id(job_id: str) -> str:
    """Return the id that Flink's clients expect: 32 hexadecimal digits. An id of another form gets a stable one."""
    lower = job_id.lower()
    is_one = len(lower) == 32 and all(c in "0123456789abcdef" for c in lower)
    return lower if is_one else stable_hash(f"job {job_id}")


def vertex_id(name: str, chain: int) -> str:
    """Return the id of a chain for Flink's clients: 32 hexadecimal digits. ``name``: the uid of the chain's first operator, else
    the name of that operator."""
    return stable_hash(f"vertex {name} {chain}")
