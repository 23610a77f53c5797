"""A checkpoint on storage: the structs of ``_metadata`` and their codec, versions 2 to 4.

Version 1 was never released: its keyed state used another key hash. Version 3 adds records in flight, and is otherwise the same:
a checkpoint without records in flight is still written as version 2. Version 4 is version 3 after a line with a signature. A job
with a signing key writes version 4: its state files have cryptographic hashes, so the signature covers their content too."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import msgspec

from tidegate.base.errors import InternalError, RestoreError
from tidegate.base.files import Files
from tidegate.base.hashing import SigningKey
from tidegate.checkpoint.envelope import as_json, seal, seal_bytes, unseal
from tidegate.state.in_flight import InFlightPart
from tidegate.state.refs import StateFile, StateSchema
from tidegate.state.snapshot import OperatorSnapshot, merged_schemas

MAGIC = "tidegate-metadata"
VERSION, WITH_RECORDS, SIGNED = 2, 3, 4
FILE_NAME = "_metadata"
SHARED = "shared"
"""The directory of state files, beside those of the checkpoints."""

CHECKPOINT, SAVEPOINT = "checkpoint", "savepoint"


class OperatorState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of one operator in a checkpoint. Opaque bytes are msgpack."""

    uid_hash: str
    uid: str | None = None
    name: str
    parallelism: int
    max_parallelism: int
    subtasks: list[OperatorSnapshot] = []
    source: Any = None
    """The enumerator's snapshot, plain data."""
    committables: list[bytes] = []
    """Prepared but not confirmed as committed, in the order of rounds."""

    @property
    def has_state(self) -> bool:
        """Whether a program without this operator would lose something."""
        held = any(snapshot.has_state for snapshot in self.subtasks)
        return held or self.source is not None or bool(self.committables)

    @property
    def schemas(self) -> tuple[StateSchema, ...]:
        """The keyed states of all subtasks."""
        return merged_schemas(s.keyed.schemas for s in self.subtasks if s.keyed is not None)

    @property
    def key_type(self) -> str:
        return next((s.keyed.key_type for s in self.subtasks if s.keyed is not None and s.keyed.key_type), "")

    def state_files(self) -> list[StateFile]:
        return [file for snapshot in self.subtasks for file in snapshot.files()]

    def in_flight(self) -> list[InFlightPart]:
        """Return the records in flight that wait for its subtasks."""
        return [snapshot.in_flight for snapshot in self.subtasks if snapshot.in_flight is not None]

    def keyed_files(self) -> list[StateFile]:
        return [file for snapshot in self.subtasks if snapshot.keyed is not None for file in snapshot.keyed.files]

    def values(self, name: str) -> list[Any]:
        """Return the items of a list part, of all subtasks."""
        return [value for snapshot in self.subtasks for value in snapshot.values(name)]


class CheckpointMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``_metadata``. Paths are relative to the job's directory (a savepoint: to its own)."""

    checkpoint_id: int
    job_id: str
    job_name: str
    token: int
    """Lease token of the attempt that wrote the checkpoint. The token decides the lineage."""
    trigger_ms: int
    complete_ms: int
    round: int
    kind: str = CHECKPOINT
    operators: list[OperatorState] = []
    finished: bool = False
    """All sources have ended and this checkpoint holds the last output."""
    properties: dict[str, str] = {}

    def state_files(self) -> list[StateFile]:
        """Return every referenced file once, by path, whatever its clipping."""
        files = (file for operator in self.operators for file in operator.state_files())
        return list({file.path: file for file in files}.values())

    @property
    def is_unaligned(self) -> bool:
        """Whether the checkpoint contains records in flight."""
        return any(operator.in_flight() for operator in self.operators)

    @property
    def in_flight_records(self) -> int:
        """How many records were received but not processed at the cut."""
        return sum(part.records for operator in self.operators for part in operator.in_flight())

    @property
    def in_flight_bytes(self) -> int:
        return sum(part.bytes for operator in self.operators for part in operator.in_flight())

    def paths(self) -> set[str]:
        return {file.path for file in self.state_files()}


class Signature(NamedTuple):
    """``text``: the signature, in hex. ``digest``: the SHA-256 digest of the signed bytes."""

    text: str
    digest: bytes


class SignedMetadata(NamedTuple):
    """Metadata with its signature. ``signature`` None: there is none. The signature is not checked yet
    (``Located.check_signature``)."""

    metadata: CheckpointMetadata
    signature: Signature | None


def encode_metadata(metadata: CheckpointMetadata, key: SigningKey | None = None) -> bytes:
    """Encode ``_metadata``. Refuses references into another directory: the checkpoint would be lost with that directory."""
    for file in metadata.state_files():
        if file.root:
            raise InternalError(
                "A checkpoint refers to a file outside its own directory.",
                where=f"checkpoint {metadata.checkpoint_id}",
                found=f"{file.path} in {file.root}",
            )
    if key is not None:
        body = as_json(metadata)
        return seal_bytes(MAGIC, SIGNED, f"hmac-sha256={key.sign(body)}\n".encode() + body)
    return seal(MAGIC, WITH_RECORDS if metadata.is_unaligned else VERSION, metadata)


def decode_metadata(location: str, content: bytes) -> CheckpointMetadata:
    """Decode ``_metadata``. ``location`` is for the errors, which are ``CorruptFileError`` and ``RestoreError``."""
    return decode_signed(location, content).metadata


def decode_signed(location: str, content: bytes) -> SignedMetadata:
    """Do as ``decode_metadata``, with the signature. Metadata may come from anywhere: a path outside its directory is refused."""
    readers = {VERSION: _read_version_2, WITH_RECORDS: _read_version_2, SIGNED: _read_version_4}
    found = unseal(location, content, MAGIC, readers)
    for file in found.metadata.state_files():
        if file.root or file.path.startswith("/") or ".." in file.path.split("/"):
            raise RestoreError(
                "The snapshot refers to a file outside its own directory. Tidegate never writes such a reference.",
                where=location,
                found=f"{file.root}/{file.path}" if file.root else file.path,
                cure="do not restore this snapshot; find out who made it",
            )
    return found


def metadata_path(checkpoint_id: int) -> str:
    return f"chk-{checkpoint_id}/{FILE_NAME}"


def read_metadata(files: Files, path: str) -> CheckpointMetadata:
    """Read and verify a ``_metadata`` file; a missing one is a ``CorruptFileError``."""
    return read_signed(files, path).metadata


def read_signed(files: Files, path: str) -> SignedMetadata:
    """Do as ``read_metadata``, with the signature."""
    return decode_signed(files.location(path), files.read_bytes(path))


def _read_version_2(body: bytes) -> SignedMetadata:
    return SignedMetadata(msgspec.json.decode(body, type=CheckpointMetadata), None)


def _read_version_4(body: bytes) -> SignedMetadata:
    line, _, signed = body.partition(b"\n")
    signature = Signature(line.decode("ascii", "replace").removeprefix("hmac-sha256="), hashlib.sha256(signed).digest())
    return SignedMetadata(msgspec.json.decode(signed, type=CheckpointMetadata), signature)
