"""The records of each checkpoint as a DataFrame, for any writer of Spark's."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

from tidegate.base import faults
from tidegate.base.arguments import wrong
from tidegate.base.errors import CommitError, OutputLostError, ProgramError
from tidegate.base.files import Files
from tidegate.base.pickling import load_stored_from
from tidegate.common.typeinfo import PickledBytesTypeInfo
from tidegate.connectors.frames.spark_rows import spark_side
from tidegate.connectors.functions.numbered import behind, number_of, with_numbers
from tidegate.connectors.staged_file import StagedFile
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
    """Records are kept on checkpoint storage; when a checkpoint is complete ``function(dataframe, checkpoint_id)`` is called on the
    driver with all that came since the last one. Not called for a checkpoint without records.

    After a crash between its return and the note of it, it is called again with the same id and the same records. ``idempotent``:
    it then changes nothing (it overwrites what it wrote under that id, say).
    """

    publication = Publication.CHECKPOINT
    marks_checkpoints = True
    to_raise = "for_each_checkpoint(..., idempotent=True), if writing the same id again changes nothing"

    def __init__(self, function: Callable[[Any, int], Any], type_info: Any, *, idempotent: bool = False) -> None:
        self.write, self.type_info = function, type_info
        self.guarantee = SinkGuarantee.IDEMPOTENT if idempotent else SinkGuarantee.WRITE_AHEAD

    def __getstate__(self) -> dict[str, Any]:
        """The function is called on the driver only, and may hold what no task can have: the session, a connection."""
        return {**self.__dict__, "write": None}

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return _KeepingWriter(context)

    def create_committer(self, context: CommitterContext) -> Committer:
        return _FrameCommitter(self, context)


def for_each_checkpoint(function: Callable[[Any, int], Any], type_info: Any, *, idempotent: bool) -> Sink:
    """What ``DataStream.for_each_checkpoint`` adds."""
    if not callable(function):
        raise wrong("for_each_checkpoint", "a function of a DataFrame and an id", function, "def write(frame, id): ...")
    if type_info is None or isinstance(type_info, PickledBytesTypeInfo):
        raise ProgramError(
            "for_each_checkpoint needs the type of its records, which the columns are made of",
            where="for_each_checkpoint",
            found="a stream without a declared type",
            cure="map(..., output_type=Types.ROW_NAMED(...)) before it",
        )
    return ForEachCheckpointSink(function, type_info, idempotent=idempotent)


class _KeepingWriter(SinkWriter):
    def __init__(self, context: WriterContext) -> None:
        self._context, self._file = context, StagedFile(context, _ROWS)

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        if values:
            self._file.write(pickle.dumps(list(values), 5))

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        """With a checkpoint also without records: its id is the one that the records of rounds before it are written under."""
        context = self._context
        kept: dict[str, Any] = {"file": None, "checkpoint": number_of(context), "round": context.round}
        if self._file.has_content:
            kept["file"] = self._file.finish()[0]
        elif context.checkpoint_id is None or context.publishes:
            return Prepared()
        return Prepared([kept])

    def abort(self) -> None:
        self._file.drop()


class _FrameCommitter(Committer):
    def __init__(self, sink: ForEachCheckpointSink, context: CommitterContext) -> None:
        self._sink, self._context, self._files = sink, context, Files(context.staging)

    def commit(self, committables: list[Any]) -> None:
        numbered = [(number, kept) for number, kept in with_numbers(committables) if kept["file"] is not None]
        if not numbered:
            return
        number = max(number for number, _ in numbered)
        last = self._last_before(number)
        files = [kept["file"] for kept in behind(last, numbered)]
        if not self._is_done(number, files):
            self._check_there(files)
            faults.point("K3.for-each.before-commit", checkpoint=number)
            self._call(files, number)
            faults.point("K3.for-each.committed", checkpoint=number)
            self._files.replace(_note(number), json.dumps({"files": files, "last": last}).encode())
        self._forget_before(number)

    def _is_done(self, number: int, files: list[str]) -> bool:
        """Checkpoints are committed in order, so a later one says so too."""
        noted = self._notes()
        if noted and noted[-1] > _note(number):
            return True
        return _note(number) in noted and set(files) <= set(self._noted(_note(number)))

    def _notes(self) -> list[str]:
        """Not what a crash has left in the middle of writing one."""
        return [path for path in self._files.list(_DONE) if path.rpartition("/")[2].isdigit()]

    def _noted(self, note: str) -> list[str]:
        return self._read(note)["files"]  # type: ignore[no-any-return]

    def _read(self, note: str) -> dict[str, Any]:
        """Notes were lists of files once."""
        content = json.loads(self._files.read_bytes(note))
        return content if isinstance(content, dict) else {"files": content, "last": None}

    def _last_before(self, number: int) -> int | None:
        """Under which number the call before that one was. Its own note has it, the one of the call before is gone by then."""
        notes = self._notes()
        if _note(number) in notes:
            return self._read(_note(number))["last"]  # type: ignore[no-any-return]
        return max((int(note.rpartition("/")[2]) for note in notes if note < _note(number)), default=None)

    def _forget_before(self, number: int) -> None:
        """Of the latest one the records stay: whether all of them were written is decided by comparing."""
        for note in self._notes():
            if note < _note(number):
                self._delete(self._noted(note))
                self._files.delete(note)

    def _call(self, files: list[str], number: int) -> None:
        try:
            frame = dataframe_of(files, self._sink.type_info)
            self._sink.write(frame, number)
        except Exception as error:
            raise CommitError(
                "The records of a completed checkpoint must be written",
                where=f"for_each_checkpoint, checkpoint {number}",
                found=f"{type(error).__name__}: {error}",
                cure="see the cause; the job calls the function again when it is started again, with the same id",
            ) from error

    def _check_there(self, files: list[str]) -> None:
        for file in files:
            directory, _, name = file.rpartition("/")
            if not Files(directory).exists(name):
                raise OutputLostError(
                    "The records of a completed checkpoint must be written",
                    where="for_each_checkpoint",
                    found=f"no file {file}",
                    cure="restore an older checkpoint; look for who deleted the file",
                )

    def abort(self, committables: list[Any]) -> None:
        self._delete([kept["file"] for kept in committables if kept["file"] is not None])

    def _delete(self, files: list[str]) -> None:
        for file in files:
            directory, _, name = file.rpartition("/")
            Files(directory).delete(name)

    def abort_lingering(self, committables: list[Any], states: list[Any]) -> None:
        wanted = {kept["file"] for kept in committables}
        notes = set(self._notes())
        listed = self._files.list(_ROWS) + [path for path in self._files.list(_DONE) if path not in notes]
        faults.point("K2.for-each.listed", files=len(listed))
        self._context.check_lease()
        for path in listed:
            if self._files.location(path) not in wanted:
                self._files.delete(path)


def _note(number: int) -> str:
    return f"{_DONE}/{number:020d}"


def kept_records(file: str) -> Iterator[Any]:
    """In a task of Spark's: the records of one file."""
    directory, _, name = file.rpartition("/")
    with Files(directory).open_stream(name) as stream:
        while True:
            try:
                yield from load_stored_from(stream)
            except EOFError:
                return


def dataframe_of(files: list[str], type_info: Any) -> Any:
    return spark_side("records")(files, type_info)
