"""Jobs as the page shows them, made of the real types: usual, failing, large, wide, hostile, ended and died ones."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import msgspec

from tidegate.base.hashing import flink_job_id
from tidegate.checkpoint.history import CheckpointStatus, HistoryEntry, OperatorFigures
from tidegate.control.jobs import JobDetails
from tidegate.control.shown import Finding, JobCard, JobPage, Page, Severity
from tidegate.runtime.statistics import RoundStatistics
from tidegate.runtime.view import (
    AttemptView,
    CheckpointView,
    ExceptionView,
    HeavyKey,
    OperatorView,
    Outcome,
    SubtaskFigures,
    SubtaskView,
    Totals,
)

HOSTILE = """<img src=x onerror="window.hacked=1">'"&{{x}}${1}</script><script>window.hacked=1</script>"""
HOSTILE_ID = HOSTILE.replace("/", "") + "?x=..#y"
"""Ids of jobs are names of directories: they have no slash."""
NAMES = ("orders", "parse", "late records", "enrich", "totals", "per customer", "to rows", "orders_by_hour")
LABELS = (
    "Kafka orders",
    "parse",
    "late records",
    "enrich",
    "totals",
    "per customer",
    "to rows",
    "Iceberg orders_by_hour",
)
TRACEBACK = """Traceback (most recent call last):
  File "/srv/jobs/orders.py", line 84, in process_element
    yield value.customer, rate(value.total, value.currency)
  File "/srv/jobs/rates.py", line 12, in rate
    return total * RATES[currency]
                   ~~~~~^^^^^^^^^^
KeyError: 'XAU'
"""


def operators_of(
    parallelism: int, names: tuple[str, ...] = NAMES, labels: tuple[str, ...] = LABELS
) -> tuple[OperatorView, ...]:
    chains = (0, 0, 1, 1, 2, 3, 3, 3)
    inputs: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (1,), (3,), (4,), (5,), (6,))
    rates = (48_200.0, 48_200.0, 410.0, 47_790.0, 47_790.0, 9_120.0, 9_120.0, 9_120.0)
    keys = (
        HeavyKey("customer-4711", 0.61, 2 % parallelism),
        HeavyKey("customer-17", 0.04, 0),
        HeavyKey("customer-902", 0.02, 1 % parallelism),
    )
    functions = {
        1: ("parse: MapFunction at orders.py:31, inlined into the loop",),
        3: ("enrich: ProcessFunction at orders.py:52, called for each record",),
        4: ("add: ReduceFunction at orders.py:70, on columns",),
        5: ("totals: KeyedProcessFunction at orders.py:84, called for each record",),
    }
    return tuple(
        OperatorView(
            i,
            name,
            labels[i],
            f"{name.replace(' ', '-')}",
            parallelism,
            128,
            chains[i],
            inputs[i],
            records_in=None if i == 0 else 10_000_000 - 1000 * i,
            records_out=9_000_000,
            records_in_per_second=None if i == 0 else rates[i],
            records_out_per_second=rates[i],
            busy_seconds=0.4,
            watermark=1_779_000_000_000 if i < 7 else None,
            state_bytes={4: 812_000_000, 5: 96_000_000}.get(i),
            states={4: {"window-contents": 700_000_000, "timers": 112_000_000}, 5: {"seen": 96_000_000}}.get(i, {}),
            heavy_keys=keys if i == 4 else (),
            functions=functions.get(i, ()),
            level=chains[i],
        )
        for i, name in enumerate(names)
    )


def subtasks_of(operators: tuple[OperatorView, ...], seed: int = 1) -> tuple[SubtaskView, ...]:
    chance, found = random.Random(seed), []
    for chain in sorted({o.chain for o in operators}):
        first = next(o for o in operators if o.chain == chain)
        for subtask in range(first.parallelism):
            hot = chain == 2 and subtask == 2 % first.parallelism
            busy = 0.97 if hot else 0.12 + 0.1 * chance.random()
            waits = 0.0 if hot else (1 - busy) * 0.8
            records = 610_000 if hot else 50_000 + chance.randrange(9_000)
            found.append(
                SubtaskView(
                    chain,
                    subtask,
                    f"worker-{subtask % 4}",
                    records,
                    records,
                    records * 96,
                    records * 80,
                    records / 10,
                    busy,
                    waits,
                    1 - busy - waits,
                    busy,
                    1_779_000_000_000 - subtask,
                    4_100 + subtask if chain == 0 else None,
                    state_bytes=400_000_000 if hot else 30_000_000,
                )
            )
    return tuple(found)


def rounds_of(count: int, now_ms: int, seed: int = 2) -> tuple[RoundStatistics, ...]:
    chance, found = random.Random(seed), []
    for i in range(count):
        user = 0.55 + 0.12 * math.sin(i / 7) + 0.1 * chance.random()
        parts = {
            "plan": 0.008,
            "schedule": 0.11 + 0.02 * chance.random(),
            "read": 0.09,
            "user": user,
            "pack": 0.06,
            "snapshot": 0.08 if i % 5 == 0 else 0.0,
            "accept": 0.01,
            "store": 0.05 if i % 5 == 0 else 0.0,
            "commit": 0.02 if i % 5 == 0 else 0.0,
        }
        seconds = sum(parts.values()) - parts["store"] - parts["commit"]
        found.append(
            RoundStatistics(
                9_000 + i,
                1_200 + i // 5 if i % 5 == 0 else None,
                now_ms - (count - i) * 1_000,
                seconds,
                int(48_000 * seconds + chance.randrange(2_000)),
                90_000,
                parts["store"] + parts["commit"],
                0,
                parts,
                (0.12, 0.08, user, 0.04),
            )
        )
    return tuple(found)


def checkpoint_of(number: int, at_ms: int, took: float, size: int, *, failed: str | None = None) -> CheckpointView:
    steps = {
        "trigger": 2.0,
        "run": took * 0.55,
        "align": took * 0.08,
        "snapshot": took * 0.3,
        "complete": took * 0.4,
        "commit": 60.0,
        "subsume": 25.0,
    }
    if failed is not None:
        steps = {"trigger": 2.0, "run": took}
    entry = HistoryEntry(
        checkpoint_id=number,
        token=7,
        kind="checkpoint",
        trigger_ms=at_ms,
        end_ms=at_ms + int(took),
        duration_ms=took,
        round=number * 5,
        status=CheckpointStatus.FAILED if failed else CheckpointStatus.COMPLETED,
        size=0 if failed else size,
        incremental=0 if failed else size // 12,
        reason="STORAGE" if failed else "",
        message=failed or "",
        behind=4_321,
        output=3,
        steps_ms=steps,
        operators={
            "h4": OperatorFigures(name="totals", run_ms=took * 0.5, snapshot_ms=took * 0.3, size=size),
            "h5": OperatorFigures(name="per customer", run_ms=took * 0.2, size=size // 9),
        },
    )
    passed = (
        {1: at_ms}
        if failed
        else {
            1: at_ms,
            6: at_ms + int(took * 0.58),
            7: at_ms + int(took),
            8: at_ms + int(took) + 60,
            9: at_ms + int(took) + 85,
        }
    )
    status = Outcome.FAILED if failed else Outcome.COMPLETED
    return CheckpointView(number, "checkpoint", 1, status, passed, 0 if failed else size, failed, entry)


def checkpoints_of(
    count: int, now_ms: int, *, every_ms: int = 10_000, failures: bool = True
) -> tuple[CheckpointView, ...]:
    chance, found = random.Random(3), []
    for i in range(count):
        slow = 3.4 if i % 67 == 60 else 1.0
        message = (
            "The state file could not be stored: s3://checkpoints/orders: timed out after 60 s"
            if failures and i % 71 == 30
            else None
        )
        took = (900 + 260 * math.sin(i / 11) + chance.randrange(240)) * slow
        found.append(
            checkpoint_of(1_000 + i, now_ms - (count - i) * every_ms, took, 640_000_000 + i * 900_000, failed=message)
        )
    if count > 20:
        found[-7] = replace(found[-7], kind="savepoint")
        latest = found[-1]
        found[-1] = replace(latest, status=Outcome.IN_PROGRESS, passed_ms={1: latest.passed_ms[1]}, entry=None)
    return tuple(found)


def with_subtasks(view: CheckpointView, operators: tuple[OperatorView, ...]) -> CheckpointView:
    """The checkpoint as ``checkpoints/{id}`` answers it."""
    chance, took, figures = (
        random.Random(view.checkpoint_id),
        1_000.0 if view.entry is None else view.entry.duration_ms,
        [],
    )
    for o in operators:
        for subtask in range(o.parallelism):
            guilty = o.id == 4 and subtask == 2 % o.parallelism
            part = took if guilty else took * 0.2
            stored = 390_000_000 if guilty else 30_000_000
            figures.append(
                SubtaskFigures(
                    o.id,
                    subtask,
                    part * 0.5 * (1 + chance.random() / 9),
                    part * 0.05,
                    part * 0.35 if o.state_bytes else 0.0,
                    stored if o.state_bytes else 0,
                    stored // 12 if o.state_bytes else 0,
                    0,
                    view.passed_ms[1] + int(part * 0.5),
                )
            )
    return replace(view, subtasks=tuple(figures))


def failures_of(now_ms: int, count: int) -> tuple[ExceptionView, ...]:
    command = "tidegate debug s3://checkpoints/orders/5f21/failed-round --record 17"
    return tuple(
        ExceptionView(
            now_ms - (count - i) * 61_000,
            i + 1,
            "KeyError",
            "'XAU'\nin process_element of 'enrich', subtask 4/8, orders.py:84",
            TRACEBACK,
            "enrich",
            3,
            "Order(id=88123, customer='customer-4711', total=12.5, currency='XAU')",
            "customer-4711",
            1_197,
            command,
        )
        for i in range(count)
    )


def details_of(now_ms: int, **given: Any) -> JobDetails:
    operators = given.pop("operators", None) or operators_of(8)
    fields: dict[str, Any] = {
        "job_id": "orders-by-hour",
        "name": "Orders by hour",
        "state": "RUNNING",
        "started_ms": now_ms - 8_000_000,
        "ended_ms": None,
        "directory": "s3://checkpoints/orders-by-hour",
        "is_temporary": False,
        "checkpoint_interval_ms": 10_000,
        "guarantee": "exactly-once",
        "paths": (
            {
                "source": "Kafka orders",
                "sink": "Iceberg orders_by_hour",
                "guarantee": "exactly-once",
                "reason": None,
                "cure": None,
            },
            {
                "source": "Kafka orders",
                "sink": "print late records",
                "guarantee": "at-least-once",
                "reason": "print cannot take output back",
                "cure": "write to files or Kafka",
            },
        ),
        "finished_before": False,
        "totals": Totals(9_100, 410_000_000, 1_199, {"STORAGE": 2}, 1),
        "records_per_second": 48_230.0,
        "operators": operators,
        "attempts": (AttemptView(1, now_ms - 8_000_000, 0),),
        "rounds": rounds_of(100, now_ms),
        "checkpoints": checkpoints_of(200, now_ms),
        "exceptions": (),
        "subtasks": subtasks_of(operators),
        "configuration": {
            "execution.checkpointing.interval": "10 s",
            "parallelism.default": "8",
            "tidegate.control.token": "******",
            "state.backend.type": "rocksdb",
        },
        "environment": {
            "python": "3.11.9",
            "spark": "4.1.0",
            "java": "17.0.12",
            "master": "yarn",
            "host": "driver-3",
            "user": "etl",
        },
    }
    return JobDetails(**{**fields, **given})


def page_of(
    details: JobDetails, now_ms: int, findings: tuple[Finding, ...] = (), *, life: str = "live", answers: bool = True
) -> JobPage:
    done = [c for c in details.checkpoints if c.status is Outcome.COMPLETED]
    lags = [s.lag for s in details.subtasks if s.lag is not None]
    card = JobCard(
        job_id=details.job_id,
        flink_id=flink_job_id(details.job_id),
        run="1-1",
        name=details.name,
        state=details.state,
        life=life,
        started_ms=details.started_ms,
        ended_ms=details.ended_ms,
        guarantee=details.guarantee,
        records_per_second=details.records_per_second,
        lag=sum(lags) if lags else None,
        restarts=max(0, len(details.attempts) - 1),
        last_checkpoint_ms=done[-1].passed_ms[7] if done else None,
        last_checkpoint_id=done[-1].checkpoint_id if done else None,
        attention=findings[0] if findings else None,
        as_of_ms=now_ms,
    )
    return JobPage(card=card, details=details, findings=findings, answers=answers)


def pages(now_ms: int) -> dict[str, JobPage]:
    """All jobs of the fixture by their id."""
    changed = msgspec.structs.replace
    usual = details_of(now_ms)
    slow = next(c.checkpoint_id for c in reversed(usual.checkpoints) if c.entry and c.entry.duration_ms > 2_500)
    hot = Finding(
        kind="hot-key",
        severity=Severity.WARNING,
        page=Page.GRAPH,
        operator=4,
        subtask=2,
        key="customer-4711",
        sentence="Key 'customer-4711' takes 61 % of the records of totals: subtask 3/8 is busy 97 % of the time "
        "while the others wait.",
    )
    late = Finding(
        kind="slow-checkpoint",
        severity=Severity.NOTE,
        page=Page.CHECKPOINTS,
        operator=4,
        subtask=2,
        checkpoint_id=slow,
        step="snapshot",
        sentence=f"Checkpoint {slow} took 3.6 s: subtask 3/8 of totals wrote 61 % of its bytes.",
    )
    rounds = Finding(
        kind="slow-function",
        severity=Severity.NOTE,
        page=Page.ROUNDS,
        step="user",
        operator=3,
        subtask=1,
        sentence="70 % of the time of the rounds is user code; the function of enrich takes most of it.",
    )
    loop = Finding(
        kind="restart-loop",
        severity=Severity.FAILING,
        page=Page.EXCEPTIONS,
        operator=3,
        subtask=3,
        key="customer-4711",
        sentence="The job has restarted 12 times in 13 minutes for the same reason: "
        "enrich raises KeyError for the record of key 'customer-4711'.",
    )
    attempts = tuple(
        AttemptView(
            i,
            now_ms - (13 - i) * 61_000,
            900,
            "s3://checkpoints/payments/chk-900",
            now_ms - (12 - i) * 61_000,
            "UserCodeError: KeyError: 'XAU'",
        )
        for i in range(1, 13)
    )
    looping = details_of(
        now_ms,
        job_id="payments",
        name="Payments to ledger",
        state="RESTARTING",
        exceptions=failures_of(now_ms, 12),
        records_per_second=310.0,
        attempts=(*attempts, AttemptView(13, now_ms - 9_000, 900, "s3://checkpoints/payments/chk-900")),
    )
    broad = operators_of(128)
    large = details_of(
        now_ms,
        job_id="large",
        name="Clicks, 128 subtasks",
        operators=broad,
        subtasks=subtasks_of(broad),
        checkpoints=checkpoints_of(1_000, now_ms),
        records_per_second=2_310_000.0,
    )
    many = tuple(
        OperatorView(
            i,
            f"step {i}",
            f"step {i}",
            None,
            4,
            128,
            i // 4,
            () if i < 12 else ((i - 12,) if i % 7 else (i - 12, i - 11)),
            records_in=1_000,
            records_in_per_second=float(100 + i),
            records_out_per_second=90.0,
        )
        for i in range(200)
    )
    wide = details_of(
        now_ms,
        job_id="wide",
        name="Two hundred operators",
        operators=many,
        subtasks=subtasks_of(many),
        checkpoints=checkpoints_of(30, now_ms),
    )
    bad = operators_of(2, tuple(f"{HOSTILE}{i}" for i in range(8)), tuple(f"{HOSTILE}{i}" for i in range(8)))
    bad = (
        *bad[:4],
        replace(bad[4], heavy_keys=(HeavyKey(HOSTILE, 0.5, 0),), states={HOSTILE: 5}, functions=(HOSTILE,)),
        *bad[5:],
    )
    hostile_failure = ExceptionView(
        now_ms - 5_000, 1, HOSTILE, HOSTILE, HOSTILE, bad[3].name, 0, HOSTILE, HOSTILE, 1_003, HOSTILE
    )
    hostile = details_of(
        now_ms,
        job_id=HOSTILE_ID,
        name=HOSTILE,
        operators=bad,
        subtasks=subtasks_of(bad),
        checkpoints=checkpoints_of(40, now_ms),
        exceptions=(hostile_failure,),
        configuration={HOSTILE: HOSTILE},
        environment={HOSTILE: HOSTILE},
        guarantee=HOSTILE,
        paths=({"source": HOSTILE, "sink": HOSTILE, "guarantee": HOSTILE, "reason": HOSTILE, "cure": HOSTILE},),
        attempts=(
            AttemptView(1, now_ms - 9_000, 3, HOSTILE, now_ms - 8_000, HOSTILE),
            AttemptView(2, now_ms - 7_000, 3),
        ),
    )
    evil = Finding(
        kind="hot-key", severity=Severity.WARNING, page=Page.GRAPH, operator=4, subtask=0, key=HOSTILE, sentence=HOSTILE
    )
    ended = details_of(
        now_ms,
        job_id="backfill",
        name="Backfill 2025",
        state="FINISHED",
        ended_ms=now_ms - 3_600_000,
        started_ms=now_ms - 9_000_000,
    )
    died = details_of(now_ms - 700_000, job_id="sessions", name="Sessions of visitors", exceptions=())
    gone = Finding(
        kind="died",
        severity=Severity.FAILING,
        page=Page.OVERVIEW,
        sentence="The driver died 11 min ago without a word. Start it again: it continues from checkpoint 1198.",
    )
    new = details_of(
        now_ms,
        job_id="fresh",
        name="Just started",
        state="CREATED",
        started_ms=now_ms - 2_000,
        rounds=(),
        checkpoints=(),
        subtasks=(),
        attempts=(),
        records_per_second=0.0,
        totals=Totals(),
        configuration={},
        environment={},
    )
    made = (
        page_of(looping, now_ms, (loop,)),
        page_of(changed(died, state="RUNNING"), now_ms - 700_000, (gone,), life="died", answers=False),
        page_of(usual, now_ms, (hot, late, rounds)),
        page_of(hostile, now_ms, (evil,)),
        page_of(large, now_ms),
        page_of(wide, now_ms),
        page_of(new, now_ms),
        page_of(ended, now_ms, life="ended", answers=False),
    )
    return {page.card.job_id: page for page in made}


def later(page: JobPage, now_ms: int) -> JobPage:
    """The job a moment later: another round, another subtask that is busy."""
    details, changed = page.details, msgspec.structs.replace
    rounds = details.rounds
    if rounds and page.card.life == "live":
        last = rounds[-1]
        rounds = (*rounds[1:], replace(last, round=last.round + 1, started_ms=now_ms, records_in=last.records_in + 500))
    return changed(page, card=changed(page.card, as_of_ms=now_ms), details=changed(details, rounds=rounds))


def encoded(job_id: str) -> str:
    """The id as it stands in a route of the page."""
    return quote(job_id, safe="")
