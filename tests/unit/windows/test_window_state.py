"""What windows leave behind: nothing. And what of them survives: all the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.windows.window_jobs import WindowJob, cut, timed
from tidegate.base.errors import TidegateError
from tidegate.base.files import Files
from tidegate.checkpoint.metadata import read_metadata
from tidegate.common import Time, Types
from tidegate.datastream import DataStream
from tidegate.datastream.window import (
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from tidegate.state.segments import read

ONE_BY_ONE = {"tidegate.chunk.records": 1}


class NotBuiltIn(EventTimeTrigger):
    """The same, but nobody knows."""


def ms(value: int) -> Time:
    return Time.milliseconds(value)


def by_key(stream: DataStream) -> Any:
    return stream.key_by(lambda r: r[0], Types.STRING())


BUILDS: dict[str, Any] = {
    "tumbling": lambda s: by_key(s).window(TumblingEventTimeWindows.of(ms(10))).reduce(lambda a, b: b),
    "sliding": lambda s: by_key(s).window(SlidingEventTimeWindows.of(ms(30), ms(10))).reduce(lambda a, b: b),
    "late-allowed": lambda s: (
        by_key(s).window(TumblingEventTimeWindows.of(ms(10))).allowed_lateness(15).reduce(lambda a, b: b)
    ),
    "general": lambda s: (
        by_key(s).window(TumblingEventTimeWindows.of(ms(10))).trigger(NotBuiltIn()).reduce(lambda a, b: b)
    ),
    "session": lambda s: by_key(s).window(EventTimeSessionWindows.with_gap(ms(5))).reduce(lambda a, b: b),
    "session-counted": lambda s: (
        by_key(s).window(EventTimeSessionWindows.with_gap(ms(5))).trigger(CountTrigger.of(3)).reduce(lambda a, b: b)
    ),
    "count": lambda s: by_key(s).count_window(2).reduce(lambda a, b: b),
    "sliding-count": lambda s: by_key(s).count_window(4, 2).reduce(lambda a, b: b),
}


def live_entries(job: WindowJob) -> int:
    """Entries of state and timers in the newest checkpoint, deleted ones left out."""
    files = Files(str(job.checkpoints()[-1].parent))
    metadata = read_metadata(Files(str(job.checkpoints()[-1])), "_metadata")
    live: set[tuple[int, bytes]] = set()
    for operator in metadata.operators:
        for snapshot in operator.subtasks:
            for file in snapshot.files():
                for batch in read(files, file, file.groups):
                    for key, value in zip(batch.flat[::2], batch.flat[1::2], strict=True):
                        (live.discard if value is None else live.add)((batch.table, key))
    return len(live)


@pytest.mark.parametrize("name", BUILDS)
def test_a_thousand_windows_leave_no_more_than_ten(name: str, tmp_path: Path) -> None:
    """The last windows are open when the source fails for good; the checkpoint before has them and nothing else."""
    sizes = []
    for windows in (10, 1000):
        records = [(f"k{n % 2}", n * 5, n) for n in range(windows * 2)]
        place = tmp_path / str(windows)
        job = WindowJob(place, BUILDS[name], cut(timed(records), place, len(records)), limit=40)
        with pytest.raises(TidegateError):
            job.run(1, **{"tidegate.chunk.records": 8, "restart-strategy.type": "none"})
        sizes.append(live_entries(job))
    assert 0 < sizes[1] <= sizes[0] + 2, sizes
