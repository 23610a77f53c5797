"""What a checkpoint is on storage: the structs of ``_metadata``, version 1, and their codec."""

from __future__ import annotations

from typing import Any

import msgspec

from tidegate.checkpoint.envelope import seal, unseal
from tidegate.common.errors import InternalError
from tidegate.common.files import Files
from tidegate.state.refs import KeyGroupRange, StateFile, StateSchema

MAGIC = "tidegate-metadata"
VERSION = 1
FILE_NAME = "_metadata"

CHECKPOINT, SAVEPOINT = "checkpoint", "savepoint"


class SubtaskState(msgspec.Struct, frozen=True):
    """The keyed state of one subtask: its key groups and the ordered list of files, later ones win."""

    groups: KeyGroupRange
    files: list[StateFile] = []


class OperatorState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one operator has in a checkpoint. Opaque bytes are msgpack."""

    uid_hash: str
    uid: str | None = None
    name: str
    parallelism: int
    max_parallelism: int
    keyed: list[SubtaskState] = []
    schemas: list[StateSchema] = []
    source: Any = None
    """The enumerator's snapshot, plain data."""
    splits: dict[str, list[int]] = {}
    """Watermark generator of each split being read: greatest timestamp, when it was last active, subtask."""
    generators: list[list[int]] = []
    """Watermark generator of each subtask of an assigner: greatest timestamp, when it was last active."""
    watermarks: list[int] = []
    """Output watermark of each subtask."""
    writer_states: list[bytes] = []
    committables: list[bytes] = []
    """Prepared and not confirmed as committed, in the order of rounds."""

    @property
    def has_state(self) -> bool:
        """Whether a program without this operator would lose something."""
        keyed = any(subtask.files for subtask in self.keyed)
        return keyed or self.source is not None or bool(self.writer_states) or bool(self.committables)


class CheckpointMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``_metadata``. Paths are relative to the job's directory (a savepoint: to its own)."""

    checkpoint_id: int
    job_id: str
    job_name: str
    token: int
    """Lease token of the attempt that wrote it: with it the lineage is decided."""
    trigger_ms: int
    complete_ms: int
    round: int
    kind: str = CHECKPOINT
    operators: list[OperatorState] = []
    finished: bool = False
    """All sources have ended and this checkpoint holds the last output."""
    properties: dict[str, str] = {}

    def state_files(self) -> list[StateFile]:
        """Every referenced file once, by path, whatever its clipping."""
        subtasks = (subtask for operator in self.operators for subtask in operator.keyed)
        return list({file.path: file for subtask in subtasks for file in subtask.files}.values())

    def paths(self) -> set[str]:
        return {file.path for file in self.state_files()}


def encode_metadata(metadata: CheckpointMetadata) -> bytes:
    """The bytes of ``_metadata``. Refuses references into another directory: the checkpoint would die with it."""
    for file in metadata.state_files():
        if file.root:
            raise InternalError(
                "A checkpoint refers to files of its own directory only.",
                where=f"checkpoint {metadata.checkpoint_id}",
                found=f"{file.path} in {file.root}",
            )
    return seal(MAGIC, VERSION, metadata)


def decode_metadata(location: str, content: bytes) -> CheckpointMetadata:
    """The other way; ``location`` is for the errors, which are ``CorruptFileError`` and ``RestoreError``."""
    return unseal(location, content, MAGIC, {1: _read_version_1})


def metadata_path(checkpoint_id: int) -> str:
    return f"chk-{checkpoint_id}/{FILE_NAME}"


def read_metadata(files: Files, path: str) -> CheckpointMetadata:
    """Read and verify a ``_metadata`` file; a missing one is a ``CorruptFileError``."""
    return decode_metadata(files.location(path), files.read_bytes(path))


def _read_version_1(body: bytes) -> CheckpointMetadata:
    return msgspec.json.decode(body, type=CheckpointMetadata)
