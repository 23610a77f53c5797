"""Several jobs, or several checkpoints of a job, name the same unfinished files of a file sink: none harms another."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sources import ScriptedSource
from tidegate.base.clock import ManualClock
from tidegate.base.errors import JobCancelledError
from tidegate.checkpoint.locate import locate
from tidegate.connectors.files.bucket_assigners import BucketAssigner, RollingPolicy
from tidegate.connectors.files.sink import FileSink
from tidegate.graph.transformation import Input, Program, Transformation
from tidegate.operators.contracts.specs import SinkSpec, SourceSpec
from tidegate.operators.flow.rows import Ack
from tidegate.runtime.engine import RoundPlan
from tidegate.runtime.master import JobMaster
from tidegate.testing.simulation.engine import SimulatedEngine

RECORDS = 60
ROUND_MS = 60
NEVER = 1 << 40


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory in memory, if the system has one: every file is synced many times."""
    directory = tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    yield Path(directory)
    shutil.rmtree(directory)


class Lines:
    def encode(self, value: Any) -> bytes:
        return str(value).encode()


class StoppingEngine(SimulatedEngine):
    """Rounds take simulated time; in round ``last`` of this start the job is cancelled."""

    def __init__(self, clock: ManualClock, last: int | None) -> None:
        super().__init__(1)
        self._clock, self._last, self.rounds = clock, last, 0
        self.master: JobMaster | None = None

    def run(self, plan: RoundPlan) -> list[Ack]:
        self.rounds += 1
        self._clock.advance(ROUND_MS)
        acks = super().run(plan)
        if self.rounds == self._last:
            assert self.master is not None
            self.master.cancel()
        return acks


class Site:
    """A sink's directory, and jobs that write to it: every round carries a checkpoint, every part lasts some rounds."""

    def __init__(self, root: Path, policy: RollingPolicy, *, retained: int = 1, ends: bool = True) -> None:
        self.root, self.policy, self.retained, self.ends = root, policy, retained, ends
        self.clock = ManualClock()

    def job(self, job_id: str) -> Path:
        return self.root / "checkpoints" / job_id

    def kept(self, job_id: str) -> list[Path]:
        """Completed checkpoints, oldest first."""
        found = self.job(job_id).glob("chk-*/_metadata")
        return sorted((path.parent for path in found), key=lambda path: int(path.name[4:]))

    def run(
        self, job_id: str, *, rounds: int | None = None, path: Path | None = None, checkpoints: str = "checkpoints"
    ) -> set[str]:
        """Start the job and let it finish, or cancel it after so many rounds. Returns the files it made visible."""
        before = self.files()
        engine = StoppingEngine(self.clock, rounds)
        program = self._program(job_id, path, checkpoints)
        engine.master = JobMaster(program, engine, clock=self.clock, local_root=str(self.root / "local"))
        if rounds is None:
            engine.master.run()
        else:
            with pytest.raises(JobCancelledError):
                engine.master.run()
        assert before <= self.files(), "visible files disappeared"
        return self.files() - before

    def _program(self, job_id: str, path: Path | None, checkpoints: str) -> Program:
        source = ScriptedSource(list(range(RECORDS)), ends=self.ends)
        source.initial_limit = source.maximum_limit = 5
        builder = FileSink.for_row_format(str(self.root / "out"), Lines()).with_rolling_policy(self.policy)
        sink = builder.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build()
        reading = Transformation(1, "source", SourceSpec(source), uid="source")
        writing = Transformation(2, "sink", SinkSpec(sink), (Input(1),), uid="sink")
        settings: dict[str, Any] = {
            "execution.checkpointing.interval": ROUND_MS // 2,
            "execution.checkpointing.num-retained": self.retained,
            "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
            "execution.checkpointing.dir": str(self.root / checkpoints),
            "execution.state-recovery.path": _snapshot(path) if path else None,
            "tidegate.job-id": job_id,
            "tidegate.state.map-size": 1 << 20,
            "restart-strategy.type": "none",
        }
        return Program("forks", (reading, writing), settings)

    def files(self) -> set[str]:
        return {path.name for path in (self.root / "out").glob("*") if not path.name.startswith(".")}

    def hidden(self) -> list[str]:
        return sorted(path.name for path in (self.root / "out").glob(".*"))

    def check(self, *groups: set[str]) -> None:
        """The files of these runs together hold every record once."""
        names = [name for group in groups for name in group]
        found = Counter(int(line) for name in names for line in (self.root / "out" / name).read_text().splitlines())
        assert found == Counter(range(RECORDS))


def _snapshot(path: Path) -> str:
    """A checkpoint, or the latest one of a job's directory."""
    return str(path) if path.name.startswith("chk-") else locate(str(path)).address


LONG = RollingPolicy.default_rolling_policy(1 << 20, NEVER, NEVER)
"""Parts last to the end of the job."""
SOME_ROUNDS = RollingPolicy.default_rolling_policy(1 << 20, 4 * ROUND_MS, NEVER)
INACTIVE = RollingPolicy.default_rolling_policy(8, NEVER, NEVER)
"""Parts of one fragment that are finished in a later round."""
POLICIES = pytest.mark.parametrize("policy", [LONG, SOME_ROUNDS, INACTIVE], ids=["long", "some rounds", "one fragment"])


@POLICIES
@pytest.mark.parametrize("rounds", [2, 4, 5, 7])
def test_both_jobs_continue_from_the_same_checkpoint(root: Path, policy: RollingPolicy, rounds: int) -> None:
    site = Site(root, policy)
    first = site.run("first", rounds=rounds)
    other = site.run("other", path=site.job("first"))
    site.check(first, other)
    site.check(first, site.run("first"))
    assert site.hidden() == []


@POLICIES
@pytest.mark.parametrize("rounds", [2, 4, 5, 7])
def test_the_first_job_ends_while_the_other_is_stopped(root: Path, policy: RollingPolicy, rounds: int) -> None:
    site = Site(root, policy)
    first = site.run("first", rounds=rounds)
    other = site.run("other", path=site.job("first"), rounds=2)
    site.check(first, site.run("first"))
    shutil.rmtree(site.job("first"))  # the other job has copied the files it needs
    site.check(first, other, site.run("other"))
    assert site.hidden() == []


def test_a_job_of_the_same_id_with_another_checkpoint_directory_is_another_job(root: Path) -> None:
    site = Site(root, SOME_ROUNDS)
    first = site.run("same", rounds=6)
    other = site.run("same", path=site.job("same"), checkpoints="elsewhere")
    site.check(first, other)
    site.check(first, site.run("same"))


@POLICIES
def test_every_retained_checkpoint_restores(root: Path, policy: RollingPolicy) -> None:
    site = Site(root, policy, retained=4)
    site.run("first", rounds=9)
    kept = site.kept("first")
    assert len(kept) == 4
    for number, checkpoint in enumerate(kept):
        visible = site.files()
        covered = site.run(f"other{number}", path=checkpoint)
        lines = Counter(int(line) for name in covered for line in (root / "out" / name).read_text().splitlines())
        assert not [value for value, times in lines.items() if times > 1], f"from {checkpoint.name}"
        assert set(range(RECORDS)) - set(lines) <= _values(root, visible), f"from {checkpoint.name}"


@POLICIES
@pytest.mark.parametrize("back", range(3))
def test_going_back_leaves_the_newer_checkpoints_as_they_are(root: Path, policy: RollingPolicy, back: int) -> None:
    site = Site(root, policy, retained=4)
    first = site.run("first", rounds=9)
    kept = site.kept("first")
    site.run("first", path=kept[back], rounds=2)
    again = site.run("first", path=kept[-1])
    site.check(first, again)


@POLICIES
def test_going_back_and_on_to_the_end(root: Path, policy: RollingPolicy) -> None:
    """Files that were published after the older checkpoint stay: the continued parts get new names."""
    site = Site(root, policy, retained=4)
    first = site.run("first", rounds=9)
    oldest = site.kept("first")[0]
    again = site.run("first", path=oldest)
    assert _values(root, first) | _values(root, again) == set(range(RECORDS))
    assert max(Counter(_lines(root, again)).values()) == 1
    assert len(site.kept("first")) == 4, "they are protected"


class CancellingClock(ManualClock):
    """Cancel the job when it has waited this long."""

    def __init__(self, patience_ms: int) -> None:
        super().__init__()
        self._left_ms = float(patience_ms)
        self.master: JobMaster | None = None

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self._left_ms -= seconds * 1000
        if self._left_ms <= 0:
            assert self.master is not None
            self.master.cancel()
        return super().wait(event, seconds)


@pytest.mark.parametrize(
    ("policy", "idle_rounds"),
    [
        (RollingPolicy.on_checkpoint_rolling_policy(), 1),
        (RollingPolicy.default_rolling_policy(1 << 20, NEVER, 500), 20),
    ],
    ids=["no open part", "a part that rolls by inactivity"],
)
def test_a_job_without_input_makes_no_checkpoints(root: Path, policy: RollingPolicy, idle_rounds: int) -> None:
    """There are checkpoints while a part is open, because only a round can finish it, and none after that."""
    site = Site(root, policy, ends=False)
    site.clock = clock = CancellingClock(patience_ms=60_000)
    engine = StoppingEngine(clock, None)
    clock.master = JobMaster(site._program("idle", None, "checkpoints"), engine, clock=clock, local_root=str(root))
    with pytest.raises(JobCancelledError):
        clock.master.run()
    reading = RECORDS // 5
    assert reading <= engine.rounds <= reading + idle_rounds
    site.check(site.files())


def _lines(root: Path, names: set[str]) -> list[int]:
    return [int(line) for name in names for line in (root / "out" / name).read_text().splitlines()]


def _values(root: Path, names: set[str]) -> set[int]:
    return set(_lines(root, names))
