"""The writer of the file sink: it writes the records of one round and subtask into hidden files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidegate.base import faults
from tidegate.base.errors import ProgramError, StorageError
from tidegate.base.files import Files, FileWriter
from tidegate.base.hashing import new_token
from tidegate.common.serialization import BulkWriterFactory
from tidegate.connectors.files.bucket_assigners import BucketAssigner, RollingPolicy
from tidegate.connectors.files.file_format import SINK, join
from tidegate.connectors.files.parts import (
    Compaction,
    Fragment,
    HiddenNames,
    Part,
    Unmarked,
    assemble,
    concatenate,
    framed,
    full_levels,
)
from tidegate.connectors.functions.function_sink import SinkContext
from tidegate.operators.contracts.arrow_batch import ArrowBatch
from tidegate.operators.contracts.sink import Prepared, SinkWriter, WriterContext

EncodeBatch = Callable[[list[Any]], bytes]


@dataclass(frozen=True)
class FileSinkSettings:
    """Settings of a file sink. ``encoder`` is the encoder of a row format, or the ``BulkWriterFactory`` of a bulk format."""

    base_path: str
    encoder: Any
    policy: RollingPolicy
    assigner: BucketAssigner
    prefix: str
    suffix: str
    compaction: Compaction | None = None
    marks_success: bool = False


@dataclass
class _Open:
    """A part that is being written, and the stream of this attempt's fragment."""

    part: Part
    stream: FileWriter | None = None


class FileSinkWriter(SinkWriter):
    """Continue the parts of the last round. Hand on finished parts as committables, and the others as state."""

    def __init__(self, settings: FileSinkSettings, context: WriterContext, state: list[Any]) -> None:
        self._settings, self._context = settings, context
        self._encode = batch_encoder(settings.encoder)
        self._names = HiddenNames(context.job_id, context.sink_id, context.staging, context.attempt)
        self._uid = new_token()  # new, so no earlier attempt can have committed a file of this name
        self._counter = 0
        self._open: dict[str, _Open] = {}
        self._idle: list[Part] = []
        self._rolled: list[Part] = []
        self._created: dict[str, list[str]] = {}
        self._bucket_context = SinkContext(context.now_ms)
        self._common_bucket = settings.assigner.common_bucket(context.now_ms)
        self._unmarked = Unmarked(settings.assigner, context, state) if settings.marks_success else None
        for fields in (fields for entry in state for fields in entry["parts"]):
            self._adopt(Part.from_state(fields, self._new_target()))

    def _adopt(self, part: Part) -> None:
        if self._unmarked is not None:
            self._unmarked.written(part.directory, part.bucket, part.updated_ms)
        # After a rescale a bucket may have parts of several former subtasks: one continues, the others wait for their roll.
        if part.bucket in self._open:
            self._idle.append(part)
        else:
            self._open[part.bucket] = _Open(part)

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        if not values:
            return
        if self._common_bucket is not None:
            self._write(self._common_bucket, values)
            return
        rows: dict[str, list[Any]] = {}
        context, bucket_of = self._bucket_context, self._settings.assigner.get_bucket_id
        for index, value in enumerate(values):
            bucket = bucket_of(value, context.at(timestamps[index] if timestamps else None))
            rows.setdefault(bucket, []).append(value)
        for bucket, group in rows.items():
            self._write(bucket, group)

    def write_columns(self, batch: ArrowBatch) -> bool:
        encoder, bucket = self._settings.encoder, self._common_bucket
        if bucket is None or not isinstance(encoder, BulkWriterFactory):
            return False
        packed = encoder.pack_columns(batch.arrow, batch.layout.info)
        if packed is None:
            return False
        data, current = framed(packed), self._current(bucket)
        if len(data) > self._settings.policy.free_bytes(current.part.info().size):
            return False
        self._append(current, data)
        return True

    def _write(self, bucket: str, values: list[Any]) -> None:
        policy = self._settings.policy
        data = self._encode(values)
        current = self._current(bucket)
        if len(data) <= policy.free_bytes(current.part.info().size):
            self._append(current, data)
            return
        for value in values:
            part = current.part
            if part.fragments and policy.should_roll_on_event(part.info()) and self._is_finished(part):
                self._roll(bucket)
                current = self._current(bucket)
            self._append(current, self._encode([value]))

    def _current(self, bucket: str) -> _Open:
        current = self._open.get(bucket)
        if current is None:
            now, directory = self._context.now_ms, bucket_directory(self._settings.base_path, bucket)
            current = self._open[bucket] = _Open(Part(bucket, directory, self._new_target(), now, now))
        return current

    def _new_target(self) -> str:
        name = f"{self._settings.prefix}-{self._uid}-{self._counter}{self._settings.suffix}"
        self._counter += 1
        return name

    def _append(self, current: _Open, data: bytes) -> None:
        part, compaction = current.part, self._settings.compaction
        if compaction is not None and part.counted and part.counted == part.size:
            data = compaction.delimiter + data
        if current.stream is None:
            fragment = Fragment(self._hidden(part), 0, named=False)
            # at once under its own name, which is hidden and used by no other attempt
            current.stream = Files(part.directory, SINK).create_stream(fragment.name, aside=False)
            part.fragments.append(fragment)
        current.stream.write(data)
        part.fragments[-1].size += len(data)
        part.updated_ms = self._context.now_ms
        if self._unmarked is not None:
            self._unmarked.written(part.directory, part.bucket, part.updated_ms)

    def _hidden(self, part: Part) -> str:
        name = self._names.new(part.target)
        self._created.setdefault(part.directory, []).append(name)
        return name

    def _roll(self, bucket: str) -> None:
        current = self._open.pop(bucket)
        self._finish_stream(current)
        self._rolled.append(current.part)

    def _finish_stream(self, current: _Open) -> None:
        if current.stream is not None:
            stream, current.stream = current.stream, None
            stream.close()

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        """Step 5: make everything durable under hidden names."""
        faults.point("K1.file-sink.flush", subtask=self._context.subtask, round=self._context.round)
        unfinished: list[Part] = []
        for current in self._open.values():
            self._finish_stream(current)
        for part in [*(current.part for current in self._open.values()), *self._idle]:
            (self._rolled if self._rolls(part, end_of_input) else unfinished).append(part)
        committables = [self._finish(part) for part in self._rolled]
        for part in unfinished:
            self._take_over(part)
        committables += [merge for part in unfinished if (merge := self._merge(part))]
        faults.point("K1.file-sink.flushed", subtask=self._context.subtask, round=self._context.round)
        if self._unmarked is not None:
            committables += self._unmarked.report(end_of_input)
        return Prepared(committables, self._state(unfinished))

    def _rolls(self, part: Part, end_of_input: bool) -> bool:
        if end_of_input or self._context.savepoint or self._context.publishes:
            return True
        if self._unmarked is not None and self._unmarked.is_over(part.directory):
            return True
        at_checkpoint = self._context.checkpoint_id is not None
        part.checkpoints += at_checkpoint and self._settings.compaction is not None
        policy, info = self._settings.policy, part.info()
        by_time = policy.should_roll_on_processing_time(info, self._context.now_ms)
        return (by_time or (at_checkpoint and policy.should_roll_on_checkpoint(info))) and self._is_finished(part)

    def _is_finished(self, part: Part) -> bool:
        """Return whether a part that should end now is large enough for a file. If not, it continues as if a new one began."""
        compaction = self._settings.compaction
        if compaction is None or compaction.strategy.is_enough(part.size, part.checkpoints):
            return True
        part.counted, part.created_ms = part.size, self._context.now_ms
        return False

    def _finish(self, part: Part) -> dict[str, Any]:
        if isinstance(self._settings.encoder, BulkWriterFactory):
            whole = assemble(part.directory, part.fragments, self._hidden(part), self._settings.encoder)
            return self._committable(part, whole, part.fragments, part.target)
        if len(part.fragments) == 1 and not part.fragments[0].named:
            return self._committable(part, part.fragments[0], [], part.target)
        whole = concatenate(part.directory, part.fragments, self._hidden(part))
        return self._committable(part, whole, part.fragments, part.target)

    def _take_over(self, part: Part) -> None:
        """Copy fragments of another job after a restore. That job may finish the part too, and then deletes its files."""
        count = sum(not self._names.owns(fragment.name) for fragment in part.fragments)
        if count:  # restored fragments come before those of this attempt
            part.fragments[:count] = [concatenate(part.directory, part.fragments[:count], self._hidden(part))]

    def _merge(self, part: Part) -> dict[str, Any] | None:
        count = full_levels(part.fragments)
        if not count:
            return None
        obsolete = part.fragments[-count:]
        merged = concatenate(part.directory, obsolete, self._hidden(part))
        part.fragments[-count:] = [merged]
        return self._committable(part, merged, obsolete, None)

    def _committable(self, part: Part, file: Fragment, obsolete: list[Fragment], target: str | None) -> dict[str, Any]:
        """Describe a file to publish, or (``target`` None) a merged fragment.

        The commit deletes ``obsolete`` fragments, and those of them in ``named`` only when no checkpoint of this job names them any
        more. An abort may delete ``created`` only: fragments of earlier rounds belong to the accepted state of those rounds.
        """
        own = [fragment for fragment in obsolete if self._names.owns(fragment.name)]
        old = [fragment.name for fragment in own]
        mine = self._created.get(part.directory, [])
        return {
            "directory": part.directory,
            "hidden": file.name,
            "target": target,
            "size": file.size,
            "obsolete": old,
            "named": [fragment.name for fragment in own if fragment.named],
            "created": [name for name in [file.name, *old] if name in mine],
        }

    def _state(self, parts: list[Part]) -> list[Any]:
        """Return unfinished parts and buckets without a marker. Without both the state is empty, and an idle job needs no
        checkpoints.
        """
        if self._context.checkpoint_id is not None:
            for fragment in (fragment for part in parts for fragment in part.fragments):
                fragment.named = True
        unmarked = [] if self._unmarked is None else self._unmarked.to_state()
        if not (parts or unmarked):
            return []
        return [{"parts": [part.to_state() for part in parts], **({"unmarked": unmarked} if unmarked else {})}]

    def abort(self) -> None:
        for current in self._open.values():
            if current.stream is not None:
                with contextlib.suppress(StorageError):  # deleted below
                    current.stream.discard()
        for directory, names in self._created.items():
            files = Files(directory, SINK)
            for name in names:
                files.delete(name)


def bucket_directory(base_path: str, bucket: str) -> str:
    if not isinstance(bucket, str) or bucket.startswith("/") or ".." in bucket.split("/"):
        raise ProgramError(
            "A bucket assigner returned an invalid bucket id",
            where=f"bucket assigner of the file sink at {base_path}",
            found=repr(bucket),
            cure="return a path below the sink's path: a str without '..' and without a leading '/'",
        )
    return join(base_path, bucket)


def batch_encoder(encoder: Any) -> EncodeBatch:
    """Return the function that encodes a batch.

    It makes frames of a bulk format, or calls ``encode_batch(values)`` of the encoder, or ``encode(value)`` with a newline after
    each row.
    """
    if isinstance(encoder, BulkWriterFactory):
        return lambda values: framed(encoder.pack(values))
    encode_batch = getattr(encoder, "encode_batch", None)
    if encode_batch is not None:
        return encode_batch  # type: ignore[no-any-return]
    encode = encoder.encode

    def rows(values: list[Any]) -> bytes:
        return b"".join([encode(value) + b"\n" for value in values])

    return rows
