"""``_metadata``: round trip, human readable, and every damage with a clear error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidegate.base.errors import CorruptFileError, InternalError, RestoreError, StorageError
from tidegate.base.files import Files
from tidegate.checkpoint.envelope import seal
from tidegate.checkpoint.metadata import (
    MAGIC,
    CheckpointMetadata,
    OperatorState,
    decode_metadata,
    encode_metadata,
    metadata_path,
    read_metadata,
)
from tidegate.state.refs import KeyGroupRange, StateFile, StateSchema
from tidegate.state.snapshot import (
    GENERATOR,
    KEYED,
    SPLITS,
    WRITER,
    KeyedPart,
    ListPart,
    OperatorSnapshot,
    Part,
    Redistribution,
)

WHERE = "/job/chk-7/_metadata"


def example(root: str = "") -> CheckpointMetadata:
    groups = KeyGroupRange(0, 63)
    files = (StateFile("shared/1-1.seg", 10, "ab", "1-1", groups, 3, root),)
    keyed = KeyedPart(groups, files, (StateSchema("total", "value", "LONG"),), "STRING")
    operator = OperatorState(
        uid_hash="a" * 32,
        uid="totals",
        name="running totals",
        parallelism=2,
        max_parallelism=128,
        subtasks=[
            OperatorSnapshot({KEYED: keyed, GENERATOR: ListPart.of(Redistribution.SUBTASK, [12, 5])}, 12),
            OperatorSnapshot({WRITER: ListPart(Redistribution.EVEN_SPLIT, (b"\x00\xff",))}, -(2**63), True),
        ],
        source={"splits": [1, 2.5, None, "x"]},
        committables=[b"\x93\x01\x02\x03"],
    )
    return CheckpointMetadata(
        checkpoint_id=7, job_id="f" * 32, job_name="orders ä", token=3, trigger_ms=1, complete_ms=2, round=41,
        operators=[operator], properties={"tidegate": "0.1.0"},
    )  # fmt: skip


def test_round_trip() -> None:
    assert decode_metadata(WHERE, encode_metadata(example())) == example()


def test_the_body_is_plain_indented_json() -> None:
    header, _, body = encode_metadata(example()).partition(b"\n")
    assert header.startswith(b"tidegate-metadata version=2 bytes=")
    assert json.loads(body)["operators"][0]["subtasks"][0]["parts"]["keyed"]["files"][0]["path"] == "shared/1-1.seg"
    assert body.count(b"\n") > 20


def test_every_truncation_is_found() -> None:
    content = encode_metadata(example())
    for length in range(len(content)):
        with pytest.raises(CorruptFileError):
            decode_metadata(WHERE, content[:length])


def test_every_flipped_byte_is_found() -> None:
    content = encode_metadata(example())
    for index in range(len(content)):
        damaged = bytearray(content)
        damaged[index] ^= 0x04
        with pytest.raises(CorruptFileError):
            decode_metadata(WHERE, bytes(damaged))


def test_truncated_names_file_expected_and_found() -> None:
    content = encode_metadata(example())
    with pytest.raises(CorruptFileError) as caught:
        decode_metadata(WHERE, content[:-5])
    size = len(content.partition(b"\n")[2])
    assert caught.value.where == WHERE
    assert f"{size - 5} bytes, xxh3-128" in str(caught.value.found)
    assert f"expected {size} bytes after the header" in str(caught.value.found)
    assert "execution.state-recovery.path" in str(caught.value.cure)


def test_newer_version() -> None:
    with pytest.raises(RestoreError) as caught:
        decode_metadata(WHERE, seal(MAGIC, 5, {"anything": 1}))
    assert caught.value.found == "tidegate-metadata version 5; this Tidegate reads 2, 3, 4"
    assert "version that wrote the file" in str(caught.value.cure)
    assert not isinstance(caught.value, StorageError)


def test_another_kind_of_file() -> None:
    with pytest.raises(RestoreError, match="was not written by Tidegate"):
        decode_metadata(WHERE, b"\x49\x60\x67\x2d something of Flink")


def test_missing_fields_are_damage() -> None:
    with pytest.raises(CorruptFileError, match="checkpoint_id"):
        decode_metadata(WHERE, seal(MAGIC, 2, {"job_id": "x"}))


def test_references_into_another_directory_are_refused() -> None:
    with pytest.raises(InternalError, match="file outside its own directory"):
        encode_metadata(example(root="s3://elsewhere"))


def test_read_from_storage(files: Files) -> None:
    files.publish(metadata_path(7), encode_metadata(example()))
    assert read_metadata(files, "chk-7/_metadata") == example()
    with pytest.raises(CorruptFileError, match="no such file"):
        read_metadata(files, metadata_path(8))


def test_has_state() -> None:
    def operator(**fields: Any) -> OperatorState:
        return OperatorState(uid_hash="x", name="x", parallelism=1, max_parallelism=1, **fields)

    def holding(name: str, part: Part) -> OperatorState:
        return operator(subtasks=[OperatorSnapshot({name: part}, 1)])

    assert not operator(subtasks=[OperatorSnapshot({}, 1)]).has_state
    assert not holding(KEYED, KeyedPart(KeyGroupRange(0, 1))).has_state
    assert not holding(GENERATOR, ListPart.of(Redistribution.SUBTASK, [1, 2])).has_state
    assert not holding(SPLITS, ListPart.of(Redistribution.EVEN_SPLIT, [["a", 1, 2]])).has_state
    assert holding(WRITER, ListPart.of(Redistribution.EVEN_SPLIT, [1])).has_state
    assert holding("rules", ListPart.of(Redistribution.BROADCAST, [1])).has_state
    assert operator(source=0).has_state
    assert operator(committables=[b""]).has_state
    assert example().operators[0].has_state
