"""Success markers: all files of a bucket are visible before its marker, and none follows, wherever the sink is killed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.sources import ScriptedSource
from tests.unit.connectors.test_file_sink import BASE_PATH, ON_CHECKPOINT, BatchLines, FileSinkContract
from tidegate.base import faults
from tidegate.base.clock import ManualClock
from tidegate.base.errors import RetryableCommitError
from tidegate.connectors.files.bucket_assigners import CLOCK_TOLERANCE_MS, BucketAssigner, RollingPolicy
from tidegate.connectors.files.parts import NAME
from tidegate.connectors.files.sink import FileSink
from tidegate.connectors.functions.function_sink import SinkContext
from tidegate.graph.transformation import Input, Program, Transformation
from tidegate.operators.contracts.sink import Prepared
from tidegate.operators.contracts.specs import SinkSpec, SourceSpec
from tidegate.operators.flow.rows import Ack
from tidegate.runtime.engine import RoundPlan
from tidegate.runtime.master import JobMaster
from tidegate.testing.simulation.engine import SimulatedEngine
from tidegate.testing.sink_contract import killed
from tidegate.testing.sink_run import START_MS, SinkRun

LONG = RollingPolicy.default_rolling_policy(1 << 20, 1 << 40, 1 << 40)
"""Parts continue until their bucket is over, or the input."""
BUCKET_MS = 3_000


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory in memory, if the system has one: every file is synced many times."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as directory:
        yield Path(directory)


class ByTime(BucketAssigner):
    def get_bucket_id(self, value: Any, context: SinkContext) -> str:
        return f"t={context.current_processing_time() // BUCKET_MS}"

    def is_over(self, bucket_id: str, written_ms: int, now_ms: int) -> bool:
        return (int(bucket_id[2:]) + 1) * BUCKET_MS <= now_ms


def marking(directory: Path, assigner: Any, policy: RollingPolicy = LONG) -> FileSink:
    builder = FileSink.for_row_format(f"{directory}/out", BatchLines()).with_success_markers()
    return builder.with_bucket_assigner(assigner).with_rolling_policy(policy).build()


def names(bucket: Path) -> set[str]:
    return {path.name for path in bucket.iterdir() if path.is_file() and not path.name.startswith(".")}


def marked(directory: Path) -> list[str]:
    """Buckets with a marker."""
    found = [path.parent for path in (directory / "out").rglob(NAME)]
    assert all((bucket / NAME).read_bytes() == b"" for bucket in found)
    return sorted(str(bucket.relative_to(directory / "out")) for bucket in found)


class Watch:
    """Check all observations: no bucket changed after its marker was seen."""

    def __init__(self) -> None:
        self._seen: dict[Path, set[str]] = {}

    def __call__(self, directory: Path) -> None:
        for bucket, found in self._seen.items():
            assert names(bucket) == found, f"{bucket} has changed behind its marker"
        for marker in (directory / "out").rglob(NAME):
            self._seen[marker.parent] = names(marker.parent)


class MarkerContract(FileSinkContract):
    policy: RollingPolicy = LONG
    seeds = 12

    @pytest.fixture(autouse=True)
    def watch(self) -> None:
        self._watch = Watch()

    def make_sink(self, directory: Path) -> FileSink:
        return marking(directory, ByTime(), self.policy)

    def visible(self, directory: Path) -> list[Any]:
        self._watch(directory)
        return super().visible(directory)

    def _check_end(self, run: SinkRun, directory: Path, hint: str = "") -> None:
        self._watch(directory)
        super()._check_end(run, directory, hint)
        found = [names(path) for path in (directory / "out").iterdir()]
        assert all(NAME in bucket for bucket in found if bucket), f"{hint} no marker"

    def test_killed_at_any_point_of_a_commit_that_marks(self, tmp_path: Path) -> None:
        """Also observe the output as the crash left it: a marked bucket has all its files."""
        number, fired = 0, True
        while fired:
            directory = tmp_path / str(number)
            directory.mkdir()
            run = self._run(directory)
            for count in (4, 0, 3, 5, 0):
                run.step(count)
            run.accept(run.attempt(6, checkpoint=True), 6)
            run.complete()
            fired = killed(number, run.commit)
            self.visible(directory)
            run.restore()
            self.visible(directory)
            assert len(marked(directory)) == 2
            run.step(2, checkpoint=True)
            self._check_end(run, directory, f"crash at point {number}")
            number += 1
        assert number > 4


class TestPartsThatGoOn(MarkerContract):
    publishes_every_checkpoint = False


class TestPartsOfCheckpoints(MarkerContract):
    policy = ON_CHECKPOINT


class Run(SinkRun):
    """Subtasks that progress at different speeds."""

    def together(
        self, *records: list[int], ended: tuple[bool, ...] = (), ahead: tuple[int, ...] = (), barrier: bool = True
    ) -> None:
        """``records`` of each subtask, whether it has finished, and how far its clock is ahead."""
        prepared: list[Prepared] = []
        self._checkpoints += barrier
        for subtask, values in enumerate(records):
            context = self.writer_context(subtask, self._checkpoints if barrier else None)
            context = replace(context, now_ms=self.now_ms + (ahead[subtask] if ahead else 0))
            writer = self._copy.create_writer(context, self.states[subtask])
            writer.write_batch(values, None)
            prepared.append(writer.prepare_commit(bool(ended) and ended[subtask]))
        self.accept(prepared, 0)


def new_run(directory: Path, assigner: Any, policy: RollingPolicy = LONG) -> Run:
    return Run(marking(directory, assigner, policy), str(directory / "staging"), lambda n: n, 2)


def test_a_bucket_waits_for_the_slowest_subtask(tmp_path: Path) -> None:
    """One subtask has finished. The other has not, and has not even seen the bucket."""
    run = new_run(tmp_path, lambda value: f"v{value}")
    run.together([1, 2], [2], ended=(True, False))
    run.commit()
    assert marked(tmp_path) == []
    run.together([], [1], ended=(True, False))
    run.commit()
    run.together([], [3], ended=(True, True), barrier=False)
    run.together([], [], ended=(True, True))
    run.commit()
    assert marked(tmp_path) == ["v1", "v2", "v3"]


def test_a_bucket_is_marked_only_if_no_subtask_waits(tmp_path: Path) -> None:
    class Told(BucketAssigner):
        """Subtasks may answer differently in the same round, because their last records differ."""

        def get_bucket_id(self, value: Any, context: SinkContext) -> str:
            return "b"

        def is_over(self, bucket_id: str, written_ms: int, now_ms: int) -> bool:
            return now_ms - written_ms >= 2_000

    run = new_run(tmp_path, Told())
    run.together([1], [])
    run.together([], [2])
    run.together([], [])  # over for the first, not for the second
    run.commit()
    assert marked(tmp_path) == []
    run.together([], [])
    run.commit()
    assert marked(tmp_path) == ["b"]


def test_a_bucket_that_is_written_to_again_before_the_commit(tmp_path: Path) -> None:
    """The checkpoint that closed the bucket was not committed at the cut of the next."""

    class Repeating(BucketAssigner):
        def get_bucket_id(self, value: Any, context: SinkContext) -> str:
            return "b"

        def is_over(self, bucket_id: str, written_ms: int, now_ms: int) -> bool:
            return now_ms in (START_MS + 1_000, START_MS + 3_000)

    run = new_run(tmp_path, Repeating())
    run.together([1], [])
    run.together([], [])
    run.together([], [2])
    run.commit()
    assert marked(tmp_path) == []
    run.together([], [])
    run.commit()
    assert marked(tmp_path) == ["b"] and len(names(tmp_path / "out" / "b")) == 3


def test_a_task_whose_clock_is_ahead(tmp_path: Path) -> None:
    """For the other subtasks its bucket has not begun: a bucket other than the current one need not be over."""
    minute = 60_000
    run = new_run(tmp_path, BucketAssigner.date_time_bucket_assigner("HH-mm", "UTC"))
    begin = run.now_ms = run.now_ms // minute * minute
    name = datetime.fromtimestamp(begin / 1000 + 180, UTC).strftime("%H-%M")
    run.together([1], [], ahead=(3 * minute, 0))
    for later in (minute, 3 * minute, 4 * minute + CLOCK_TOLERANCE_MS - 1_000):
        run.now_ms = begin + later
        run.together([], [])
        run.commit()
        assert marked(tmp_path) == []
    run.now_ms = begin + 4 * minute + CLOCK_TOLERANCE_MS
    run.together([], [])
    run.commit()
    assert marked(tmp_path) == [name] and run.states == [[], []]


@pytest.mark.parametrize(
    ("now", "over"),
    [("10:20", False), ("10:59", False), ("11:00", False), ("11:01", True), ("12:30", True), ("10:10", False)],
)
def test_when_an_hour_is_over(now: str, over: bool) -> None:
    hour = BucketAssigner.date_time_bucket_assigner(timezone_id="UTC")

    def at(time: str) -> int:
        return int(datetime.fromisoformat(f"2026-03-01T{time}:00+00:00").timestamp() * 1000)

    assert hour.is_over("2026-03-01--10", at("10:15"), at(now)) is over


def test_the_hour_that_comes_twice_is_one_bucket() -> None:
    """The clock is set back from three to two: the bucket of two lasts two hours, and is over once."""
    hour = BucketAssigner.date_time_bucket_assigner(timezone_id="Europe/Berlin")
    first = int(datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp() * 1000)
    name = hour.get_bucket_id(None, SinkContext(first))
    answers = [hour.is_over(name, first, first + minutes * 60_000) for minutes in (20, 35, 60, 85, 92)]
    assert name == "2026-10-25--02" and answers == [False, False, False, False, True]


def test_other_assigners_wait_for_the_end() -> None:
    assert not BASE_PATH.is_over("", 0, 1 << 50)
    assert not BucketAssigner.of(lambda value: "b").is_over("b", 0, 1 << 50)

    class Own:
        def get_bucket_id(self, value: Any, context: SinkContext) -> str:
            return "b"

        def is_over(self, bucket_id: str, written_ms: int, now_ms: int) -> bool:
            return (bucket_id, written_ms, now_ms) == ("b", 1, 2)

    assert BucketAssigner.of(Own()).is_over("b", 1, 2)


def test_a_marker_that_cannot_be_written_is_retried(tmp_path: Path) -> None:
    run = new_run(tmp_path, lambda value: f"v{value}")
    run.together([1], [2], ended=(True, True))

    def full(name: str, where: dict[str, Any]) -> None:
        if name == "storage.write":
            raise OSError(28, "No space left on device")

    faults.install(full)
    with pytest.raises(RetryableCommitError, match="No space left"):
        run.committer.commit(list(run.pending))
    faults.install(None)
    assert marked(tmp_path) == [] and len(names(tmp_path / "out" / "v1")) == 1
    run.commit()
    assert marked(tmp_path) == ["v1", "v2"]


# -- in a job ------------------------------------------------------------------------------------------------------------


class Engine(SimulatedEngine):
    """Rounds take a second of simulated time. The output is observed after each."""

    def __init__(self, clock: ManualClock, look: Callable[[], None]) -> None:
        super().__init__(1)
        self._clock, self._look = clock, look

    def run(self, plan: RoundPlan) -> list[Ack]:
        self._clock.advance(1_000)
        self._look()
        return super().run(plan)


def run_job(directory: Path, assigner: Any, settings: dict[str, Any]) -> list[list[str]]:
    """Which buckets had markers at each round, and at the end."""
    clock, seen, watch = ManualClock(), list[list[str]](), Watch()

    def look() -> None:
        watch(directory)
        seen.append(marked(directory))

    source = ScriptedSource(list(range(60)))
    source.initial_limit = source.maximum_limit = 5
    reading = Transformation(1, "source", SourceSpec(source), uid="source")
    sink = SinkSpec(marking(directory, assigner))
    writing = Transformation(2, "sink", sink, (Input(1),), uid="sink", parallelism=2)
    own = {"execution.checkpointing.dir": str(directory / "checkpoints"), "tidegate.job-id": "marks"}
    program = Program("marks", (reading, writing), {**own, "restart-strategy.type": "none", **settings})
    JobMaster(program, Engine(clock, look), clock=clock, local_root=str(directory / "local")).run()
    look()
    rows = [line for path in (directory / "out").rglob("part-*") for line in path.read_text().splitlines()]
    assert sorted(map(int, rows)) == list(range(60))
    return seen


@pytest.mark.parametrize("mode", ["EXACTLY_ONCE", "AT_LEAST_ONCE"])
def test_a_running_job_marks_buckets(tmp_path: Path, mode: str) -> None:
    settings = {"execution.checkpointing.interval": 500, "execution.checkpointing.mode": mode}
    seen = run_job(tmp_path, ByTime(), settings)
    counts = [len(found) for found in seen]
    assert counts == sorted(counts) and 0 < counts[-2] < counts[-1] == len(list((tmp_path / "out").iterdir()))


@pytest.mark.parametrize(
    "settings",
    [{"execution.checkpointing.interval": 500}, {}, {"execution.runtime-mode": "BATCH"}],
    ids=["checkpoints", "no checkpoints", "batch"],
)
def test_the_end_of_a_job_marks_every_bucket(tmp_path: Path, settings: dict[str, Any]) -> None:
    *before, at_end = run_job(tmp_path, lambda value: f"m{value % 3}", settings)
    assert not any(before) and at_end == ["m0", "m1", "m2"]
