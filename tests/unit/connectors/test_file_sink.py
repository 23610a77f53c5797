"""The file sink: fragments, rolling, commits, crashes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tidegate.base import faults
from tidegate.base.errors import (
    ArgumentTypeError,
    CommitError,
    ConfigurationError,
    CorruptFileError,
    ProgramError,
    RetryableCommitError,
)
from tidegate.connectors.files.bucket_assigners import BucketAssigner, PartInfo, RollingPolicy
from tidegate.connectors.files.parts import MERGE_WIDTH, Fragment, full_levels
from tidegate.connectors.files.sink import FileSink, OutputFileConfig
from tidegate.connectors.functions.function_sink import SinkContext
from tidegate.operators.contracts.sink import Sink
from tidegate.testing.sink_contract import SinkContract
from tidegate.testing.sink_run import Crash, SinkRun, crash_at

ON_CHECKPOINT = RollingPolicy.on_checkpoint_rolling_policy()
BASE_PATH = BucketAssigner.base_path_bucket_assigner()


class Lines:
    """An encoder with the simple half of the protocol."""

    def encode(self, value: Any) -> bytes:
        return str(value).encode()


class BatchLines:
    def encode_batch(self, values: list[Any]) -> bytes:
        return b"".join(f"{value}\n".encode() for value in values)


def sink(
    directory: Path | str, policy: RollingPolicy = ON_CHECKPOINT, assigner: Any = BASE_PATH, **names: str
) -> FileSink:
    config = OutputFileConfig(names.get("prefix", "part"), names.get("suffix", ""))
    builder = FileSink.for_row_format(f"{directory}/out", BatchLines())
    builder = builder.with_rolling_policy(policy).with_bucket_assigner(assigner).with_output_file_config(config)
    return builder.build()


def parts(directory: Path) -> list[Path]:
    return sorted(p for p in (directory / "out").rglob("*") if p.is_file() and not p.name.startswith("."))


def hidden(directory: Path) -> list[str]:
    return sorted(p.name for p in (directory / "out").rglob(".*") if p.is_file())


def rows(directory: Path) -> list[str]:
    return [line for part in parts(directory) for line in part.read_text().splitlines()]


def run_of(file_sink: FileSink, directory: Path, parallelism: int = 1) -> SinkRun:
    return SinkRun(file_sink, str(directory / "staging"), lambda n: n, parallelism)


class FileSinkContract(SinkContract):
    def visible(self, directory: Path) -> list[Any]:
        return [int(row) for row in rows(directory)]

    def leftovers(self, directory: Path) -> list[str]:
        return hidden(directory)


class TestRollingOnCheckpoints(FileSinkContract):
    def make_sink(self, directory: Path) -> Sink:
        return sink(directory)


class TestRollingBySizeAndTime(FileSinkContract):
    publishes_every_checkpoint = False

    def make_sink(self, directory: Path) -> Sink:
        return sink(directory, RollingPolicy.default_rolling_policy(20, 8_000, 3_000))


class TestLongLivedParts(FileSinkContract):
    """Parts over many rounds, so that fragments are merged on the way; several buckets."""

    publishes_every_checkpoint = False

    def make_sink(self, directory: Path) -> Sink:
        policy = RollingPolicy.default_rolling_policy(1 << 20, 1 << 40, 1 << 40)
        return sink(directory, policy, lambda value: f"mod/{value % 2}", prefix="x", suffix=".csv")


class TestOtherFileSystems(FileSinkContract):
    def make_sink(self, directory: Path) -> Sink:
        return sink(f"memory://{directory}")

    def visible(self, directory: Path) -> list[Any]:
        fs = fsspec.filesystem("memory")
        names = [name for name in fs.find(f"{directory}/out") if "/." not in name]
        return [int(row) for name in names for row in fs.cat_file(name).split()]

    def leftovers(self, directory: Path) -> list[str]:
        return [name for name in fsspec.filesystem("memory").find(f"{directory}/out") if "/." in name]


class TestNames:
    def test_parts_and_hidden_files_are_named_as_in_flink(self, tmp_path: Path) -> None:
        run = run_of(sink(tmp_path, prefix="orders", suffix=".csv"), tmp_path)
        run.accept(run.attempt(3, checkpoint=True), 3)
        assert re.fullmatch(r"\.orders-[0-9a-f]+-0\.csv\.inprogress\.[0-9a-f]{16}-a1-1", hidden(tmp_path)[0])
        run.complete()
        run.commit()
        run.step(3, checkpoint=True)
        names = [re.fullmatch(r"orders-([0-9a-f]+)-0\.csv", part.name) for part in parts(tmp_path)]
        assert len({match[1] for match in names if match}) == 2, "every round has a uid of its own"

    def test_default_bucket_is_the_hour(self, tmp_path: Path) -> None:
        run = run_of(FileSink.for_row_format(str(tmp_path / "out"), Lines()).build(), tmp_path)
        run.step(3, checkpoint=True, end=True)
        assert re.fullmatch(r"2023-11-1[45]--\d\d", parts(tmp_path)[0].parent.name)
        assert rows(tmp_path) == ["0", "1", "2"]

    def test_a_bucket_may_use_value_and_timestamp(self, tmp_path: Path) -> None:
        class ByDay:
            def get_bucket_id(self, value: Any, context: SinkContext) -> str:
                assert context.current_processing_time() == 1_700_000_000_000
                return f"{value % 2}/{context.timestamp()}"

        run = run_of(sink(tmp_path, assigner=ByDay()), tmp_path)
        context = run.writer_context(0, None)
        writer = sink(tmp_path, assigner=ByDay()).create_writer(context, [])
        writer.write_batch([1, 2, 3], [10, 20, 10])
        run.committer.commit(writer.prepare_commit(True).committables)
        found = {str(part.parent.relative_to(tmp_path / "out")): part.read_text() for part in parts(tmp_path)}
        assert found == {"1/10": "1\n3\n", "0/20": "2\n"}


class TestRolling:
    def sizes(self, directory: Path) -> list[int]:
        return sorted(len(part.read_bytes()) for part in parts(directory))

    def test_by_size_within_a_round(self, tmp_path: Path) -> None:
        run = run_of(sink(tmp_path, RollingPolicy.default_rolling_policy(part_size=9)), tmp_path)
        run.step(23, checkpoint=True, end=True)  # two bytes a row for 0..9, three from 10
        assert self.sizes(tmp_path) == [3, 10, 10, 12, 12, 12]
        assert sorted(map(int, rows(tmp_path))) == list(range(23))

    def test_by_age_over_rounds(self, tmp_path: Path) -> None:
        run = run_of(sink(tmp_path, RollingPolicy.default_rolling_policy(1000, 2_000, 60_000)), tmp_path)
        for _ in range(3):
            assert parts(tmp_path) == []
            run.step(2, checkpoint=True)  # a second each
        assert [part.read_text() for part in parts(tmp_path)] == ["0\n1\n2\n3\n4\n5\n"]
        assert hidden(tmp_path) == [], "merged fragments go with the commit"

    def test_by_inactivity_in_an_empty_round(self, tmp_path: Path) -> None:
        run = run_of(sink(tmp_path, RollingPolicy.default_rolling_policy(1000, 90_000, 5_000)), tmp_path)
        run.step(2, checkpoint=True)
        run.step(0, checkpoint=True)
        assert parts(tmp_path) == []
        run.now_ms += 5_000
        run.step(0, checkpoint=True)
        assert rows(tmp_path) == ["0", "1"]

    def test_on_checkpoint_only_in_rounds_with_one(self, tmp_path: Path) -> None:
        run = run_of(sink(tmp_path), tmp_path)
        run.step(2)
        run.step(2)
        assert run.pending == []
        run.step(2, checkpoint=True)
        assert [part.read_text() for part in parts(tmp_path)] == ["0\n1\n2\n3\n4\n5\n"]

    def test_a_users_policy_decides_when_parts_roll(self, tmp_path: Path) -> None:
        class EveryTwoRows(RollingPolicy):
            def should_roll_on_event(self, part: PartInfo) -> bool:
                return part.size >= 4

        run = run_of(sink(tmp_path, EveryTwoRows()), tmp_path)
        run.step(5, checkpoint=True, end=True)
        assert sorted(part.read_text() for part in parts(tmp_path)) == ["0\n1\n", "2\n3\n", "4\n"]

    def test_the_list_of_fragments_stays_short(self, tmp_path: Path) -> None:
        run = run_of(sink(tmp_path, RollingPolicy.default_rolling_policy(1 << 20, 1 << 40, 1 << 40)), tmp_path)
        longest = 0
        for number in range(600):
            run.step(1, checkpoint=number % 50 == 49)
            longest = max(longest, len(run.states[0][0]["parts"][0]["fragments"]))
        assert longest <= 3 * MERGE_WIDTH
        run.finish()
        assert [int(row) for row in rows(tmp_path)] == list(range(600)), "order within a part is kept"

    def test_merging_levels(self) -> None:
        def levels(*numbers: int) -> list[Fragment]:
            return [Fragment("f", 1, number) for number in numbers]

        width = MERGE_WIDTH
        assert full_levels([]) == 0
        assert full_levels(levels(*[0] * (width - 1))) == 0
        assert full_levels(levels(1, *[0] * width)) == width
        assert full_levels(levels(2, *[1] * (width - 1), *[0] * width)) == 2 * width - 1

    def test_states_of_several_subtasks_meet_after_a_rescale(self, tmp_path: Path) -> None:
        policy = RollingPolicy.default_rolling_policy(1000, 1 << 40, 1 << 40)
        run = run_of(sink(tmp_path, policy), tmp_path, parallelism=3)
        run.step(6, checkpoint=True)
        run.restore(parallelism=1)
        run.step(2)
        run.finish()
        assert sorted(map(int, rows(tmp_path))) == list(range(8))
        assert len(parts(tmp_path)) == 3


class TestCommit:
    def prepared(self, directory: Path) -> tuple[SinkRun, dict[str, Any]]:
        run = run_of(sink(directory), directory)
        run.accept(run.attempt(3, checkpoint=True), 3)
        return run, run.pending[0]

    def test_commit_with_a_missing_file_fails_and_names_it(self, tmp_path: Path) -> None:
        run, committable = self.prepared(tmp_path)
        (tmp_path / "out" / committable["hidden"]).unlink()
        with pytest.raises(CommitError, match=rf"{committable['target']}[\s\S]*neither it nor"):
            run.commit()

    def test_a_torn_file_is_refused(self, tmp_path: Path) -> None:
        run, committable = self.prepared(tmp_path)
        (tmp_path / "out" / committable["hidden"]).write_text("0\n")
        with pytest.raises(CommitError, match="has 2 bytes, expected 6"):
            run.commit()
        assert parts(tmp_path) == []

    def test_another_file_of_the_name_is_not_overwritten(self, tmp_path: Path) -> None:
        run, committable = self.prepared(tmp_path)
        (tmp_path / "out" / committable["target"]).write_text("precious")
        with pytest.raises(CommitError, match="never overwrites a file"):
            run.commit()
        assert (tmp_path / "out" / committable["target"]).read_text() == "precious"
        assert hidden(tmp_path) == [committable["hidden"]]

    def test_a_rename_by_copy_that_crashed_is_finished(self, tmp_path: Path) -> None:
        run, committable = self.prepared(tmp_path)
        source = tmp_path / "out" / committable["hidden"]
        (tmp_path / "out" / committable["target"]).write_bytes(source.read_bytes())
        run.commit()
        assert rows(tmp_path) == ["0", "1", "2"]
        assert hidden(tmp_path) == []

    def test_an_error_of_the_file_system_is_retried(self, tmp_path: Path) -> None:
        run, _ = self.prepared(tmp_path)

        def disk_trouble(name: str, where: dict[str, Any]) -> None:
            if name == "storage.rename":
                raise OSError(5, "Input/output error")

        faults.install(disk_trouble)
        try:
            with pytest.raises(RetryableCommitError, match="The file system refuses the commit of a file sink"):
                run.commit()
        finally:
            faults.install(None)
        run.commit()
        assert rows(tmp_path) == ["0", "1", "2"]

    def test_abort_of_a_round_keeps_what_earlier_rounds_wrote(self, tmp_path: Path) -> None:
        run = run_of(sink(tmp_path, RollingPolicy.default_rolling_policy(1000, 90_000, 5_000)), tmp_path)
        run.step(2)
        before = hidden(tmp_path)
        run.now_ms += 5_000
        prepared = run.attempt(0)  # rolls the part by inactivity: its only fragment belongs to the round before
        assert prepared[0].committables
        run.discard(prepared)
        assert hidden(tmp_path) == before


class TestRestore:
    def test_only_files_of_this_job_and_sink_are_removed(self, tmp_path: Path) -> None:
        run = run_of(sink(tmp_path), tmp_path)
        run.step(3)
        strangers = [".part-1-0.inprogress.0123456789abcdef-a1-1", "part-old-0", ".hidden"]
        for name in strangers:
            (tmp_path / "out" / name).write_text("x")
        run.restore()
        assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(strangers)

    def test_restore_of_a_subsumed_checkpoint_is_refused(self, tmp_path: Path) -> None:
        policy = RollingPolicy.default_rolling_policy(1000, 3_000, 60_000)
        run = run_of(sink(tmp_path, policy), tmp_path)
        run.step(2, checkpoint=True)
        older = run.checkpoint
        for _ in range(3):
            run.step(2, checkpoint=True)
        assert rows(tmp_path)
        run.checkpoint = older
        with pytest.raises(
            CorruptFileError, match=r"no such file, expected 4 bytes[\s\S]*checkpoint that the job retains"
        ):
            run.restore()

    def test_killed_at_any_point_of_the_restore(self, tmp_path: Path) -> None:
        number, fired = 0, True
        while fired:
            directory = tmp_path / str(number)
            run = run_of(sink(directory, RollingPolicy.default_rolling_policy(8, 90_000, 90_000)), directory, 2)
            run.step(9, checkpoint=True)
            run.step(9)
            run.attempt(9)
            crashed = crash_at(number)
            try:
                run.restore()
            except Crash:
                pass
            finally:
                faults.install(None)
            fired = crashed()
            run.restore()
            run.step(4)
            run.finish()
            assert sorted(map(int, rows(directory))) == list(range(13)), f"crash at point {number}"
            assert hidden(directory) == [], f"crash at point {number}"
            number += 1
        assert number > 5


class TestWrongUse:
    def test_a_path_that_is_a_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "out").write_text("x")
        with pytest.raises(ConfigurationError, match="The path of a file sink is a file, not a directory"):
            sink(tmp_path).validate()

    def test_validate_makes_the_directory(self, tmp_path: Path) -> None:
        sink(tmp_path).validate()
        assert (tmp_path / "out").is_dir()

    @pytest.mark.parametrize("bucket", ["../up", "/abs", 7])
    def test_a_bucket_outside_the_path_is_refused(self, tmp_path: Path, bucket: Any) -> None:
        run = run_of(sink(tmp_path, assigner=lambda value: bucket), tmp_path)
        with pytest.raises(ProgramError, match="A bucket assigner returned an invalid bucket id"):
            run.attempt(1)

    def test_arguments(self, tmp_path: Path) -> None:
        with pytest.raises(ArgumentTypeError, match="for_row_format takes an encoder with encode_batch"):
            FileSink.for_row_format(str(tmp_path), "utf-8")
        with pytest.raises(ArgumentTypeError, match="with_bucket_assigner takes an object with get_bucket_id"):
            sink(tmp_path, assigner=3)
        with pytest.raises(ConfigurationError, match="The prefix or suffix of part files contains"):
            OutputFileConfig.builder().with_part_prefix("a/b").build()
        with pytest.raises(ConfigurationError, match="part_size of a rolling policy is not above zero"):
            RollingPolicy.default_rolling_policy(0)

    def test_an_interval_without_effect_is_reported(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        FileSink.for_row_format(str(tmp_path), Lines()).with_bucket_check_interval(5).with_bucket_check_interval(7)
        assert [record.getMessage() for record in caplog.records] == [
            "'FileSink.with_bucket_check_interval' is accepted and has no effect: "
            "parts are checked in every round and at every checkpoint"
        ]

    def test_a_failed_flush_is_undone(self, tmp_path: Path) -> None:
        run = run_of(sink(tmp_path), tmp_path)
        writer = sink(tmp_path).create_writer(run.writer_context(0, None), [])
        writer.write_batch([1, 2], None)
        crash_at(0, "K1.file-sink")
        try:
            with pytest.raises(Crash):
                writer.prepare_commit(False)
        finally:
            faults.install(None)
        writer.abort()
        writer.close()
        assert hidden(tmp_path) == []
