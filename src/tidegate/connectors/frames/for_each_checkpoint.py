"""A sink that hands the records of each checkpoint to a function, as a DataFrame for any writer of Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

from tidegate.base import faults
from tidegate.base.arguments import wrong
from tidegate.base.errors import CommitError, OutputLostError, ProgramError
from tidegate.base.files import Files
from tidegate.common.typeinfo import PickledBytesTypeInfo
from tidegate.connectors.frames.sources import spark_side
from tidegate.connectors.staged_file import (
    StagedFile,
    delete_lingering,
    delete_staged,
    file_at,
    number_of,
    pickles_in,
    with_numbers,
    without_done,
)
from tidegate.operators.contracts.sink import (
    Committer,
    CommitterContext,
    Prepared,
    Publication,
    Sink,
    SinkGuarantee,
    SinkWriter,
    WriterContext,
)

_ROWS, _DONE = "rows", "done"


class ForEachCheckpointSink(Sink):
    """Stage records on checkpoint storage, and call ``function(dataframe, checkpoint_id)`` when a checkpoint is complete.

    The function runs on the driver and gets all records since the last call. It is not called for a checkpoint without records.
    After a crash between its return and the note of its return, it is called again with the same id and the same records.
    ``idempotent`` says that such a repeated call changes nothing, for example because the function overwrites its former output.
    """

    publication = Publication.CHECKPOINT
    marks_checkpoints = True
    to_raise = "for_each_checkpoint(..., idempotent=True), if writing the same id again changes nothing"

    def __init__(self, function: Callable[[Any, int], Any], type_info: Any, *, idempotent: bool = False) -> None:
        self.write, self.type_info = function, type_info
        self.guarantee = SinkGuarantee.IDEMPOTENT if idempotent else SinkGuarantee.WRITE_AHEAD

    def __getstate__(self) -> dict[str, Any]:
        """Leave the function out. Only the driver calls it, and it may hold a session or a connection."""
        return {**self.__dict__, "write": None}

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return _FrameWriter(context)

    def create_committer(self, context: CommitterContext) -> Committer:
        return _FrameCommitter(self, context)


def for_each_checkpoint(function: Callable[[Any, int], Any], type_info: Any, *, idempotent: bool) -> Sink:
    """Check the arguments of ``DataStream.for_each_checkpoint`` and make its sink."""
    if not callable(function):
        raise wrong("for_each_checkpoint", "a function of a DataFrame and an id", function, "def write(frame, id): ...")
    if type_info is None or isinstance(type_info, PickledBytesTypeInfo):
        raise ProgramError(
            "for_each_checkpoint needs the type of its records to make columns of them",
            where="for_each_checkpoint",
            found="a stream without a declared type",
            cure="add map(..., output_type=Types.ROW_NAMED(...)) before it",
        )
    return ForEachCheckpointSink(function, type_info, idempotent=idempotent)


class _FrameWriter(SinkWriter):
    def __init__(self, context: WriterContext) -> None:
        self._context, self._file = context, StagedFile(context, _ROWS)

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        if values:
            self._file.write(pickle.dumps(list(values), 5))

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        """Return a committable with every checkpoint, also without records: earlier rounds are committed under its id."""
        context = self._context
        staged: dict[str, Any] = {"file": None, "checkpoint": number_of(context), "round": context.round}
        if self._file.has_content:
            staged["file"] = self._file.finish()[0]
        elif context.checkpoint_id is None or context.publishes:
            return Prepared()
        return Prepared([staged])

    def abort(self) -> None:
        self._file.drop()


class _FrameCommitter(Committer):
    def __init__(self, sink: ForEachCheckpointSink, context: CommitterContext) -> None:
        self._sink, self._context, self._files = sink, context, Files(context.staging)

    def commit(self, committables: list[Any]) -> None:
        numbered = [(number, item) for number, item in with_numbers(committables) if item["file"] is not None]
        if not numbered:
            return
        number = max(number for number, _ in numbered)
        last = self._last_before(number)
        files = [item["file"] for item in without_done(last, numbered)]
        if not self._is_done(number, files):
            self._check_exist(files)
            faults.point("K3.for-each.before-commit", checkpoint=number)
            self._call(files, number)
            faults.point("K3.for-each.committed", checkpoint=number)
            self._files.replace(_note(number), json.dumps({"files": files, "last": last}).encode())
        self._delete_notes_before(number)

    def _is_done(self, number: int, files: list[str]) -> bool:
        """Checkpoints are committed in order, so the note of a later checkpoint counts too."""
        notes = self._notes()
        if notes and notes[-1] > _note(number):
            return True
        return _note(number) in notes and set(files) <= set(self._read(_note(number))["files"])

    def _notes(self) -> list[str]:
        """List finished notes. A crash may have left a partly written one."""
        return [path for path in self._files.list(_DONE) if path.rpartition("/")[2].isdigit()]

    def _read(self, note: str) -> dict[str, Any]:
        """Read a note. The first version wrote a list of files."""
        content = json.loads(self._files.read_bytes(note))
        return content if isinstance(content, dict) else {"files": content, "last": None}

    def _last_before(self, number: int) -> int | None:
        """Return the number of the call before this one. The own note holds it after the note of that call is deleted."""
        notes = self._notes()
        if _note(number) in notes:
            return self._read(_note(number))["last"]  # type: ignore[no-any-return]
        return max((int(note.rpartition("/")[2]) for note in notes if note < _note(number)), default=None)

    def _delete_notes_before(self, number: int) -> None:
        """Delete earlier notes and their records. Those of the latest call stay: ``_is_done`` compares them."""
        for note in self._notes():
            if note < _note(number):
                _delete(self._read(note)["files"])
                self._files.delete(note)

    def _call(self, files: list[str], number: int) -> None:
        try:
            frame = dataframe_of(files, self._sink.type_info)
            self._sink.write(frame, number)
        except Exception as error:
            raise CommitError(
                "The function of for_each_checkpoint failed to write the records of a completed checkpoint",
                where=f"for_each_checkpoint, checkpoint {number}",
                found=f"{type(error).__name__}: {error}",
                cure="fix the cause and start the job again: it calls the function again with the same id",
            ) from error

    def _check_exist(self, files: list[str]) -> None:
        for file in files:
            directory, name = file_at(file)
            if not directory.exists(name):
                raise OutputLostError(
                    "Records of a completed checkpoint are missing and cannot be written",
                    where="for_each_checkpoint",
                    found=f"no file {file}",
                    cure="restore an older checkpoint; find out which process deleted the file",
                )

    def abort(self, committables: list[Any]) -> None:
        _delete([item["file"] for item in committables if item["file"] is not None])

    def abort_lingering(self, committables: list[Any], states: list[Any]) -> None:
        notes = set(self._notes())
        listed = self._files.list(_ROWS) + [path for path in self._files.list(_DONE) if path not in notes]
        delete_lingering(self._context, listed, {item["file"] for item in committables}, "K2.for-each.listed")


def _note(number: int) -> str:
    return f"{_DONE}/{number:020d}"


def _delete(files: list[str]) -> None:
    for file in files:
        delete_staged(file)


def kept_records(file: str) -> Iterator[Any]:
    """Yield the records of one staged file, in a Spark task."""
    for values in pickles_in(file):
        yield from values


def dataframe_of(files: list[str], type_info: Any) -> Any:
    return spark_side("records")(files, type_info)
