"""Commands as files: taken once, by the run that they were written for, if the token has signed them. Wherever a driver dies."""

from __future__ import annotations

import shutil
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.control.drivers import Driver
from tests.waiting import eventually
from tidegate.base import faults
from tidegate.base.errors import (
    ConfigurationError,
    DriverDiedError,
    JobOverError,
    RefusedError,
    StorageError,
    UnknownJobError,
    UnreachableError,
)
from tidegate.base.files import Files
from tidegate.checkpoint.owner import this_process
from tidegate.control import letters, registry
from tidegate.control.client import DriverClient, driver_of, find
from tidegate.control.letters import LIFETIME_MS, Letter, LetterBox, Letters, PostedDriver, Reply, seal
from tidegate.control.messages import CancelRequest, Operation, OperationStatus, SavepointRequest, StopRequest
from tidegate.control.place import JobPlace, job_at, jobs_below
from tidegate.control.registry import JobRecord, keep_token, read_token, token_name

ALWAYS = {"tidegate.control.in-checkpoint-dir": "always"}
TOKEN = "t" * 43
Start = Callable[..., Driver]


class Taking:
    """A job that notes what it is told. Operations end when the test says so."""

    def __init__(self) -> None:
        self.told: list[tuple[str, msgspec.Struct | None]] = []
        self.operations: dict[str, Operation] = {}

    def begin(self, command: str, request: msgspec.Struct | None = None) -> Operation:
        if command == "stop":
            raise RefusedError("The job cannot stop", found="a source")
        self.told.append((command, request))
        operation = Operation(id=str(len(self.told)), kind=command, status=OperationStatus.RUNNING, started_ms=1)
        self.operations[operation.id] = operation
        return operation

    def operation(self, id: str, wait_s: float = 0.0) -> Operation | None:
        return self.operations.get(id)

    def ends(self, result: str) -> None:
        for id, running in self.operations.items():
            done = msgspec.structs.replace(running, status=OperationStatus.SUCCEEDED, ended_ms=2, result=result)
            self.operations[id] = done


class Here:
    """A driver's side and a client's side, in one directory. Every poll of the client lets the driver look."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = JobPlace(str(directory / "job"))
        self.job = Taking()
        self.now_ms = letters._now_ms()
        self.record = record(self.place.address)
        self.place.write(self.record)
        self.letters = self.driver(self.record)
        self.box = LetterBox(self.place, self.record)
        self.looks = True
        monkeypatch.setattr(time, "sleep", self._pause)
        monkeypatch.setattr(letters, "_now_ms", lambda: self.now_ms)
        monkeypatch.setattr(letters, "_LOOK_AT_DRIVER_S", 0.0)

    def driver(self, of: JobRecord, token: str = TOKEN) -> Letters:
        return Letters(self.place.files, of, token, self.job, dict, lambda: self.now_ms)

    def client(self, token: str = TOKEN, taken_s: float = 60.0) -> PostedDriver:
        return PostedDriver(self.record, token, taken_s=taken_s)

    def _pause(self, seconds: float) -> None:
        if self.looks:
            self.letters.look()

    def files(self) -> list[str]:
        return [path for path in self.place.files.list("control") if not path.endswith(f"{self.record.run}.json")]


def record(place: str, **changes: Any) -> JobRecord:
    made = JobRecord(
        run=registry.new_run(),
        job_id="job",
        name="n",
        program="/p.py",
        owner=this_process(),
        started_ms=1,
        state="RUNNING",
        driver="given-x",
        place=place,
    )
    return msgspec.structs.replace(made, **changes)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    return Here(tmp_path, monkeypatch)


def test_command_is_taken_once_and_leaves_no_file(here: Here) -> None:
    client = here.client()
    begun = client.begin("savepoints", SavepointRequest(target="/sp"))
    assert begun.status is OperationStatus.RUNNING
    here.job.ends("/sp/savepoint-1")
    assert client.wait(begun).result == "/sp/savepoint-1"
    assert here.job.told == [("savepoints", SavepointRequest(target="/sp"))]
    assert here.files() == []


def test_driver_reads_one_file_while_nobody_rings(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("read_if_exists", "list_names", "exists", "list", "replace", "delete"):
        original = getattr(here.place.files, name)
        monkeypatch.setattr(
            here.place.files, name, lambda *a, n=name, o=original, **k: (calls.append(n), o(*a, **k))[1]
        )
    here.letters.look()
    assert calls == ["read_if_exists"]


def test_refusal_of_the_job_reaches_the_client(here: Here) -> None:
    with pytest.raises(RefusedError, match="The job cannot stop"):
        here.client().begin("stop", StopRequest())
    assert here.files() == []


def test_command_of_another_token_is_not_carried_out(here: Here) -> None:
    with pytest.raises(UnreachableError) as raised:
        here.client("u" * 43).begin("cancel", CancelRequest())
    assert "not signed with the token of this TIDEGATE_HOME" in str(raised.value)
    assert here.job.told == []


def letter_of(here: Here, **changes: Any) -> tuple[str, bytes]:
    made = Letter(id="l1", job_id="job", run=here.record.run, command="cancel", sent_ms=here.now_ms)
    return "l1", seal(TOKEN, letters._COMMAND, msgspec.structs.replace(made, **changes))


def put(here: Here, id: str, content: bytes) -> None:
    here.place.files.replace(f"control/{here.record.run}/in/{id}.json", content)
    here.place.files.replace(f"control/{here.record.run}/bell", b"1")


def test_copy_that_is_put_back_is_not_carried_out_again(here: Here) -> None:
    id, content = letter_of(here)
    for _ in range(3):
        put(here, id, content)
        here.letters.look()
    assert len(here.job.told) == 1


@pytest.mark.parametrize(
    "changes",
    [{"run": "00000000000000-0"}, {"job_id": "other"}, {"id": "l2"}, {"command": "format"}],
    ids=["another run", "another job", "another name", "unknown command"],
)
def test_signed_command_that_does_not_belong_here_is_refused(here: Here, changes: dict[str, str]) -> None:
    id, content = letter_of(here, **changes)
    put(here, id, content)
    here.letters.look()
    assert here.job.told == []


@pytest.mark.parametrize("late", [-LIFETIME_MS - 1, LIFETIME_MS + 1])
def test_command_that_waited_too_long_is_refused(here: Here, late: int) -> None:
    id, content = letter_of(here, sent_ms=here.now_ms + late)
    put(here, id, content)
    here.letters.look()
    assert here.job.told == []
    answer = here.place.files.read_bytes(f"control/{here.record.run}/out/{id}.json")
    reply = letters.opened(TOKEN, letters._ANSWER, answer, Reply)
    assert reply.problem is not None and "compare the clocks" in reply.problem.message


@pytest.mark.parametrize(
    "content", [b"", b"{", b"null", b'{"content": "{}", "signature": "x"}', b"x" * 100_000, b"\xff\xfe"]
)
def test_damaged_command_is_deleted(here: Here, content: bytes) -> None:
    put(here, "bad", content)
    here.letters.look()
    assert here.job.told == []
    assert not here.place.files.exists(f"control/{here.record.run}/in/bad.json")


def test_command_is_taken_although_storage_fails_after_the_bell(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    original, failures = here.place.files.list_names, [1, 1]

    def list_names(path: str = "") -> list[str]:
        if failures:
            failures.pop()
            raise StorageError("The storage is away for a moment")
        return original(path)

    monkeypatch.setattr(here.place.files, "list_names", list_names)
    monkeypatch.setattr(time, "sleep", lambda seconds: LetterBox._try(here.box, here.letters.look))
    here.client(taken_s=5.0).begin("checkpoints")
    assert here.job.told == [("checkpoints", None)]


def test_what_is_no_command_keeps_no_command_from_being_taken_and_answered(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory in place of a file can be neither read nor deleted."""
    stranger = Path(here.place.address, "control", here.record.run, "in", "0.json")
    (stranger / "inside").mkdir(parents=True)
    monkeypatch.setattr(time, "sleep", lambda seconds: LetterBox._try(here.box, here.letters.look))
    client = here.client(taken_s=5.0)
    begun = client.begin("savepoints", SavepointRequest(target="/sp"))
    here.job.ends("/sp/savepoint-1")
    assert client.wait(begun).result == "/sp/savepoint-1"


def test_command_that_nobody_takes_is_withdrawn(here: Here) -> None:
    here.looks = False
    with pytest.raises(UnreachableError, match="takes no commands from its directory"):
        here.client(taken_s=0.0).begin("cancel", CancelRequest())
    assert [path for path in here.files() if "/in/" in path] == []
    here.letters.look()
    assert here.job.told == []


def test_next_run_does_not_take_commands_of_the_last_one(here: Here) -> None:
    id, content = letter_of(here)
    put(here, id, content)
    following = record(here.place.address)
    here.place.write(following)
    here.place.forget_others(following)
    after = here.driver(following)
    here.place.files.replace(f"control/{following.run}/in/{id}.json", content)
    here.place.files.replace(f"control/{following.run}/bell", b"1")
    after.look()
    assert here.job.told == [], "the run is part of what is signed"


def failing(here: Here, monkeypatch: pytest.MonkeyPatch, name: str, times: int, path: str = "") -> None:
    """Let the storage of all clients and of the driver fail ``times`` times."""
    original, failures = getattr(Files, name), [1] * times

    def fails(files: Files, at: str = "", *rest: Any) -> Any:
        if failures and path in at:
            failures.pop()
            raise StorageError("The storage is away for a moment")
        return original(files, at, *rest)

    monkeypatch.setattr(Files, name, fails)
    monkeypatch.setattr(time, "sleep", lambda seconds: LetterBox._try(here.box, here.letters.look))


def test_command_whose_bell_cannot_be_written_is_withdrawn(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user sees the error, and nobody rings for the next command and takes this one too."""
    failing(here, monkeypatch, "replace", 1, path="bell")
    with pytest.raises(StorageError, match="away for a moment"):
        here.client().begin("cancel", CancelRequest())
    here.client().begin("savepoints", SavepointRequest(target="/sp"))
    assert here.job.told == [("savepoints", SavepointRequest(target="/sp"))]


def test_client_waits_while_storage_is_away_for_a_moment(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(here, monkeypatch, "read_if_exists", 2)
    client = here.client()
    begun = client.begin("savepoints", SavepointRequest(target="/sp"))
    failing(here, monkeypatch, "read_if_exists", 2)
    here.job.ends("/sp/savepoint-1")
    assert client.wait(begun).result == "/sp/savepoint-1"
    assert len(here.job.told) == 1


def test_client_reports_storage_that_stays_away(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    client = here.client(taken_s=0.0)
    begun = here.client().begin("checkpoints")
    failing(here, monkeypatch, "read_if_exists", 100)
    with pytest.raises(UnreachableError, match="and the storage does not answer: The storage is away"):
        client.begin("checkpoints")
    with pytest.raises(StorageError, match="away for a moment"):
        client.wait(begun)


def test_storage_that_can_be_read_and_not_written_is_reported_once(
    here: Here, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(here, monkeypatch, "replace", 100)
    for _ in range(3):
        here.box._try(here.box._write)
        here.box._try(here.letters.look)
    assert len(caplog.messages) == 1


def test_what_launches_without_a_record_have_printed_is_deleted(here: Here) -> None:
    files = here.place.files
    here.place.write(record(here.place.address, launch="l1", application="application_1_1"))
    for name in ("l0", "l1", "own"):
        files.replace(f"control/log-{name}/0001-00000000", b"printed")
        files.replace(f"control/error-{name}", b"{}")
    for number in range(3):
        files.replace(f"control/attempt-application_1_{number}-1.json", b"{}")
    here.place.forget_others(record(here.place.address, launch="own", application="application_1_2"))
    kept = [name for name in files.list_names("control") if not name.endswith(".json") or name.startswith("attempt")]
    attempts = ["attempt-application_1_1-1.json", "attempt-application_1_2-1.json"]
    assert sorted(kept) == [*attempts, "error-l1", "error-own", "log-l1", "log-own"]


POINTS = ["letters.rung", "letters.taken", "letters.begun", "storage.replace", "storage.delete"]


@pytest.mark.parametrize("dies_at", POINTS)
def test_driver_that_dies_at_any_step_carries_a_command_out_at_most_once(
    here: Here, dies_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next driver is another run; the client says that the outcome is not known, and the command is not repeated."""
    id, content = letter_of(here)
    put(here, id, content)

    def die(name: str, where: dict[str, Any]) -> None:
        if name == dies_at:
            raise faults.Killed

    faults.install(die)
    try:
        with pytest.raises(faults.Killed):
            here.letters.look()
    finally:
        faults.install(None)
    following = record(here.place.address)
    here.place.forget_others(following)
    here.place.write(following)
    after = here.driver(following)
    for _ in range(3):
        after.look()
    assert len(here.job.told) <= 1
    client = here.client()
    client._letter = id
    running = Operation(id="1", kind="cancel", status=OperationStatus.RUNNING, started_ms=1)
    with pytest.raises(DriverDiedError, match="replaced while the command was under way"):
        client.wait(running)


def test_result_that_only_the_unsigned_record_has_is_not_believed(here: Here) -> None:
    """Whoever may write to the storage could send the user to a savepoint of his own."""
    client = here.client()
    begun = client.begin("cancel", CancelRequest())
    here.looks = False
    here.job.ends("CANCELED")
    ended = msgspec.structs.replace(
        here.record, state="CANCELED", ended_ms=2, operations=[here.job.operations[begun.id]]
    )
    here.place.write(ended)
    with pytest.raises(JobOverError):
        client.wait(begun)


def test_job_that_has_ended_takes_no_commands(here: Here) -> None:
    here.looks = False
    here.place.write(msgspec.structs.replace(here.record, state="FINISHED", ended_ms=2))
    with pytest.raises(JobOverError):
        here.client().begin("cancel", CancelRequest())


def test_last_answer_and_record_are_written_when_storage_answers_again(here: Here) -> None:
    client = here.client()
    begun = client.begin("savepoints", SavepointRequest(target="/sp"))
    here.box.take(here.letters)
    here.box.show(msgspec.structs.replace(here.record, state="FINISHED", ended_ms=2))
    here.job.ends("/sp/savepoint-1")
    failures = Counter({"out": 2, "control": 2})

    def away(name: str, where: dict[str, Any]) -> None:
        place = Path(where.get("path", "")).parent.name
        if name == "storage.replace" and failures[place]:
            failures[place] -= 1
            raise OSError("the storage is away")

    faults.install(away)
    try:
        here.box.start()
        here.box.close(60.0)
    finally:
        faults.install(None)
    assert failures.total() == 0 and not here.box.is_alive()
    here.looks = False
    assert client.wait(begun).result == "/sp/savepoint-1"
    found = here.place.read(here.record.run)
    assert found is not None and found.state == "FINISHED"


def test_storage_that_stays_away_keeps_the_driver_for_its_patience_only(here: Here) -> None:
    def away(name: str, where: dict[str, Any]) -> None:
        raise OSError("the storage is away")

    begun = here.client().begin("checkpoints")
    here.job.ends("7")
    here.box.take(here.letters)
    here.box.show(msgspec.structs.replace(here.record, state="FINISHED", ended_ms=2))
    faults.install(away)
    try:
        here.box.start()
        here.box.close(0.2)
        here.box.join(60.0)
    finally:
        faults.install(None)
    assert not here.box.is_alive() and begun.status is OperationStatus.RUNNING


def test_record_of_another_job_in_the_directory_counts_as_missing(here: Here) -> None:
    """A command to this directory would reach the other job."""
    here.place.write(msgspec.structs.replace(here.record, job_id="victim"))
    assert here.place.read(here.record.run) is None
    with pytest.raises(UnknownJobError, match="There is no job in this directory"):
        job_at(here.place.address)


# -- drivers in processes of their own, on the simulated engine --------------------------------------------------------------------


def posted(one: Driver) -> PostedDriver:
    """The way to the driver from another host."""
    place = f"{one.directory}/checkpoints/{one.job_id}"

    def told() -> JobRecord | None:
        found = JobPlace(place).newest()
        return found if found is not None and found.driver is not None and found.owner.pid == one.process.pid else None

    found = eventually(told, "the driver has written its record")
    return PostedDriver(found, read_token(found.driver or ""))


def test_running_job_takes_commands_by_letters(driver: Start) -> None:
    one = driver("posted", **ALWAYS).running()
    client = posted(one)
    assert client.details().job_id == "posted"
    made = client.wait(client.begin("savepoints", SavepointRequest(target=f"{one.directory}/sp")))
    assert Files(made.result or "").exists("_metadata")
    with pytest.raises(RefusedError, match="absolute"):
        client.begin("savepoints", SavepointRequest(target="relative"))
    done = client.wait(client.begin("cancel", CancelRequest()))
    assert done.result == "CANCELED"
    one.process.wait()
    found = job_at(f"{one.directory}/checkpoints/posted")
    assert found.state == "CANCELED"
    left = [path for path in Files(found.place or "").list("control") if "/in/" in path or "/out/" in path]
    assert left == []


@pytest.mark.parametrize("point", ["letters.rung", "letters.taken", "letters.begun"])
def test_driver_killed_with_a_command_in_its_hands_reports_an_unknown_outcome(
    point: str, driver: Start, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With SIGKILL. The next driver of the job does not carry the command out, and takes new ones."""
    monkeypatch.setattr(letters, "_LOOK_AT_DRIVER_S", 0.0)
    monkeypatch.setenv("TIDEGATE_FAULT_HOOK", "tidegate.testing.kill_hook:hook")
    monkeypatch.setenv("TIDEGATE_KILL_PLAN", f"{point}@1=self")
    monkeypatch.setenv("TIDEGATE_KILL_DIR", str(tmp_path_factory.mktemp("kills")))
    one = driver("killed", **ALWAYS).running()
    client = posted(one)
    with pytest.raises(DriverDiedError):
        client.wait(client.begin("savepoints", SavepointRequest(target=f"{one.directory}/sp")))
    assert one.process.wait() == -signal.SIGKILL
    monkeypatch.delenv("TIDEGATE_FAULT_HOOK")
    again = driver("killed", **ALWAYS).running()
    client = posted(again)
    assert client.wait(client.begin("checkpoints")).status is OperationStatus.SUCCEEDED
    taken = list(Path(again.directory, "sp").glob("savepoint-*"))
    assert len(taken) <= (point == "letters.begun"), "nobody has repeated the savepoint"
    assert client.wait(client.begin("cancel", CancelRequest())).result == "CANCELED"


def test_driver_that_has_lost_its_lease_sees_no_commands(driver: Start) -> None:
    """It was stopped (SIGSTOP) while another took the job over, and wakes up."""
    keys = {**ALWAYS, "tidegate.checkpoint.lease-timeout": "300 ms"}
    old = driver("fenced", **keys).running()
    before = posted(old)
    old.process.send_signal(signal.SIGSTOP)
    new = eventually(lambda: _started(driver, keys), "the lease is free")
    old.process.send_signal(signal.SIGCONT)
    client = posted(new)
    assert job_at(f"{new.directory}/checkpoints/fenced").run == client.record.run != before.record.run
    assert client.wait(client.begin("checkpoints")).status is OperationStatus.SUCCEEDED
    assert client.wait(client.begin("cancel", CancelRequest())).result == "CANCELED"
    old.process.wait()


def _started(driver: Start, keys: dict[str, str]) -> Driver | None:
    started = driver("fenced", **keys)

    def runs() -> bool:
        return started.record().owner.pid == started.process.pid and started.record().state == "RUNNING"

    eventually(lambda: started.process.poll() is not None or runs(), "it runs or is refused")
    return started if started.process.poll() is None else None


def test_jobs_below_a_directory_are_listed_running_or_not(driver: Start) -> None:
    running, over = driver("one", **ALWAYS).running(), driver("two", count="5", **ALWAYS)
    over.process.wait()
    posted(running)
    states = {each.job_id: (each.state, each.life().value) for each in jobs_below(f"{running.directory}/checkpoints")}
    assert states == {"one": ("RUNNING", "live"), "two": ("FINISHED", "ended")}
    assert find(f"{running.directory}/checkpoints/one").job_id == "one"


def test_job_without_a_record_is_described_by_its_lease(driver: Start) -> None:
    one = driver("bare").running()
    described = job_at(f"{one.directory}/checkpoints/bare")
    assert (described.job_id, described.state, described.owner.pid) == ("bare", "RUNNING", one.process.pid)


def test_directory_with_the_lease_and_record_of_another_job_leads_to_no_driver(driver: Start) -> None:
    """Somebody has copied them, so that a command to the copy stops the job of somebody else."""
    one = driver("victim", **ALWAYS).running()
    true = posted(one).record
    copied = f"{one.directory}/checkpoints/bait"
    shutil.copytree(str(true.place), copied)
    found = find(copied)
    assert (found.job_id, found.driver) == ("bait", None) and found.run != true.run
    with pytest.raises(UnreachableError, match="job bait"):
        driver_of(found).begin("cancel", CancelRequest())
    assert one.record().state == "RUNNING"


def test_command_from_another_host_needs_the_token(
    driver: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = driver("foreign", **ALWAYS).running()
    found = posted(one).record
    far = msgspec.structs.replace(found, owner=msgspec.structs.replace(found.owner, host="elsewhere"))
    name = found.driver or ""
    token = read_token(name)
    monkeypatch.setenv("TIDEGATE_HOME", str(tmp_path / "other host"))
    registry.write_private(registry.folder(registry.TOKENS) / name, token.encode())
    assert isinstance(driver_of(far), PostedDriver)
    monkeypatch.setenv("TIDEGATE_HOME", str(tmp_path / "stranger"))
    with pytest.raises(UnreachableError, match="The token of the job's driver is not in this TIDEGATE_HOME"):
        driver_of(far)


def test_address_in_a_directory_that_others_can_write_to_gets_no_token(driver: Start, tmp_path: Path) -> None:
    """The record of the next run is a stranger's: the true one with another address."""
    one = driver("victim", **ALWAYS).running()
    true = posted(one).record
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        forged = msgspec.structs.replace(true, run=f"{'9' * 14}-aa", endpoint=address, socket=f"{tmp_path}/none")
        files = JobPlace(true.place or "").files
        files.replace(f"control/{forged.run}.json", msgspec.json.encode(forged))
        found = find(true.place or "")
        assert found.run == forged.run and (found.endpoint, found.socket) == (None, None)
        assert isinstance(driver_of(found), PostedDriver), "it is signed for, and nobody carries it out"
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert isinstance(driver_of(registry.records()[-1]), DriverClient)


def test_token_that_is_given_to_a_driver_is_found_by_its_name(
    driver: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    monkeypatch.setenv("TIDEGATE_TOKEN_FILE", str(tmp_path / "token"))
    one = driver("given", **ALWAYS).running()
    name = posted(one).record.driver
    assert name == token_name(TOKEN) and TOKEN not in name
    monkeypatch.delenv("TIDEGATE_TOKEN_FILE")
    with pytest.raises(FileNotFoundError):
        read_token(name)
    assert keep_token(TOKEN) == name and read_token(name) == TOKEN
    (tmp_path / "short").write_text("abc")
    monkeypatch.setenv("TIDEGATE_TOKEN_FILE", str(tmp_path / "short"))
    with pytest.raises(ConfigurationError, match="TIDEGATE_TOKEN_FILE names no file with a token"):
        read_token(name)
