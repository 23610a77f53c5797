"""Certify a job: the same input must give the same output, whatever fails, wherever it runs, whenever it runs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tidegate.base.errors import StateAccessError, TidegateError
from tidegate.base.portable_errors import RemoteTraceback
from tidegate.datastream.functions import AggregateFunction
from tidegate.graph.transformation import Program, Transformation
from tidegate.operators.windows.assigner import WindowAssigner
from tidegate.operators.windows.evictors import Evictor
from tidegate.operators.windows.trigger import Trigger
from tidegate.testing.certify import code, probes
from tidegate.testing.certify.findings import Finding, Report
from tidegate.testing.certify.isolation import TOLD
from tidegate.testing.certify.prepared import PreparedJob
from tidegate.testing.certify.schedules import (
    CertifiedDriver,
    Schedule,
    ScheduleResult,
    differences,
    run,
    schedules,
    shown,
)

SIZES = (2, 8, 32, 128, 512, 2_048, 8_192, 65_536, 1 << 20)
"""Records of a source in a round: the smallest with which a run is short."""
SHORT = 60
"""Rounds."""
_CURES = {
    probes.FIELD: "keep it in state: runtime_context.get_state(ValueStateDescriptor(...)) in open()",
    probes.CLASS: "keep it in state: a class attribute is shared by all keys, and lost with its worker",
    probes.DEFAULT: "use None as the default, and keep what must survive in state",
    probes.GLOBAL: "keep it in state: a global variable is lost with its worker",
    probes.CAPTURED: "keep it in state: a captured variable is lost with its worker",
}
_CURES_IN_WINDOWS: dict[type[Any], str] = {
    Trigger: "keep it in the state of the window: ctx.get_partitioned_state(...)",
    Evictor: "decide by the elements, the window and the context: an evictor has no state",
    WindowAssigner: "decide by the element and its timestamp: an assigner has no state",
    AggregateFunction: "keep it in the accumulator",
}
_KINDS = {
    probes.FIELD: ("field-as-state", "A field is used as state"),
    probes.CLASS: ("field-as-state", "A class attribute is used as state"),
    probes.DEFAULT: ("mutable-default", "A mutable default is used as state"),
    probes.GLOBAL: ("global-as-state", "A global variable is used as state"),
    probes.CAPTURED: ("field-as-state", "A captured variable is used as state"),
}


class Certifier:
    """Run the probes and the schedules of one job. ``progress(done, of, what)`` is called now and then."""

    def __init__(
        self,
        job: PreparedJob,
        *,
        most: int = 200,
        seconds: float = 300.0,
        seed: int = 1,
        progress: Callable[[int, int, str], None] = lambda done, of, what: None,
    ) -> None:
        self._job, self._most, self._progress = job, most, progress
        self._deadline, self._started = time.monotonic() + seconds, time.monotonic()
        self._schedule = Schedule(seed)
        self.report = Report(job.program.name)
        self._expected: dict[str, Counter[str]] = {}
        self._depends_on_order = False
        self._unstable = False
        """Two runs without any difference give different results."""
        self._lost_with_worker: str | None = None
        """How the result differs if each round runs in a new worker, where no line explains that."""
        self._remembered: list[str] = []
        """What functions can remember outside of state, and has changed in a run."""

    def reference(self) -> dict[str, Counter[str]] | None:
        """Run the job without faults, in rounds as small as useful. None: it fails, which is a finding."""
        outcome = self._find_size()
        if outcome.error is not None:
            self.report.add(self._failed(outcome))
            return None
        self._expected = outcome.visible
        return self._expected

    def run(self, other: dict[str, Counter[str]] | None = None) -> Report:
        """Run everything. ``reference`` comes first. ``other``: the result of a process with other hashes."""
        if not self.report.findings:
            self._check_ids()
            self._probe()
            if other is not None:
                self._compare_processes(other)
            self._run_schedules()
        self.report.seconds = time.monotonic() - self._started
        return self.report

    def _find_size(self) -> ScheduleResult:
        for size in SIZES:
            self._schedule = replace(self._schedule, records=size)
            outcome = self._plain(self._schedule)
            if outcome.error is not None or (outcome.stuck is None and outcome.rounds <= SHORT):
                break
        if outcome.stuck is not None:
            self._schedule = replace(self._schedule, records=None)
            outcome = self._plain(self._schedule)
        return outcome

    def _plain(self, schedule: Schedule, **more: Any) -> ScheduleResult:
        """Run with the same clock and the same random numbers as ever."""
        probes.seed_everything(1)
        probes.WallClock.now = probes.NOON
        return run(self._job, schedule, **more)

    # -- static --------------------------------------------------------------------------------------------------------

    def _check_ids(self) -> None:
        if self._job.takes_checkpoints:
            self.report.add(*map(_without_uid, self._job.generated_ids))

    # -- probes: one thing is changed, everything else is the same --------------------------------------------------------

    def _probe(self) -> None:
        every: list[tuple[str, Callable[[], None]]] = [
            ("randomness and clocks", self._probe_calls),
            ("fields", self._probe_memory),
            ("keys", self._probe_keys),
            ("order", self._probe_order),
            ("workers", self._report_lost),
        ]
        for number, (what, probe) in enumerate(every):
            self._progress(number, len(every), f"probe: {what}")
            probe()

    def _probe_memory(self) -> None:
        before: dict[tuple[str, int, int], probes.Fingerprint] = {}
        changed: dict[tuple[str, str, str], Any] = {}

        def look(driver: CertifiedDriver) -> None:
            for place, (obj, now) in probes.remembered(driver.operators()).items():
                first = before.setdefault(place, fresh.get(place[::2], now))
                for (kind, name), content in now.items():
                    if first.get((kind, name)) != content:
                        changed.setdefault((place[0], kind, name), obj)

        fresh = self._fresh_fingerprints()
        self._plain(self._schedule, look=look)
        self._remembered = [f"{kind} {name!r} of operator {operator!r}" for operator, kind, name in changed]
        outcome = self._plain(replace(self._schedule, new_workers=True))
        differ = self._differ(outcome)
        if differ is None or self._unstable:
            return
        found = []
        for (operator, kind, name), obj in changed.items():
            line = probes.line_of(obj, kind, name)
            if line is not None:
                found.append(_remembers(self._with_place(operator), kind, name, line, differ, obj))
        self._lost_with_worker = None if found else differ
        self.report.add(*found)

    def _report_lost(self) -> None:
        """Report what another worker changes, and neither a line nor the order of records explains."""
        if self._lost_with_worker is not None:
            self.report.add(
                Finding(
                    "lost-with-worker",
                    "The result depends on which worker runs a round",
                    "the job",
                    None,
                    self._lost_with_worker,
                    "keep everything that must survive a round in state",
                )
            )

    def _fresh_fingerprints(self) -> dict[tuple[str, int], probes.Fingerprint]:
        """Return what the functions remember before they have run, by operator and number."""
        found: dict[tuple[str, int], probes.Fingerprint] = {}
        for operator in self._job.graph().operators:
            for number, obj in enumerate(code.user_objects(operator.spec.user_function)):
                found[operator.name, number] = probes.fingerprint(obj)
        return found

    def _probe_calls(self) -> None:
        watcher = probes.CallWatcher()
        with probes.watched(watcher):
            self._plain(self._schedule)
        again = self._differ(self._plain(self._schedule))
        self._unstable = again is not None
        probes.seed_everything(2)
        differ = again or self._differ(run(self._job, self._schedule))
        if differ is not None:
            found = [
                Finding(
                    "randomness",
                    "The result depends on random numbers",
                    self._operator_at(place),
                    line,
                    f"two runs without a failure differ; {differ}",
                    "derive it from the record, or draw it before the job and send it with the record",
                )
                for place, line in watcher.lines(probes.RANDOM)
            ]
            self.report.add(*found)
            if not found:
                self._depends_on_order = True
        for moved in (3_600.0, 86_400.0 * 45) if watcher.lines(probes.CLOCK) else ():
            probes.seed_everything(1)
            probes.WallClock.now = probes.NOON + moved
            later = self._differ(run(self._job, self._schedule))
            if later is not None and differ is None:
                self.report.add(
                    *(
                        Finding(
                            "wall-clock",
                            "The result depends on the time of day",
                            self._operator_at(place),
                            line,
                            f"a later run of the same records differs; {later}",
                            "use the record's event time, ctx.timestamp(), or ctx.timer_service().current_processing_time()",
                        )
                        for place, line in watcher.lines(probes.CLOCK)
                    )
                )
                break
        for zone in ("CER+03:30", "CER-09:45") if watcher.lines(probes.ZONE) else ():
            with probes.time_zone(zone):
                elsewhere = self._differ(self._plain(self._schedule))
            if elsewhere is not None and differ is None:
                self.report.add(
                    *(
                        Finding(
                            "time-zone",
                            "The result depends on the time zone of the machine",
                            self._operator_at(place),
                            line,
                            f"another time zone gives another result; {elsewhere}",
                            "name the time zone: datetime.fromtimestamp(seconds, tz=UTC), or zoneinfo.ZoneInfo(...)",
                        )
                        for place, line in watcher.lines(probes.ZONE)
                    )
                )
                break

    def _probe_keys(self) -> None:
        def checked(program: Program) -> Program:
            changed = []
            for t in program.transformations:
                inputs = tuple(
                    replace(i, partitioning=probes.with_checked_keys(i.partitioning, t.name))
                    if i.partitioning is not None and i.partitioning.selector is not None
                    else i
                    for i in t.inputs
                )
                changed.append(replace(t, inputs=inputs))
            return replace(program, transformations=tuple(changed))

        probes.unordered_keys.clear()
        self._plain(self._schedule, changed=checked)
        for operator, (line, keys) in probes.unordered_keys.items():
            self.report.add(
                Finding(
                    "unordered-key",
                    "A key depends on the order of a dict",
                    f"key selector of operator '{operator}'",
                    line,
                    f"equal records have different keys: {keys}",
                    "use a field, a tuple of fields, or tuple(sorted(value.items())) as the key",
                )
            )

    def _probe_order(self) -> None:
        """Vary what no job can rely on, without a failure: the order between inputs and splits, rounds, parallelism."""
        base, seed = self._schedule, self._schedule.seed * 1_000
        widths: list[int] = [] if self._job.batch else [1, 2, 3]
        every = [replace(base, seed=seed + number) for number in range(3)]
        every += [
            replace(base, parallelism=(width,), records=size) for width in widths for size in (base.records, None)
        ]
        for schedule in every:
            differ = self._differ(self._plain(schedule))
            if differ is not None and not self._remembered:
                self._lost_with_worker = (
                    None  # the order explains it: a new worker reads keys from storage in another order
                )
            if differ is not None and not self.report.findings:
                self._depends_on_order = True
                note = (
                    "the result depends on the order in which records of several splits, inputs or keys arrive, which no job can "
                    f"rely on: results after failures are not compared ({differ}; schedule: {schedule})"
                )
                if self._remembered:
                    note += f"; or it depends on what the keys of a worker share: {', '.join(self._remembered)} changes"
                self.report.notes.append(note)
                return

    def _compare_processes(self, other: dict[str, Counter[str]]) -> None:
        differ = self._differ(ScheduleResult(other))
        if differ is None or self._unstable or self.report.has("randomness"):
            return
        for operator, line in self._set_lines() or [("the job", None)]:
            self.report.add(
                Finding(
                    "order-of-a-set",
                    "The result depends on the order of a set, or on a hash",
                    operator,
                    line,
                    f"a process with other hashes gives another result; {differ}",
                    "walk over sorted(the_set), and use zlib.crc32 or hashlib in place of hash()",
                )
            )

    # -- schedules -----------------------------------------------------------------------------------------------------

    def _run_schedules(self) -> None:
        profile = self._plain(replace(self._schedule, workers=2))
        rounds = [size for size in SIZES if size >= (self._schedule.records or 1 << 30)][:3]
        strict = not (self._depends_on_order or self.report.findings)
        points: set[str] = set()
        for schedule in schedules(self._schedule, self._job, profile.passed, profile.in_tasks, rounds):
            if self.report.schedules >= self._most or time.monotonic() > self._deadline:
                break
            outcome = self._plain(schedule)
            self.report.schedules += 1
            points.update(outcome.fired)
            self._judge(schedule, outcome, strict=strict)
            self._progress(self.report.schedules, self._most, "schedules")
        self.report.points = len(points)

    def _judge(self, schedule: Schedule, outcome: ScheduleResult, *, strict: bool) -> None:
        if outcome.stuck is not None:
            return
        if outcome.error is not None:
            if strict or not self.report.findings:
                self.report.add(self._failed(outcome, schedule))
            return
        if not outcome.fired and not any(vars(schedule.chances).values()) and self._depends_on_order:
            return
        for sink, (missing, extra) in differences(self._expected, outcome.visible).items():
            expected = self._expected.get(sink, Counter())
            repeated = not missing and all(value in expected for value in extra)
            if self._job.at_once(sink) and repeated:
                if not self._job.idempotent(sink):
                    self.report.add(self._repeats(sink, extra, schedule))
            elif strict:
                self.report.add(
                    Finding(
                        "other-result",
                        "The result is another one after a failure",
                        self._job.recorder(sink),
                        code.line_at(self._job.sinks[sink].place),
                        f"{shown(missing, extra)}; schedule: {schedule}",
                        "look for what the functions remember outside of state, and for what they read from outside",
                    )
                )

    def _repeats(self, sink: str, extra: Counter[str], schedule: Schedule) -> Finding:
        return Finding(
            "sink-repeats",
            "A sink writes records again after a failure",
            self._job.recorder(sink),
            code.line_at(self._job.sinks[sink].place),
            f"{shown(Counter(), extra)}; schedule: {schedule}",
            self._job.cure_of_sink(sink),
        )

    # -- help ----------------------------------------------------------------------------------------------------------

    def _differ(self, outcome: ScheduleResult) -> str | None:
        """Return how an outcome differs from the reference; None: it does not, or it says nothing."""
        if outcome.stuck is not None:
            return None
        if outcome.error is not None:
            return f"the job fails: {_first_line(outcome.error)}"
        every = differences(self._expected, outcome.visible)
        return shown(*next(iter(every.values()))) if every else None

    def _failed(self, outcome: ScheduleResult, schedule: Schedule | None = None) -> Finding:
        error = outcome.error
        assert error is not None
        cause: BaseException = error
        while not isinstance(cause.__cause__, RemoteTraceback | None) and not isinstance(cause, StateAccessError):
            cause = cause.__cause__
        told = cause if isinstance(cause, TidegateError) else error
        where = getattr(told, "where", None) or getattr(error, "where", None) or "the job"
        during = f"; schedule: {schedule}" if schedule is not None else ""
        kind, title, cure = "job-fails", "The job fails", "correct the function, so that the sample passes"
        if isinstance(cause, StateAccessError):
            kind, title, cure = "state-outside-of-key", "State is read outside of its key", cause.cure or cure
        elif TOLD in str(cause):
            kind, title = "touches-outside", "A function calls another system"
            cure = "give certify a function that answers from recorded data, for example by an argument of the program"
        return Finding(kind, title, where, outcome.failed_at, f"{_first_line(cause)}{during}", cure)

    def _with_place(self, operator: str) -> str:
        place = next((t.place for t in self._job.program.transformations if t.name == operator), None)
        return f"operator '{operator}'" + (f" (added at {code.short(place)})" if place else "")

    def _operator_at(self, place: str) -> str:
        """Return the operator whose code has a line."""
        file, _, number = place.rpartition(":")
        for operator, obj in self._objects():
            for function in code.functions_of(obj):
                node: Any = code.node_of(function)
                inside = node is not None and node.lineno <= int(number) <= (node.end_lineno or node.lineno)
                if function.__code__.co_filename == file and inside:
                    return f"operator '{operator}'"
        return "the job"

    def _objects(self) -> Iterator[tuple[str, Any]]:
        graph = self._job.graph()
        for operator in graph.operators:
            for obj in code.user_objects(operator.spec.user_function):
                yield operator.name, obj
        for t in self._job.program.transformations:
            for i in t.inputs:
                if i.partitioning is not None and i.partitioning.selector is not None:
                    yield t.name, i.partitioning.selector

    def _set_lines(self) -> list[tuple[str, str | None]]:
        """Return the operators whose code makes sets or hashes, with the lines."""
        found: list[tuple[str, str | None]] = []
        for operator, obj in self._objects():
            line = code.first_line(obj, code.makes_set, life_cycle=True)
            if line is not None:
                found.append((f"operator '{operator}'", line))
        return found


def _without_uid(t: Transformation) -> Finding:
    return Finding(
        "missing-uid",
        "An operator with state has no uid",
        f"operator '{t.name}'",
        t.place and code.line_at(t.place),
        "its state is found by its position in the program: a changed program may miss it",
        f"call .uid(...) on it, with a name that never changes: .uid({t.name.lower().replace(' ', '-')!r})",
    )


def _remembers(operator: str, kind: str, name: str, line: str, differ: str, obj: Any) -> Finding:
    short, title = _KINDS[kind]
    cure = next((cure for parts, cure in _CURES_IN_WINDOWS.items() if isinstance(obj, parts)), _CURES[kind])
    found = f"{kind} {name!r} changes, and is lost with its worker; {differ}"
    return Finding(short, title, operator, line, found, cure)


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
