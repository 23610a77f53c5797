"""Commands as files: for a driver that cannot be reached. The driver takes them within about a second.

A command is a file in ``control/<run>/in``, its answer a file of the same name in ``control/<run>/out``. Both are signed with the
driver's token (HMAC), which never leaves TIDEGATE_HOME: whoever may write to the storage, but has no token, gives no commands
and no answers.

**Looking for commands costs one read a second**, of a file that is usually missing: ``bell``. A client writes its command first
and rings afterwards (writes the bell). The driver deletes the bell first and lists the commands afterwards. So a command that was
written before the bell was deleted is in that list, and any later command has a bell of its own. No command is missed. One read
a second is one call of an HDFS name node, which answers ten thousands of them; on S3 it is a GET, a dollar a month.

**The order of steps.** Client: (1) write the command, complete or not at all; (2) ring; (3) wait for the answer. Driver: (a) delete
the bell; (b) list, read, verify; (c) note the id in memory; (d) begin; (e) write the answer "running"; (f) delete the command;
(g) at the end, write the answer. A command is carried out at most once:

- The driver may see a command again, because (f) failed or somebody has put a copy back. The id is noted, so nothing begins.
- The driver dies after (c): the next driver is another run. It reads only ``control/<its run>``, and the run is part of what is
  signed, so a copy in its directory is refused. The client sees that its run is over, and says that nobody knows whether the
  command was carried out. It is not repeated: a second stop could end a job that the user has started again meanwhile.
- The driver dies before (c): the same, and nothing was carried out.
- The driver hangs: the client deletes its command and gives up. A copy that the driver has read is too old by then: (b) refuses a
  command after ``LIFETIME_MS``.
- A driver that has lost its lease: clients write to the run that holds the lease, so it sees no commands. If it takes one that was
  written a moment before, the job's thread finds the newer lease before anything visible happens (``checkpoint/lease.py``).
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tidegate.base import faults
from tidegate.base.errors import (
    DriverDiedError,
    StorageError,
    TidegateError,
    UnreachableError,
)
from tidegate.base.files import Files
from tidegate.base.hashing import new_token
from tidegate.control.messages import (
    CancelRequest,
    Code,
    Operation,
    OperationStatus,
    Problem,
    SavepointRequest,
    StopRequest,
)
from tidegate.control.place import DIRECTORY, JobPlace
from tidegate.control.registry import DriverLife, JobRecord

if TYPE_CHECKING:
    from tidegate.control.jobs import JobDetails

log = logging.getLogger(__name__)

VERSION = 1
LIFETIME_MS = 120_000
LOOK_S = 1.0
"""How often a driver looks for commands."""
_LARGEST = 64 << 10
_ANSWERS_KEPT_S = 600
_COMMAND, _ANSWER = b"tidegate-command-1\n", b"tidegate-answer-1\n"
REQUESTS: dict[str, type[msgspec.Struct] | None] = {
    "checkpoints": None,
    "savepoints": SavepointRequest,
    "stop": StopRequest,
    "cancel": CancelRequest,
    "details": None,
}


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """A command. ``request`` is its body as JSON. ``run`` binds it to one run of one driver. ``id`` is its name."""

    version: int = VERSION
    id: str
    job_id: str
    run: str
    command: str
    request: str = "{}"
    sent_ms: int


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a letter so far: an operation, a problem, or what was asked for."""

    version: int = VERSION
    id: str
    operation: Operation | None = None
    problem: Problem | None = None
    details: str | None = None

    @property
    def is_final(self) -> bool:
        return self.operation is None or self.operation.status is not OperationStatus.RUNNING


class _Sealed(msgspec.Struct, frozen=True):
    content: str
    signature: str


def seal(token: str, context: bytes, content: msgspec.Struct) -> bytes:
    text = msgspec.json.encode(content)
    return msgspec.json.encode(_Sealed(text.decode(), _signature(token, context, text)))


def opened(token: str, context: bytes, sealed: bytes, kind: type[Any]) -> Any:
    """Return the content, or None if the token has not signed it."""
    try:
        found = msgspec.json.decode(sealed, type=_Sealed)
        text = found.content.encode()
        if not hmac.compare_digest(_signature(token, context, text), found.signature):
            return None
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeError, TypeError, RecursionError):
        return None


def _signature(token: str, context: bytes, text: bytes) -> str:
    return hmac.new(token.encode(), context + text, hashlib.sha256).hexdigest()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Taking(Protocol):
    """The job of this process, as commands reach it (``process_jobs.ProcessJob``)."""

    def begin(self, command: str, request: msgspec.Struct | None = None) -> Operation: ...

    def operation(self, id: str, wait_s: float = 0.0) -> Operation | None: ...


# -- the driver ----------------------------------------------------------------------------------------------------------------


class Letters:
    """The driver's side, for one run. ``look`` is called about every ``LOOK_S``, by one thread."""

    def __init__(
        self,
        files: Files,
        record: JobRecord,
        token: str,
        job: Taking,
        details: Callable[[], Any],
        now_ms: Callable[[], int] = _now_ms,
    ) -> None:
        self._files, self._token, self._job, self._details, self._now_ms = files, token, job, details, now_ms
        self._job_id, self._run = record.job_id, record.run
        self._at = f"{DIRECTORY}/{record.run}"
        self._rung = False
        self._known: set[str] = set()
        self._open: dict[str, Operation] = {}
        self._answered: dict[str, int] = {}

    def look(self) -> None:
        """Take the commands that were written since the last call, and answer those that have ended."""
        if self._files.read_if_exists(f"{self._at}/bell") is not None:
            self._rung = True
            self._files.delete(f"{self._at}/bell")
            faults.point("letters.rung", run=self._run)
        try:
            if self._rung:
                self._take_all()
        finally:
            self.answer_ended()
        self._forget_old()

    def _take_all(self) -> None:
        """Take every command. Storage that fails once must not cost a command whose bell is gone: it is looked for again.
        One that cannot be read or deleted keeps no other from being taken."""
        failed: StorageError | None = None
        for name in self._files.list_names(f"{self._at}/in"):
            if name.endswith(".json") and not name.startswith("."):
                try:
                    self._take(name.removesuffix(".json"))
                except StorageError as error:
                    failed = error
        if failed is not None:
            raise failed
        self._rung = False

    def answer_ended(self) -> None:
        """Write the answers of operations that have ended. Call it a last time when the job has ended."""
        for id, begun in list(self._open.items()):
            operation = self._job.operation(begun.id) or begun
            if operation.status is not OperationStatus.RUNNING:
                self._answer(Reply(id=id, operation=operation))
                del self._open[id]

    def _take(self, id: str) -> None:
        path = f"{self._at}/in/{id}.json"
        if id not in self._known:
            faults.point("letters.taken", id=id)
            reply = self._reply(id, self._content(path))
            faults.point("letters.begun", id=id)
            if reply is not None:
                self._answer(reply)
        self._files.delete(path)

    def _content(self, path: str) -> bytes:
        size = self._files.size_if_exists(path)
        return b"" if size is None or size > _LARGEST else self._files.read_if_exists(path) or b""

    def _reply(self, id: str, sealed: bytes) -> Reply | None:
        letter = opened(self._token, _COMMAND, sealed, Letter)
        if letter is None or (letter.id, letter.job_id, letter.run) != (id, self._job_id, self._run):
            log.warning(
                "job %s: a command in %s is not signed with the job's token, and is deleted", self._job_id, self._at
            )
            return Reply(
                id=id, problem=Problem(Code.UNAUTHORIZED, "The command is not signed with the token of the driver")
            )
        self._known.add(id)
        if abs(self._now_ms() - letter.sent_ms) > LIFETIME_MS:
            late = (
                f"The command was sent {(self._now_ms() - letter.sent_ms) / 1000:.0f} s ago by the clock of its sender"
            )
            return Reply(id=id, problem=Problem(Code.REFUSED, f"{late}. Send it again, and compare the clocks"))
        return self._begun(letter)

    def _begun(self, letter: Letter) -> Reply:
        from tidegate.control.jobs import problem_of

        try:
            if letter.command == "details":
                return Reply(id=letter.id, details=msgspec.json.encode(self._details()).decode())
            kind = REQUESTS[letter.command]
            request = None if kind is None else msgspec.json.decode(letter.request, type=kind)
            operation = self._job.begin(letter.command, request)
        except (KeyError, msgspec.MsgspecError) as error:
            return Reply(
                id=letter.id, problem=Problem(Code.BAD_REQUEST, f"The driver does not know this command: {error}")
            )
        except TidegateError as error:
            return Reply(id=letter.id, problem=problem_of(error))
        self._open[letter.id] = operation
        return Reply(id=letter.id, operation=operation)

    def _answer(self, reply: Reply) -> None:
        self._files.replace(f"{self._at}/out/{reply.id}.json", seal(self._token, _ANSWER, reply))
        self._answered[reply.id] = self._now_ms()

    def _forget_old(self) -> None:
        """Delete answers that nobody has fetched. Clients delete those that they have read."""
        for id, at in list(self._answered.items()):
            if id not in self._open and self._now_ms() - at > _ANSWERS_KEPT_S * 1000:
                self._files.delete(f"{self._at}/out/{id}.json")
                del self._answered[id]


class LetterBox(threading.Thread):
    """Keeps the record of a run in the job's directory, and looks for commands, until ``close``. It is a thread beside the job, so
    storage that hangs does not slow the job."""

    def __init__(self, place: JobPlace, record: JobRecord, every_s: float = LOOK_S) -> None:
        super().__init__(name=f"tidegate-letters-{record.job_id}", daemon=True)
        self.place, self._every_s = place, every_s
        self._record = record
        self._written: JobRecord | None = None
        self._letters: Letters | None = None
        self._over = threading.Event()
        self._last_try = threading.Event()
        self._failing: set[str] = set()

    def show(self, record: JobRecord) -> None:
        """Let the job's directory hold this record, within about ``every_s``."""
        self._record = record

    def take(self, letters: Letters) -> None:
        """Look for commands from now on."""
        self._letters = letters

    def close(self, patience_s: float) -> None:
        """Answer the operations that have ended with the job, and write the last record. Storage that fails is tried again for half
        of the patience: nobody else knows the answers."""
        self._over.set()
        self.join(patience_s / 2)
        self._last_try.set()
        self.join(patience_s / 2)

    def run(self) -> None:
        self._try(lambda: self.place.forget_others(self._record))
        while not self._over.is_set():
            self._try(self._write)
            if self._letters is not None:
                self._try(self._letters.look)
            self._over.wait(self._every_s)
        while not self._has_said_all():
            self._last_try.wait(self._every_s)

    def _has_said_all(self) -> bool:
        """Write the answers, then the record: who reads in the record that the job has ended finds its answer, or there is none.
        The last try writes the record in any case."""
        is_last = self._last_try.is_set()
        is_answered = self._letters is None or self._try(self._letters.answer_ended)
        return ((is_answered or is_last) and self._try(self._write)) or is_last

    def _write(self) -> None:
        record = self._record
        if record != self._written:
            self.place.write(record)
            self._written = record

    def _try(self, step: Callable[[], None]) -> bool:
        try:
            step()
        except Exception as error:
            if step.__qualname__ not in self._failing:
                log.warning("the job's directory cannot be read or written for commands, retrying: %s", error)
            self._failing.add(step.__qualname__)
            return False
        self._failing.discard(step.__qualname__)
        return True


# -- the client ----------------------------------------------------------------------------------------------------------------

_TAKEN_S = 60.0
_POLL_S = 0.3
_LOOK_AT_DRIVER_S = 3.0


class PostedDriver:
    """The client's side, with the methods of ``client.DriverClient``: for a driver on another host."""

    def __init__(self, record: JobRecord, token: str, *, taken_s: float = _TAKEN_S) -> None:
        self.record, self._token, self._taken_s = record, token, taken_s
        self._place = JobPlace(record.place or "")
        self._files = self._place.files
        self._at = f"{DIRECTORY}/{record.run}"
        self._letter = ""

    def begin(self, command: str, body: msgspec.Struct | None = None) -> Operation:
        reply = self._ask(command, body)
        assert reply.operation is not None
        return reply.operation

    def details(self) -> JobDetails:
        from tidegate.control.jobs import JobDetails

        reply = self._ask("details", None)
        return msgspec.json.decode(reply.details or "", type=JobDetails)

    def wait(self, begun: Operation, show: Callable[[float], None] = lambda seconds: None) -> Operation:
        """Wait until the operation has ended. The driver may end first."""
        from tidegate.control.client import raise_problem

        started = looked = read = time.monotonic()
        operation = begun
        while operation.status is OperationStatus.RUNNING:
            show(time.monotonic() - started)
            time.sleep(_POLL_S)
            try:
                reply = self._answer()
                if reply is not None and reply.operation is not None:
                    operation = reply.operation
                if operation.status is OperationStatus.RUNNING and time.monotonic() - looked > _LOOK_AT_DRIVER_S:
                    looked, operation = time.monotonic(), self._ended(begun) or operation
                read = time.monotonic()
            except StorageError:  # for a moment: the operation is under way, and its answer will be there
                if time.monotonic() - read > self._taken_s:
                    raise
        self._forget()
        if operation.problem is not None:
            raise_problem(operation.problem)
        return operation

    def _ask(self, command: str, body: msgspec.Struct | None) -> Reply:
        """Write the command, ring, and wait until the driver has taken it."""
        from tidegate.control.client import raise_problem

        self._letter = f"{_now_ms():014d}-{new_token()}"
        letter = Letter(
            id=self._letter,
            job_id=self.record.job_id,
            run=self.record.run,
            command=command,
            request="{}" if body is None else msgspec.json.encode(body).decode(),
            sent_ms=_now_ms(),
        )
        path = f"{self._at}/in/{self._letter}.json"
        try:
            self._files.publish(path, seal(self._token, _COMMAND, letter))
            self._files.replace(f"{self._at}/bell", b"1")
        except StorageError:
            self._withdraw(path)
            raise
        reply = self._taken(path)
        if reply.problem is not None:
            self._forget()
            raise_problem(reply.problem)
        if reply.is_final:
            self._forget()
        return reply

    def _taken(self, path: str) -> Reply:
        started = looked = time.monotonic()
        while True:
            found = "although the driver is not known to be dead"
            try:
                if (reply := self._answer()) is not None:
                    return reply
                if time.monotonic() - looked > _LOOK_AT_DRIVER_S:
                    looked = time.monotonic()
                    self._ended(None)
            except StorageError as error:  # the driver may have the command already: storage is asked again
                found = f"and the storage does not answer: {error}"
            except TidegateError:
                self._withdraw(path)
                raise
            if time.monotonic() - started > self._taken_s:
                self._withdraw(path)
                raise UnreachableError(
                    "The driver of the job takes no commands from its directory",
                    where=f"job {self.record.job_id}, {self.record.owner}, {self._files.location(self._at)}",
                    found=f"no answer after {self._taken_s:.0f} s, {found}",
                    cure="look at the job (tidegate info) before you try again; see the driver's log (tidegate logs)",
                )
            time.sleep(_POLL_S)

    def _withdraw(self, path: str) -> None:
        """Delete the command, so that nobody finds it later. If that fails, the driver refuses the command when it is too old."""
        try:
            self._files.delete(path)
        except StorageError as error:
            log.debug("the command is not deleted: %s", error)

    def _answer(self) -> Reply | None:
        content = self._files.read_if_exists(f"{self._at}/out/{self._letter}.json")
        if content is None:
            return None
        reply: Reply | None = opened(self._token, _ANSWER, content, Reply)
        if reply is None or reply.id != self._letter:
            raise UnreachableError(
                "The answer in the job's directory is not signed with the token of this TIDEGATE_HOME",
                where=self._files.location(f"{self._at}/out/{self._letter}.json"),
                found="a signature of another token",
                cure="run the command with the TIDEGATE_HOME from which the job was started",
            )
        return reply

    def _ended(self, begun: Operation | None) -> Operation | None:
        """Return the last answer of a driver that has ended. Raise if it will never answer. None: it still runs, or has answered.

        Only answers are believed, which are signed: whoever may write to the storage could have written the record.
        """
        from tidegate.control.client import over

        newest = self._place.newest()
        own = self._place.read(self.record.run)
        reply = self._answer()  # after the record: a driver that ends writes its answers before
        if reply is not None and begun is None:
            return None
        if reply is not None and reply.is_final and reply.operation is not None:
            return reply.operation
        if own is not None and own.has_ended:
            raise over(own)
        if newest is not None and newest.run != self.record.run:
            raise DriverDiedError(
                "The driver of the job was replaced while the command was under way",
                where=f"job {self.record.job_id}, {self.record.owner}",
                found=f"{newest.owner} runs the job now; it is not known whether the command was carried out",
                cure="look at the job (tidegate info), and send the command again if it is still needed",
            )
        if newest is not None and newest.life() is DriverLife.DIED:
            raise over(newest)
        return None

    def _forget(self) -> None:
        try:
            self._files.delete(f"{self._at}/out/{self._letter}.json")
        except StorageError as error:
            log.debug("the answer is not deleted: %s", error)
