"""Why a job is slow, late or failing: sentences that name the operator, subtask, key or step, from the figures of its view.

Everything here is a pure function of these figures. A false alarm is worse than silence: every threshold is a constant with its
reason, and a finding that is explained by another one is left out.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from statistics import mean, median

from tidegate.base.errors import TidegateError
from tidegate.base.hashing import stable_hash
from tidegate.base.plain_text import count, duration
from tidegate.checkpoint.history import HistoryEntry
from tidegate.checkpoint.history import OperatorFigures as StoredFigures
from tidegate.checkpoint.metadata import CHECKPOINT
from tidegate.common.job_status import JobStatus
from tidegate.common.options import CHECKPOINT_MIN_PAUSE
from tidegate.control.jobs import JobDetails
from tidegate.control.registry import DriverLife
from tidegate.control.shown import Finding, Page, Severity
from tidegate.operators.flow.rows import MAX_WATERMARK, MIN_WATERMARK
from tidegate.runtime.view import CheckpointView, ExceptionView, OperatorView, Outcome, SubtaskFigures, SubtaskView

RESTARTS_ALIKE = 3
"""Twice may be chance, and the restart strategy exists for that. The same error three times in a row is a cause."""
RESTARTS_WITHIN_MS = 600_000
"""A job that has run well for ten minutes is no longer in a loop, nor is it one that fails once a week."""
COMMITS_FAILED, COMMIT_LATE_MS = 2, 3_000
"""One failed attempt of a commit is ordinary for a busy database. The second pause is the first that people notice."""
HOT_SHARE = 0.25
"""A key with a quarter of all records keeps more than four subtasks from being used."""
HOT_TIMES_FAIR = 1.5
"""... and it has at least this many times the records that one subtask would have anyway."""
HOT_BUSY, BUSIER = 0.4, 1.5
"""A hot key costs nothing while its subtask has time left, or all subtasks are as busy."""
SLOW_BUSY = 0.6
"""Below it the subtask is waiting more than working in most rounds, with the pauses between rounds."""
SLOW_USER_SHARE = 0.6
"""Of the work in tasks: otherwise reading, packing or snapshots are the cause."""
SLOW_RECORD_MS = 0.5
"""A function in Python takes some microseconds for a record. Half a millisecond means that it waits, or computes a lot."""
SKEW_TIMES = 3.0
"""Records of one subtask over the mean. Hashing some hundred keys gives less than twice the mean."""
SKEW_LEAST_RECORDS = 10_000
"""With few records a skew is chance."""
STORAGE_CHECKPOINTS = 3
"""A single slow upload happens on every storage."""
STORAGE_MS, STORAGE_SHARE = 1_000.0, 0.5
"""Storage is worth a look if it takes a second, and most of a checkpoint."""
STORAGE_BYTES_PER_S = 20e6
"""Slower than a disk or an object store. Faster storage is just given much to store."""
SNAPSHOT_BYTES_PER_S = 2e6
"""Step 5 also encodes the state, some megabytes a second at least."""
WATERMARK_GAP_MS = 60_000
"""Partitions that are read at different speeds differ by seconds."""
WATERMARK_AFTER_MS = 10_000
"""At the start of an attempt some partitions have had no turn yet."""
LAG_CHECKPOINTS, LAG_GROWTH = 5, 1.2
"""A lag that grew in each of so many checkpoints is no burst."""
LAG_S = 10.0
"""Less than this is read in a moment."""
LAG_SHARE = 0.5
"""Of the lag of all subtasks: then one partition is the cause, and not the speed of the job."""
GROWING_CHECKPOINTS, GROWING_TIMES, GROWING_BYTES = 10, 1.5, 1 << 20
"""State of a new job grows at first. Growth in each of ten checkpoints by half, and by a megabyte, is worth a look."""
CHECKPOINT_TIMES_INTERVAL, SLOW_CHECKPOINT_MS, SLOW_CHECKPOINTS = 2.0, 2_000.0, 3
"""A round carries each checkpoint, so one that takes about the interval is ordinary for a short interval."""
NO_CHECKPOINT_TIMES, NO_CHECKPOINT_MS = 5, 60_000
"""A checkpoint may be late. After five intervals and a minute, a failure would repeat much."""
FAILED_CHECKPOINTS = 3
SILENT_MS = 15_000
"""On a host that is very busy, an answer may take some seconds."""
WHY_TIMES, WHY_MS = 2.0, 1_000.0
"""A checkpoint is slow if it took a second, and twice as long as the others."""

_RANK = (Severity.FAILING, Severity.WARNING, Severity.NOTE)
_STEP_NUMBERS = {"trigger": 1, "run": 3, "align": 4, "snapshot": 5, "complete": 7, "commit": 8, "subsume": 9}
_WORK = ("read", "user", "pack", "snapshot")


def findings(
    details: JobDetails,
    now_ms: int,
    *,
    life: DriverLife = DriverLife.LIVE,
    answers: bool = True,
    as_of_ms: int | None = None,
) -> tuple[Finding, ...]:
    """Return what needs attention, the most urgent first. ``life`` and ``answers`` are those of the driver, ``as_of_ms`` is the
    age of the figures.

    A job that has ended is only asked how it ended. A driver that has died or is silent hides everything else: its figures are old.
    """
    if life is DriverLife.DIED:
        return (_died(details), *_restart_loop(details, now_ms, ended=True))
    if details.ended_ms is not None or details.state in _ENDED:
        return tuple(_failed(details, now_ms))
    if not answers and life is DriverLife.LIVE and (as_of_ms is None or now_ms - as_of_ms >= SILENT_MS):
        return (_silent(details, now_ms, as_of_ms),)
    if life is DriverLife.UNKNOWN:
        return ()
    return tuple(sorted(_of_running(details, now_ms), key=lambda found: _RANK.index(found.severity)))


_ENDED = {status.name for status in JobStatus if status.is_terminal_state()}


def _of_running(details: JobDetails, now_ms: int) -> Iterator[Finding]:
    yield from _restart_loop(details, now_ms, ended=False)
    yield from _commit(details, now_ms)
    explained: set[int] = set()
    for find in (_hot_keys, _slow_functions, _skew):
        for chain, found in find(details):
            if chain not in explained:
                explained.add(chain)
                yield found
    yield from _watermark(details, now_ms)
    yield from _lag(details)
    slow_storage = list(_storage(details))
    yield from slow_storage
    yield from _checkpoints(details, now_ms, is_explained=bool(slow_storage))
    yield from _growing(details)


# -- the end, and the driver ---------------------------------------------------------------------------------------------------


def _died(details: JobDetails) -> Finding:
    again = (
        "Its checkpoints were temporary, so it starts anew."
        if details.is_temporary
        else "Start the program again with the same tidegate.job-id to continue."
    )
    sentence = f"The driver of the job has died without a report. {again}"
    return Finding(kind="driver-died", severity=Severity.FAILING, sentence=sentence, page=Page.EXCEPTIONS)


def _silent(details: JobDetails, now_ms: int, as_of_ms: int | None) -> Finding:
    age = "" if as_of_ms is None else f" for {duration(max(0, now_ms - as_of_ms), coarse=True)}"
    sentence = f"The driver of the job lives but has not answered{age}. The figures are as old as that."
    return Finding(kind="driver-silent", severity=Severity.FAILING, sentence=sentence, page=Page.OVERVIEW)


def _failed(details: JobDetails, now_ms: int) -> Iterator[Finding]:
    if details.state != JobStatus.FAILED.name:
        return
    loop = list(_restart_loop(details, now_ms, ended=True))
    if loop:
        yield from loop
        return
    met = details.exceptions[-1] if details.exceptions else None
    sentence = "The job failed." if met is None else f"The job failed: {_met(details, met)}."
    yield _about(
        met, Finding(kind="failed", severity=Severity.FAILING, sentence=sentence, page=Page.EXCEPTIONS), details
    )


def _restart_loop(details: JobDetails, now_ms: int, *, ended: bool) -> Iterator[Finding]:
    alike: list[ExceptionView] = []
    for met in reversed(details.exceptions):
        if alike and _signature(met) != _signature(alike[-1]):
            break
        if alike and not ended and alike[-1].at_ms - met.at_ms > RESTARTS_WITHIN_MS:
            break
        alike.append(met)
    if len(alike) < RESTARTS_ALIKE or (not ended and now_ms - alike[0].at_ms > RESTARTS_WITHIN_MS):
        return
    what = "failed" if ended else "has restarted"
    # Only the latest exceptions are shown.
    least = "at least " if len(alike) == len(details.exceptions) < _attempts(details) - 1 else ""
    sentence = f"The job {what} {least}{len(alike)} times in a row with the same error: {_met(details, alike[0])}."
    found = Finding(kind="restart-loop", severity=Severity.FAILING, sentence=sentence, page=Page.EXCEPTIONS)
    yield _about(alike[0], found, details)


def _attempts(details: JobDetails) -> int:
    return details.attempts[-1].number if details.attempts else 0


def _signature(met: ExceptionView) -> tuple[str, str | None, str]:
    """Return what is the same in repetitions of an error: not its numbers, nor addresses."""
    first = next(iter(met.message.splitlines()), "")
    return met.kind, met.operator, re.sub(r"0x[0-9a-f]+|\d+", "0", first)


def _met(details: JobDetails, met: ExceptionView) -> str:
    lines = [line.strip() for line in met.message.splitlines() if line.strip()]
    found = next((line.removeprefix("found: ") for line in lines if line.startswith("found: ")), None)
    text = (found or (lines[0] if lines else met.kind))[:200].rstrip(".")
    named = "" if met.kind in text or met.kind == "UserCodeError" else f"{met.kind}: "
    where, operator = "", _guilty(details, met)
    if operator is not None:
        subtask = "" if met.subtask is None else f"subtask {_of(met.subtask, operator)} of "
        where = f" in {subtask}{_quoted(operator.label)}"
    return f"{named}{text}{where}" + ("" if met.key is None else f", at key {met.key}")


def _about(met: ExceptionView | None, found: Finding, details: JobDetails) -> Finding:
    if met is None:
        return found
    operator = _guilty(details, met)
    return Finding(
        kind=found.kind,
        severity=found.severity,
        sentence=found.sentence,
        page=found.page,
        operator=None if operator is None else operator.id,
        subtask=met.subtask,
        key=met.key,
        checkpoint_id=met.checkpoint_id,
    )


def _guilty(details: JobDetails, met: ExceptionView) -> OperatorView | None:
    """Return the operator whose code failed: the one that the view names, else the only one that the message names."""
    if met.operator is not None:
        return next((o for o in details.operators if met.operator in (o.name, o.label, o.uid)), None)
    places = [line for line in met.message.splitlines() if line.strip().startswith("where: ")]
    quoted = {name for line in places for name in re.findall(r"'([^']+)'", line)}
    named = [o for o in details.operators if quoted & {o.name, o.label, o.uid}]
    return named[0] if len(named) == 1 else None


def _of(subtask: int, operator: OperatorView | None) -> str:
    return str(subtask + 1) if operator is None else f"{subtask + 1}/{operator.parallelism}"


# -- commits -------------------------------------------------------------------------------------------------------------------


def _commit(details: JobDetails, now_ms: int) -> Iterator[Finding]:
    retry = details.commit_retry
    if retry is None or retry.attempt < COMMITS_FAILED or now_ms - retry.since_ms < COMMIT_LATE_MS:
        return
    stored = [c for c in details.checkpoints if c.kind == CHECKPOINT and 7 in c.passed_ms and 8 not in c.passed_ms]
    number = stored[0].checkpoint_id if stored else None
    what = "a checkpoint" if number is None else f"checkpoint {number}"
    error = next(iter(retry.error.splitlines()), "").rstrip(".")[:200]
    yield Finding(
        kind="commit-retried",
        severity=Severity.FAILING,
        sentence=f"Step 8 (commit) of {what} fails in {_quoted(retry.label)} for {duration(now_ms - retry.since_ms, coarse=True)}: "
        f"attempt {retry.attempt} of {retry.of} failed with {error}.",
        page=Page.CHECKPOINTS,
        operator=retry.operator,
        checkpoint_id=number,
        step="commit",
    )


# -- work of subtasks ----------------------------------------------------------------------------------------------------------


def _chains(details: JobDetails) -> Iterator[tuple[int, list[OperatorView], list[SubtaskView]]]:
    operators: dict[int, list[OperatorView]] = defaultdict(list)
    for operator in details.operators:
        operators[operator.chain].append(operator)
    subtasks: dict[int, list[SubtaskView]] = defaultdict(list)
    for subtask in details.subtasks:
        subtasks[subtask.chain].append(subtask)
    for chain, found in subtasks.items():
        if operators[chain]:
            yield chain, operators[chain], found


def _hot_keys(details: JobDetails) -> Iterator[tuple[int, Finding]]:
    for chain, operators, subtasks in _chains(details):
        for operator in operators:
            heaviest = operator.heavy_keys[0] if operator.heavy_keys else None
            if heaviest is None or len(subtasks) < 2:
                continue
            own = next((s for s in subtasks if s.subtask == heaviest.subtask), None)
            others = [s.busy for s in subtasks if s.subtask != heaviest.subtask]
            fair = HOT_TIMES_FAIR / len(subtasks)
            if own is None or heaviest.share < max(HOT_SHARE, min(fair, 0.6)):
                continue
            if own.busy < HOT_BUSY or own.busy < BUSIER * mean(others):
                continue
            yield (
                chain,
                Finding(
                    kind="hot-key",
                    severity=Severity.WARNING,
                    sentence=f"Key {heaviest.key} has {_percent(heaviest.share)} of the records of {_quoted(operator.label)}: "
                    f"subtask {_of(heaviest.subtask, operator)} is busy {_percent(own.busy)} of the time, "
                    f"the others {_percent(mean(others))}.",
                    page=Page.GRAPH,
                    operator=operator.id,
                    subtask=heaviest.subtask,
                    key=heaviest.key,
                ),
            )


def _slow_functions(details: JobDetails) -> Iterator[tuple[int, Finding]]:
    work = defaultdict[str, float](float)
    for latest in details.rounds[-20:]:
        for part, seconds in latest.parts.items():
            work[part] += seconds
    total = sum(work[part] for part in _WORK)
    if not total or work["user"] < SLOW_USER_SHARE * total:
        return
    slow = []
    for chain, operators, subtasks in _chains(details):
        busiest = max(subtasks, key=lambda subtask: subtask.busy)
        rate = busiest.records_in_per_second
        if busiest.busy >= SLOW_BUSY and rate > 0 and busiest.busy * 1000 / rate >= SLOW_RECORD_MS:
            slow.append((busiest, chain, operators, subtasks))
    if not slow:
        return
    busiest, chain, operators, subtasks = max(slow, key=lambda each: each[0].busy)
    operator = _with_function(operators)
    cost = busiest.busy * 1000 / busiest.records_in_per_second
    others = [s.busy for s in subtasks if s is not busiest]
    alone = bool(others) and busiest.busy >= BUSIER * mean(others)
    who = f"subtask {_of(busiest.subtask, operator)}" if alone or len(subtasks) == 1 else f"{len(subtasks)} subtasks"
    verb = "is" if alone or len(subtasks) == 1 else "are"
    chained = "" if len(operators) == 1 else f" (chain {' -> '.join(o.name for o in operators)})"
    yield (
        chain,
        Finding(
            kind="slow-function",
            severity=Severity.WARNING,
            sentence=f"The function of {_quoted(operator.label)}{chained} takes {_ms(cost)} for each record: {who} {verb} busy "
            f"{_percent(busiest.busy)} of the time, and user code is {_percent(work['user'] / total)} of the work.",
            page=Page.GRAPH,
            operator=operator.id,
            subtask=busiest.subtask if alone or len(subtasks) == 1 else None,
            step="user",
        ),
    )


def _with_function(operators: Sequence[OperatorView]) -> OperatorView:
    """Return the operator of a chain whose function is likeliest to be slow: one that is called for each record."""
    called = [o for o in operators if any("called" in function for function in o.functions)]
    inner = [o for o in operators if o.inputs]
    return next(iter(called or inner or operators))


def _skew(details: JobDetails) -> Iterator[tuple[int, Finding]]:
    for chain, operators, subtasks in _chains(details):
        rates = [s.records_in_per_second for s in subtasks]
        fair = mean(rates)
        most = max(subtasks, key=lambda subtask: subtask.records_in_per_second)
        others = [s.busy for s in subtasks if s is not most]
        if len(subtasks) < 4 or not fair or most.records_in < SKEW_LEAST_RECORDS:
            continue
        times = most.records_in_per_second / fair
        if times < SKEW_TIMES or most.busy < HOT_BUSY or most.busy < BUSIER * mean(others):
            continue
        head = operators[0]
        yield (
            chain,
            Finding(
                kind="skew",
                severity=Severity.WARNING,
                sentence=f"Subtask {_of(most.subtask, head)} of {_quoted(head.label)} gets {times:.1f} times the records of the "
                f"mean: it is busy {_percent(most.busy)} of the time, the others {_percent(mean(others))}.",
                page=Page.GRAPH,
                operator=head.id,
                subtask=most.subtask,
            ),
        )


# -- sources -------------------------------------------------------------------------------------------------------------------


def _watermark(details: JobDetails, now_ms: int) -> Iterator[Finding]:
    if not details.attempts or now_ms - details.attempts[-1].started_ms < WATERMARK_AFTER_MS:
        return
    for _, operators, subtasks in _chains(details):
        head = operators[0]
        if head.inputs or len(subtasks) < 2:
            continue
        marks = {s.subtask: MIN_WATERMARK if s.watermark is None else s.watermark for s in subtasks}
        last = min(subtasks, key=lambda subtask: marks[subtask.subtask])
        mark = marks[last.subtask]
        others = [s for s in subtasks if s is not last]
        next_mark = min(marks[s.subtask] for s in others)
        ahead = max(marks[s.subtask] for s in others)
        if next_mark in (MIN_WATERMARK, MAX_WATERMARK) or ahead == MAX_WATERMARK:
            continue
        # An idle subtask does not hold the operator's watermark back, and the view keeps its last one.
        holds = head.watermark is None or head.watermark <= mark
        moves = any(s.records_in_per_second > 0 for s in others)
        if not holds or not moves or last.records_in_per_second > 0 or next_mark - mark < WATERMARK_GAP_MS:
            continue
        at = (
            "it has had no event time yet"
            if mark == MIN_WATERMARK
            else f"the others are {duration(next_mark - mark, coarse=True)} ahead"
        )
        yield Finding(
            kind="stuck-watermark",
            severity=Severity.WARNING,
            sentence=f"Subtask {_of(last.subtask, head)} of {_quoted(head.label)} holds the watermark back: it reads no "
            f"records, and {at}. Event-time windows and timers do not fire. Set with_idleness if this partition may be empty.",
            page=Page.GRAPH,
            operator=head.id,
            subtask=last.subtask,
        )


def _lag(details: JobDetails) -> Iterator[Finding]:
    for _, operators, subtasks in _chains(details):
        head = operators[0]
        lags = {s.subtask: s.lag for s in subtasks if s.lag}
        if head.inputs or not lags:
            continue
        behind = [f.behind for f in _history(details, head) if f.behind is not None][-LAG_CHECKPOINTS:]
        grows = len(behind) == LAG_CHECKPOINTS and all(a < b for a, b in itertools.pairwise(behind))
        if not grows or behind[-1] < LAG_GROWTH * behind[0]:
            continue
        most = max(subtasks, key=lambda subtask: subtask.lag or 0)
        lag, total = most.lag or 0, sum(lags.values())
        rate = most.records_in_per_second
        if rate > 0 and lag / rate < LAG_S:
            continue
        unit = most.lag_unit
        grew = f"grew from {behind[0]:,} to {behind[-1]:,} {unit} in {LAG_CHECKPOINTS} checkpoints"
        is_one = len(subtasks) > 1 and lag >= LAG_SHARE * total and lag >= 2 * total / len(subtasks) * 0.75
        if is_one:
            sentence = (
                f"Subtask {_of(most.subtask, head)} of {_quoted(head.label)} has {_percent(lag / total)} of the lag, "
                f"{lag:,} {unit}: the lag {grew}. Its partition gets more than the subtask reads."
            )
        else:
            sentence = f"The lag of {_quoted(head.label)} {grew}: the job reads less than arrives."
        yield Finding(
            kind="lagging-partition" if is_one else "growing-lag",
            severity=Severity.WARNING,
            sentence=sentence,
            page=Page.GRAPH,
            operator=head.id,
            subtask=most.subtask if is_one else None,
        )


# -- checkpoints and state -----------------------------------------------------------------------------------------------------


def _complete(details: JobDetails) -> list[tuple[CheckpointView, HistoryEntry]]:
    return [
        (c, c.entry)
        for c in details.checkpoints
        if c.kind == CHECKPOINT and c.status is Outcome.COMPLETED and c.entry is not None
    ]


def _history(details: JobDetails, operator: OperatorView) -> list[StoredFigures]:
    """Return the figures of an operator in the complete checkpoints, oldest first."""
    hash = None if operator.uid is None else stable_hash(operator.uid)
    found = []
    for _, entry in _complete(details):
        figures = entry.operators.get(hash) if hash is not None else None
        if figures is None:
            same = [f for f in entry.operators.values() if f.name in (operator.name, operator.label)]
            figures = same[0] if len(same) == 1 else None
        if figures is not None:
            found.append(figures)
    return found


def _storage(details: JobDetails) -> Iterator[Finding]:
    latest = _complete(details)[-STORAGE_CHECKPOINTS:]
    if len(latest) < STORAGE_CHECKPOINTS:
        return
    worst = None
    for step, least in (("snapshot", SNAPSHOT_BYTES_PER_S), ("complete", STORAGE_BYTES_PER_S)):
        is_slow = all(
            (took := entry.steps_ms.get(step, 0.0)) >= STORAGE_MS
            and took >= STORAGE_SHARE * entry.duration_ms
            and entry.incremental * 1000 / took < least
            for _, entry in latest
        )
        took = median(entry.steps_ms.get(step, 0.0) for _, entry in latest)
        if is_slow and (worst is None or took > worst[1]):
            worst = step, took
    if worst is None:
        return
    step, took = worst
    view, entry = latest[-1]
    of = median(each.duration_ms for _, each in latest)
    slowest = max(view.subtasks, key=lambda figures: figures.snapshot_ms, default=None) if step == "snapshot" else None
    operator = None if slowest is None else _by_id(details, slowest.operator)
    where = (
        ""
        if slowest is None or operator is None
        else f" in subtask {_of(slowest.subtask, operator)} of {_quoted(operator.label)}"
    )
    yield Finding(
        kind="slow-storage",
        severity=Severity.WARNING,
        sentence=f"Storage is slow: step {_STEP_NUMBERS[step]} ({step}) takes {_ms(took)} of {_ms(of)} of a checkpoint{where}, for "
        f"{_size(entry.incremental)}. Look at {details.directory}.",
        page=Page.CHECKPOINTS,
        operator=None if operator is None else operator.id,
        subtask=None if slowest is None or operator is None else slowest.subtask,
        checkpoint_id=view.checkpoint_id,
        step=step,
    )


def _checkpoints(details: JobDetails, now_ms: int, *, is_explained: bool) -> Iterator[Finding]:
    interval = details.checkpoint_interval_ms
    if interval is None or not details.attempts or details.state != JobStatus.RUNNING.name:
        return
    own = [c for c in details.checkpoints if c.kind == CHECKPOINT]
    ended = [c for c in own if c.status is not Outcome.IN_PROGRESS]
    failed = ended[-FAILED_CHECKPOINTS:]
    if len(failed) == FAILED_CHECKPOINTS and all(c.status is Outcome.FAILED for c in failed):
        latest = failed[-1]
        reason = next(iter((latest.message or "no reason is known").splitlines())).rstrip(".")[:200]
        yield Finding(
            kind="failing-checkpoints",
            severity=Severity.FAILING,
            sentence=f"The last {FAILED_CHECKPOINTS} checkpoints failed; checkpoint {latest.checkpoint_id}: {reason}.",
            page=Page.CHECKPOINTS,
            checkpoint_id=latest.checkpoint_id,
        )
        return
    done = [c for c in own if 7 in c.passed_ms]
    since = max(details.attempts[-1].started_ms, done[-1].passed_ms[7] if done else 0)
    age = now_ms - since
    if age > max(NO_CHECKPOINT_TIMES * max(interval, _pause_ms(details)), NO_CHECKPOINT_MS):
        what = f"since checkpoint {done[-1].checkpoint_id}" if done else "yet"
        under_way = [c for c in own if c.status is Outcome.IN_PROGRESS]
        yield Finding(
            kind="no-checkpoint",
            severity=Severity.WARNING,
            sentence=f"No checkpoint is complete {what}: {duration(age, coarse=True)}, with an interval of {duration(interval)}. "
            + (f"Checkpoint {under_way[-1].checkpoint_id} is under way." if under_way else "None is under way."),
            page=Page.CHECKPOINTS,
            checkpoint_id=under_way[-1].checkpoint_id if under_way else None,
        )
        return
    slow = [entry for _, entry in _complete(details)][-SLOW_CHECKPOINTS:]
    limit = max(CHECKPOINT_TIMES_INTERVAL * interval, SLOW_CHECKPOINT_MS)
    if not is_explained and len(slow) == SLOW_CHECKPOINTS and all(entry.duration_ms > limit for entry in slow):
        latest = _complete(details)[-1][0]
        cause = _slowest_step(latest, slow[-1], details)
        yield Finding(
            kind="slow-checkpoints",
            severity=Severity.WARNING,
            sentence=f"Checkpoints take {_ms(median(e.duration_ms for e in slow))}, with an interval of "
            f"{duration(interval)}: {cause}.",
            page=Page.CHECKPOINTS,
            checkpoint_id=latest.checkpoint_id,
        )


def _pause_ms(details: JobDetails) -> int:
    """Return the pause between checkpoints that the job asks for: it may be longer than the interval."""
    for key in (CHECKPOINT_MIN_PAUSE.key, *CHECKPOINT_MIN_PAUSE.aliases):
        if key in details.configuration:
            with suppress(TidegateError, ValueError):
                return int(CHECKPOINT_MIN_PAUSE.parse(details.configuration[key]))
    return 0


def _growing(details: JobDetails) -> Iterator[Finding]:
    for operator in details.operators:
        sizes = [figures.size for figures in _history(details, operator)][-GROWING_CHECKPOINTS:]
        if len(sizes) < GROWING_CHECKPOINTS or not all(a < b for a, b in itertools.pairwise(sizes)):
            continue
        if sizes[-1] < GROWING_TIMES * sizes[0] or sizes[-1] - sizes[0] < GROWING_BYTES:
            continue
        largest = max(operator.states.items(), key=lambda state: state[1], default=None)
        named = "" if largest is None else f", most of it in '{largest[0]}'"
        yield Finding(
            kind="growing-state",
            severity=Severity.NOTE,
            sentence=f"The state of {_quoted(operator.label)} grows with every checkpoint: from {_size(sizes[0])} to "
            f"{_size(sizes[-1])} in the last {GROWING_CHECKPOINTS}{named}. Set a time to live if its keys do not come back.",
            page=Page.GRAPH,
            operator=operator.id,
        )


# -- one checkpoint ------------------------------------------------------------------------------------------------------------


def why(view: CheckpointView, others: Iterable[CheckpointView], details: JobDetails) -> str | None:
    """Say why a checkpoint failed, or was slow beside the others; None if it was neither."""
    if view.status is Outcome.FAILED:
        reason = (view.message or (view.entry.reason if view.entry is not None else "") or "no reason is known").strip()
        return f"The checkpoint failed: {reason.rstrip('.')}."
    entry = view.entry
    if entry is None or view.status is not Outcome.COMPLETED:
        return None
    usual = [
        c.entry.duration_ms
        for c in others
        if c.entry is not None and c.status is Outcome.COMPLETED and c.checkpoint_id != view.checkpoint_id
    ]
    is_slower = not usual or entry.duration_ms >= WHY_TIMES * median(usual)
    is_late = details.checkpoint_interval_ms is not None and entry.duration_ms > max(
        CHECKPOINT_TIMES_INTERVAL * details.checkpoint_interval_ms, SLOW_CHECKPOINT_MS
    )
    if entry.duration_ms < WHY_MS or not (is_slower or is_late):
        return None
    cause = _slowest_step(view, entry, details)
    beside = f", the others about {_ms(median(usual))}" if usual and is_slower else ""
    return f"The checkpoint took {_ms(entry.duration_ms)}{beside}: {cause}."


def _slowest_step(view: CheckpointView, entry: HistoryEntry, details: JobDetails) -> str:
    """Say where most of the time went: a subtask for what runs in tasks, else a step of the driver."""
    steps = {name: took for name, took in entry.steps_ms.items() if name in ("run", "align", "snapshot", "complete")}
    if not steps:
        return "it is not known in which step"
    # Step 3 contains the next two: what is left of it is the run itself.
    own = {**steps, "run": max(0.0, steps.get("run", 0.0) - steps.get("align", 0.0) - steps.get("snapshot", 0.0))}
    step = max(own, key=lambda name: own[name])
    took = f"{_ms(own[step])} of {_ms(entry.duration_ms)}"
    if step == "complete":
        return f"step 7 (complete) took {took} to store {_size(entry.incremental)}"
    figures = max(view.subtasks, key=lambda f: _took(f, step), default=None)
    operator = None if figures is None else _by_id(details, figures.operator)
    if figures is None or operator is None:
        slowest = max(entry.operators.values(), key=lambda f: getattr(f, f"{step}_ms"), default=None)
        where = "" if slowest is None or not slowest.name else f", longest in {slowest.name}"
        return f"step {_STEP_NUMBERS[step]} ({step}) took {took}{where}"
    who = f"subtask {_of(figures.subtask, operator)} of {_quoted(operator.label)}"
    slow = f"{who} took {_ms(_took(figures, step))} of {_ms(entry.duration_ms)}"
    if step == "snapshot":
        stored = sum(f.incremental for f in view.subtasks)
        share = f"it stored {_percent(figures.incremental / stored)} of the bytes" if stored else "to store its state"
        return f"{slow}: {share}" if stored else f"{slow} {share}"
    if step == "align":
        return f"{slow} until all barriers arrived: a subtask before it was late"
    return f"{slow} for its records"


def _took(figures: SubtaskFigures, step: str) -> float:
    took = {"run": figures.run_ms, "align": figures.align_ms, "snapshot": figures.snapshot_ms}
    return took[step]


# -- texts ---------------------------------------------------------------------------------------------------------------------


def _by_id(details: JobDetails, operator: int) -> OperatorView | None:
    return next((o for o in details.operators if o.id == operator), None)


def _quoted(label: str) -> str:
    """Quote the label of an operator. That of a source or sink has its name in quotes already."""
    return label if "'" in label else f"'{label}'"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _ms(ms: float) -> str:
    return f"{ms:.1f} ms" if ms < 10 else duration(int(round(ms, -1 if ms < 1000 else -2)))


def _size(size: int) -> str:
    for unit, of in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= of:
            return f"{size / of:.1f} {unit}"
    return count(size, "byte")
