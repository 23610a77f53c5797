"""Snapshots that strangers may have written: signatures (``tidegate.checkpoint.signing-key-file``), references, pickles."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pytest
from typer.testing import CliRunner

from tests.unit.snapshots.snapshot_jobs import RECORDS, every_kind, kept, own_states, read_so_far, run, windows
from tidegate.base import faults
from tidegate.base.errors import (
    ConfigurationError,
    CorruptFileError,
    JobFailedError,
    PickleRefusedError,
    RestoreError,
)
from tidegate.base.files import Files
from tidegate.base.hashing import SigningKey, is_strong
from tidegate.base.pickling import allow_stored
from tidegate.checkpoint.envelope import seal
from tidegate.checkpoint.locate import locate
from tidegate.checkpoint.metadata import MAGIC, SIGNED, VERSION, decode_metadata, encode_metadata
from tidegate.cli.main import app
from tidegate.common import Types
from tidegate.datastream import KeyedProcessFunction
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.state import operator_state, segments
from tidegate.state.refs import KeyGroupRange
from tidegate.state_reader import SavepointReader

BUILDS = {"keyed": every_kind, "operator": own_states, "windows": windows}


@pytest.fixture(autouse=True)
def pickles_are_allowed_again() -> Iterator[None]:
    yield
    allow_stored(True)


@pytest.fixture
def key(tmp_path: Path) -> dict[str, Any]:
    return {"tidegate.checkpoint.signing-key-file": key_file(tmp_path / "key", b"k" * 64)}


def key_file(path: Path, content: bytes, mode: int = 0o600) -> str:
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


def settings(name: str, value: str) -> dict[str, Any]:
    return {name: value}


def states_of(reader: SavepointReader) -> Any:
    return reader._located.metadata.state_files()


# -- signatures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", BUILDS)
def test_job_restores_snapshot_signed_with_its_key(tmp_path: Path, key: dict[str, Any], build: str) -> None:
    reader = kept(BUILDS[build], tmp_path / "signed", **key)
    assert (tmp_path / "signed").rglob("_metadata").__next__().read_bytes().startswith(b"tidegate-metadata version=4 ")
    assert all(is_strong(file.hash) for file in states_of(reader))
    rest = run(BUILDS[build], tmp_path / "again", restore=reader.address, **key)
    whole = run(BUILDS[build], tmp_path / "whole")
    assert max(rest) == max(whole) and Counter(rest) <= Counter(whole)


def test_unsigned_snapshot_is_refused_by_a_job_with_a_key(tmp_path: Path, key: dict[str, Any]) -> None:
    reader = kept(every_kind, tmp_path / "plain")
    with pytest.raises(RestoreError) as error:
        run(every_kind, tmp_path / "again", restore=reader.address, **key)
    assert str(error.value).splitlines() == [
        "The snapshot was not signed by this job's key (tidegate.checkpoint.signing-key-file).",
        f"  where: {reader.address}",
        "  found: it has no signature",
        "  cure: set tidegate.checkpoint.accept-unsigned=true for one start, if you trust it: the next checkpoint is signed",
    ]


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_accepted_unsigned_state_is_hashed_again_for_the_next_checkpoint(
    tmp_path: Path, key: dict[str, Any], build: str, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_state, "MOST_INLINE", 0)
    fixed: dict[str, Any] = {"tidegate.job-id": "fixed"}
    first = kept(BUILDS[build], tmp_path / "first", **fixed)
    start: dict[str, Any] = {"restore": first.address} if elsewhere else {}
    second_place = tmp_path / ("second" if elsewhere else "first")
    before, weak = read_so_far(first), states_of(first)
    second = kept(
        BUILDS[build], second_place, **fixed, **start, **key, **settings("tidegate.checkpoint.accept-unsigned", "true")
    )
    assert read_so_far(second).stop > before.stop and any(not is_strong(file.hash) for file in weak)
    second._located.check_signature(SigningKey.load(key["tidegate.checkpoint.signing-key-file"], where="here"))
    assert states_of(second)
    run(BUILDS[build], second_place, **fixed, **key)


@pytest.mark.parametrize("how", ["another key", "changed metadata", "no signature line"])
def test_forged_metadata_is_refused(tmp_path: Path, key: dict[str, Any], how: str) -> None:
    reader = kept(every_kind, tmp_path / "signed", **key)
    path = Path(reader.address) / "_metadata"
    located = locate(reader.address)
    changed = msgspec.structs.replace(located.metadata, job_name="another")
    assert located.signature is not None
    if how == "another key":
        path.write_bytes(encode_metadata(changed, SigningKey(b"another key, of the attacker's own")))
    elif how == "changed metadata":
        body = f"hmac-sha256={located.signature.text}\n".encode() + msgspec.json.encode(changed)
        path.write_bytes(_sealed(SIGNED, body))
    else:
        path.write_bytes(_sealed(SIGNED, msgspec.json.encode(changed)))
    with pytest.raises((RestoreError, CorruptFileError)) as error:
        run(every_kind, tmp_path / "again", restore=reader.address, **key)
    expected = (
        "expected the fields" if how == "no signature line" else "it was signed with another key, or its metadata was"
    )
    assert expected in str(error.value)


def _sealed(version: int, body: bytes) -> bytes:
    from tidegate.checkpoint.envelope import seal_bytes

    return seal_bytes(MAGIC, version, body)


def test_reader_with_a_key_reads_only_what_the_key_signed(tmp_path: Path, key: dict[str, Any]) -> None:
    reader = kept(every_kind, tmp_path / "signed", **key)
    file = key["tidegate.checkpoint.signing-key-file"]
    assert SavepointReader(reader.address, signing_key_file=file).metadata == reader.metadata
    other = key_file(tmp_path / "other", b"o" * 32)
    with pytest.raises(RestoreError, match="was not signed by this job's key"):
        SavepointReader(reader.address, signing_key_file=other)


def test_signed_snapshot_with_swapped_state_file_is_refused(tmp_path: Path, key: dict[str, Any]) -> None:
    reader = kept(every_kind, tmp_path / "signed", **key)
    file = states_of(reader)[0]
    path = Path(reader.files.location(file.path))
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")
    with pytest.raises(CorruptFileError, match="sha-256"):
        SavepointReader(reader.address, signing_key_file=key["tidegate.checkpoint.signing-key-file"])
    with pytest.raises(JobFailedError, match="sha-256"):
        run(every_kind, tmp_path / "again", restore=reader.address, **key)


def forged(files: Files, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A large file in the place of which another one lies. All checksums in it are right: only the hash of the whole tells."""
    monkeypatch.setattr(segments, "WHOLE_LIMIT", 0)
    monkeypatch.setattr(segments, "BLOCK_TARGET", 64)

    def written(name: str, value: bytes) -> Any:
        with segments.SegmentWriter(files, name) as writer:
            for group in range(10):
                for n in range(20):
                    writer.add(0, [group.to_bytes(2, "big") + bytes([n]), value], deletes=False)
            return writer.finish(version="1", groups=KeyGroupRange(0, 9))

    mine, other = written("mine", b"good"), written("other", b"evil")
    assert mine.size == other.size
    shutil.copy(files.location("other"), files.location("mine"))
    return mine


@pytest.mark.parametrize("clip", [KeyGroupRange(4, 4), KeyGroupRange(0, 9)])
def test_forged_large_file_with_strong_hash_is_refused_before_its_first_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clip: KeyGroupRange
) -> None:
    """Readers may unpickle entries as they come."""
    files = Files(str(tmp_path), strong=True)
    entries = segments.read(files, forged(files, monkeypatch), clip)
    with pytest.raises(CorruptFileError, match="sha-256"):
        next(entries)


def test_checksums_alone_do_not_find_a_forged_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(str(tmp_path))
    assert list(segments.read(files, forged(files, monkeypatch), KeyGroupRange(4, 4)))


def test_unsigned_snapshot_in_the_place_of_a_signed_one_is_refused_after_a_failure(
    tmp_path: Path, key: dict[str, Any]
) -> None:
    """Though the run was started with accept-unsigned: the option is for the snapshot that it began with."""
    first = kept(every_kind, tmp_path / "first")
    replaced: list[int] = []

    def replace(name: str, where: dict[str, Any]) -> None:
        if name == "C7.subsumed":
            [path] = (tmp_path / "second").rglob("_metadata")
            plain = decode_metadata("here", path.read_bytes())
            path.write_bytes(encode_metadata(plain))
            replaced.append(plain.checkpoint_id)

    faults.install(replace)
    restarts: dict[str, Any] = {
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "2",
        "restart-strategy.fixed-delay.delay": "1 ms",
        "tidegate.checkpoint.accept-unsigned": "true",
        "execution.checkpointing.num-retained": "1",
    }
    try:
        with pytest.raises(JobFailedError, match="it has no signature"):
            run(every_kind, tmp_path / "second", fails=True, restore=first.address, **key, **restarts)
    finally:
        faults.install(None)
    assert replaced


@pytest.mark.parametrize(
    ("content", "mode", "found"),
    [
        (b"short", 0o600, "5 bytes, fewer than 32"),
        (b"k" * 64, 0o644, "mode 0644"),
        (None, 0, "No such file or directory"),
    ],
)
def test_unusable_key_is_refused_before_anything_starts(
    tmp_path: Path, content: bytes | None, mode: int, found: str
) -> None:
    path = str(tmp_path / "key") if content is None else key_file(tmp_path / "key", content, mode)
    with pytest.raises(ConfigurationError, match=found) as error:
        run(every_kind, tmp_path / "job", **settings("tidegate.checkpoint.signing-key-file", path))
    assert "chmod 600" in str(error.value) or "openssl rand" in str(error.value)
    assert not (tmp_path / "job").exists()


# -- references ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reference",
    [
        {"root": "http://169.254.169.254/latest"},
        {"root": "/etc"},
        {"path": "../../other/shared/1.seg"},
        {"path": "/etc/passwd"},
    ],
)
def test_snapshot_that_refers_outside_of_its_directory_is_refused(tmp_path: Path, reference: dict[str, Any]) -> None:
    reader = kept(every_kind, tmp_path / "foreign")
    body = msgspec.to_builtins(reader.metadata)
    file = next(o for o in body["operators"] if o["uid"] == "every kind")["subtasks"][0]["parts"]["keyed"]["files"][0]
    file |= reference
    (Path(reader.address) / "_metadata").write_bytes(seal(MAGIC, VERSION, body))
    for look in (
        lambda: run(every_kind, tmp_path / "again", restore=reader.address),
        lambda: SavepointReader(reader.address),
    ):
        with pytest.raises(RestoreError, match=r"refers to a file outside its own directory") as error:
            look()
        assert f"found: {reference.get('root', '')}" in str(error.value) and "_metadata" in str(error.value)


# -- pickles -------------------------------------------------------------------------------------------------------------


class Payload:
    """Runs code when it is unpickled."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.marker,)


class KeepsPayload(KeyedProcessFunction):
    def __init__(self, marker: str) -> None:
        self._marker = marker

    def open(self, runtime_context: Any) -> None:
        self.state = runtime_context.get_state(ValueStateDescriptor("payload", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value: int, ctx: Any) -> Iterator[Any]:
        if value == 1:
            self.state.update(Payload(self._marker))
        yield value


class KeepsNumber(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.state = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: int, ctx: Any) -> Iterator[Any]:
        self.state.update(value)
        yield value


def keyed(function: Any, key_type: Any = None) -> Any:
    return lambda env, numbers: numbers.key_by(lambda x: x % 3, key_type=key_type).process(function).uid("keyed")


def test_state_command_without_pickles_runs_no_code_of_the_snapshot(tmp_path: Path) -> None:
    marker = tmp_path / "code has run"
    reader = kept(keyed(KeepsPayload(str(marker))), tmp_path / "hostile")
    arguments = ["state", reader.address, "-o", "keyed", "-s", "payload"]
    shown = CliRunner().invoke(app, [*arguments, "--no-pickle"])
    assert shown.exit_code == 0, shown.output
    assert "pickled bytes (pickles are refused): 8005" in shown.output
    assert not marker.exists()
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert marker.exists(), "without the option the pickle runs: the test above means something"


def test_restore_without_pickles_runs_no_code_of_the_snapshot(tmp_path: Path) -> None:
    marker = tmp_path / "code has run"
    reader = kept(keyed(KeepsPayload(str(marker))), tmp_path / "hostile")
    with pytest.raises((JobFailedError, RestoreError)) as error:
        run(
            keyed(KeepsPayload(str(marker))),
            tmp_path / "again",
            restore=reader.address,
            **settings("tidegate.state.allow-pickle", "false"),
        )
    assert "state 'payload'" in str(error.value) and "declare a type" in str(error.value)
    assert not marker.exists()


def test_job_with_declared_types_runs_without_pickles(tmp_path: Path) -> None:
    without: dict[str, Any] = {"tidegate.state.allow-pickle": "false"}
    assert run(keyed(KeepsNumber(), Types.LONG()), tmp_path / "first", **without) == list(range(RECORDS))


def test_collected_records_of_a_snapshot_are_not_unpickled(tmp_path: Path) -> None:
    """They wait in the checkpoint to be committed: the driver would load them before any function opens."""
    marker = tmp_path / "code has run"

    reader = kept(keyed(KeepsNumber(), Types.LONG()), tmp_path / "plain")
    metadata = locate(reader.address).metadata
    [sink] = [
        operator for operator in metadata.operators if operator.name.startswith("Collect") or operator.committables
    ]
    values = cloudpickle.dumps([Payload(str(marker))])
    hostile = msgspec.structs.replace(
        sink, committables=[msgspec.msgpack.encode({"id": "strange", "values": values})], uid_hash=sink.uid_hash
    )
    operators = [hostile if operator is sink else operator for operator in metadata.operators]
    (Path(reader.address) / "_metadata").write_bytes(
        encode_metadata(msgspec.structs.replace(metadata, operators=operators))
    )
    build = keyed(KeepsNumber(), Types.LONG())
    with pytest.raises((PickleRefusedError, JobFailedError)):
        run(build, tmp_path / "again", restore=reader.address, **settings("tidegate.state.allow-pickle", "false"))
    assert not marker.exists()


def test_key_that_needs_pickle_is_refused_with_its_cure(tmp_path: Path) -> None:
    def build(env: Any, numbers: Any) -> Any:
        return numbers.key_by(lambda x: [x % 3]).process(KeepsNumber()).uid("keyed")

    with pytest.raises(JobFailedError) as error:
        run(build, tmp_path / "job", **settings("tidegate.state.allow-pickle", "false"))
    assert "it needs pickle, which tidegate.state.allow-pickle: false forbids" in str(
        error.value.__cause__ or error.value
    )


def test_unaligned_checkpoints_without_pickles_are_refused(tmp_path: Path) -> None:
    both: dict[str, Any] = {
        "tidegate.state.allow-pickle": "false",
        "execution.checkpointing.unaligned.enabled": "true",
    }
    with pytest.raises(ConfigurationError, match="need pickles for records in flight"):
        run(keyed(KeepsNumber()), tmp_path / "job", **both)
