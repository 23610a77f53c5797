"""One parallel instance of a chain: reads its channels or splits, runs the loop, fires timers, snapshots, acknowledges.

The object is cached in a Python worker and used round after round; nothing it keeps between rounds is state. Steps 4 to 6 of the
protocol happen here.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.common import faults
from tidegate.common.errors import StateFormatError, StorageError, TidegateError, UserCodeError
from tidegate.common.files import Files
from tidegate.common.ids import new_token
from tidegate.graph.plan import Chain, ChainNode, Operator
from tidegate.graph.transformation import ReduceSpec, SinkSpec, SourceSpec, TimestampsSpec
from tidegate.operators import watermarks
from tidegate.operators.batches import SinkOperator, TimestampAssigner
from tidegate.operators.blame import record_in, user_error
from tidegate.operators.codegen import Loop
from tidegate.operators.column_batch import ColumnBatch, Values, packed_field
from tidegate.operators.contexts import ProcessContext, SubtaskRuntimeContext, SubtaskTimerService
from tidegate.operators.functions import Hooks, callable_of
from tidegate.operators.inputs import ChannelInput
from tidegate.operators.outputs import EdgeOutput, Target
from tidegate.operators.ownership import own
from tidegate.operators.packing import PLAIN, Packer
from tidegate.operators.rewrites.rewrite import Rewrites
from tidegate.operators.rows import (
    ACK,
    BARRIER,
    MAX_WATERMARK,
    MIN_WATERMARK,
    Ack,
    Barrier,
    RoundContext,
    Row,
    Status,
    TaskPlan,
)
from tidegate.operators.sink import WriterContext
from tidegate.operators.source import SplitInterval
from tidegate.operators.time_domain import TimeDomain
from tidegate.operators.watermarks import Domain, SplitWatermarks, Strategy
from tidegate.state.backend import KeyedBackend
from tidegate.state.descriptors import ValueStateDescriptor
from tidegate.state.key_groups import range_for
from tidegate.state.local_dir import store_path

_FIRED_BATCH = 4096
_Loop = Callable[[Values, "list[Any] | None", "list[Any] | None"], None]
"""Takes values, timestamps, keys."""


def _system_now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Settings:
    """What every subtask of a job has to know of its surroundings. ``root``: the job's directory on checkpoint storage."""

    job_id: str
    root: str
    local_root: str
    chunk_records: int = 4096
    map_size: int | None = None
    parameters: dict[str, str] = field(default_factory=dict)
    side_outputs: bool = True
    """False: the driver has never made an OutputTag."""
    object_reuse: bool = False
    """Records are never copied: the program promises not to change what it has emitted or was handed."""
    inline: bool = True
    """Small functions are written into the loop instead of called."""
    batch: bool = False
    """Batch mode: no watermark before the one at the end of input, where the timers of both kinds fire."""
    now_ms: Callable[[], int] = _system_now_ms


class Subtask:
    """See the module's docstring. ``senders``: operator id -> its parallelism, ``targets``: edge id -> where it leads,
    ``rewrites``: of functions that need not be called."""

    def __init__(
        self,
        chain: Chain,
        index: int,
        settings: Settings,
        senders: dict[int, int],
        targets: dict[int, Target],
        rewrites: Rewrites,
    ) -> None:
        self.chain, self.index, self.settings = chain, index, settings
        self.rewrites = rewrites if settings.inline else Rewrites()
        self._channels = [(e, s) for e in chain.inputs for s in range(senders[e.source])]
        self._packers = {e.id: Packer(e.record_type) for e in chain.inputs}
        self._nodes = list(chain.head.walk())
        self.backend = self._create_backend(chain.head.operator)
        self.domain = Domain()
        self._above: dict[int, Domain] = {}
        self._below: dict[int, Domain] = {}
        self._spread_domains(chain.head, self.domain)
        self._outputs = [
            EdgeOutput(e, index, chain.parallelism, targets[e.id], settings.chunk_records)
            for node in self._nodes
            for e in node.edges
        ]
        self._functions: dict[int, Callable[..., Any]] = {}
        self._contexts: dict[int, ProcessContext] = {}
        self._hooks: list[Hooks] = []
        self._is_open = False
        self._sinks = [SinkOperator(n.operator) for n in self._nodes if isinstance(n.operator.spec, SinkSpec)]
        self._assigners = [
            (TimestampAssigner(n.operator, self._below[n.operator.id], settings.batch), Loop(n, self, into=False))
            for n in self._nodes
            if isinstance(n.operator.spec, TimestampsSpec)
        ]
        self._reader: Any = None
        self._create_loops(chain.head)

    # -- set-up ------------------------------------------------------------------------------------------------------

    def _spread_domains(self, node: ChainNode, domain: Domain) -> None:
        """An operator sees the watermark above it. Below a keyed one it advances only after the timers it is due to have fired:
        what they emit is not late for anybody."""
        has_timers = node is self.chain.head and self.backend is not None
        below = Domain() if has_timers or isinstance(node.operator.spec, TimestampsSpec) else domain
        self._above[node.operator.id], self._below[node.operator.id] = domain, below
        for _, child in node.children:
            self._spread_domains(child, below)

    def _create_backend(self, head: Operator) -> KeyedBackend | None:
        if head.keyed is None or isinstance(head.spec, SinkSpec | TimestampsSpec):
            return None
        s = self.settings
        return KeyedBackend(
            operator=head.uid_hash,
            operator_name=head.name,
            groups=range_for(self.index, head.parallelism, head.max_parallelism),
            max_parallelism=head.max_parallelism,
            key_type=head.keyed.key_type,
            local_path=store_path(s.local_root, s.job_id, head.uid_hash, self.index),
            files=Files(s.root),
            map_size=s.map_size,
        )

    def _open_functions(self) -> None:
        for node in self._nodes:
            operator, spec = node.operator, node.operator.spec
            if not isinstance(spec, SourceSpec | SinkSpec | TimestampsSpec):
                backend = self.backend if node is self.chain.head else None
                self._functions[operator.id] = callable_of(spec)
                service = SubtaskTimerService(operator, self._above[operator.id], backend, self.settings.now_ms)
                self._contexts[operator.id] = ProcessContext(service, backend)
                self._open(spec.function, operator, backend, f"operator '{operator.name}'")
            for edge in node.edges:
                for function in (edge.partitioning.selector, edge.partitioning.partitioner):
                    owner = getattr(function, "__self__", None)  # a bound method of a KeySelector or Partitioner
                    if owner is not None:
                        self._open(owner, operator, None, f"partitioning behind operator '{operator.name}'")

    def _open(self, function: Any, operator: Operator, backend: KeyedBackend | None, where: str) -> None:
        hooks = Hooks(function, where)
        hooks.open(SubtaskRuntimeContext(operator, self.index, backend, self.settings.parameters))
        self._hooks.append(hooks)

    def _create_loops(self, head: ChainNode) -> None:
        spec = head.operator.spec
        self._source = spec if isinstance(spec, SourceSpec) else None
        self._strategy = Strategy(spec.watermarks if isinstance(spec, SourceSpec) else None, self.settings.batch)
        self._out = Loop(head, self, into=False)
        self._in: _Loop
        batch_heads = [c for c in (*self._sinks, *(a for a, _ in self._assigners)) if c.operator.id == head.operator.id]
        if batch_heads:
            self._in = batch_heads[0].extend
        else:
            self._in = self._out if self._source else Loop(head, self, into=True)

    def _close_functions(self) -> None:
        """The input has ended."""
        for hooks in self._hooks:
            if self._over or not hooks.listens:
                hooks.close()

    def close(self) -> None:
        """The job, or this attempt of it, is over in this worker."""
        for hooks in self._hooks:
            hooks.close()
        if self._reader is not None:
            self._reader.close()

    # -- what the generated code asks for (codegen.Bindings) -----------------------------------------------------------

    @property
    def side_outputs(self) -> bool:
        return self.settings.side_outputs

    @property
    def object_reuse(self) -> bool:
        return self.settings.object_reuse

    def function(self, operator_id: int) -> Callable[..., Any]:
        return self._functions[operator_id]

    def context(self, operator_id: int) -> ProcessContext:
        return self._contexts[operator_id]

    def reduce_state(self, operator_id: int) -> Any:
        spec = self.chain.head.operator.spec
        assert self.backend is not None and isinstance(spec, ReduceSpec) and self.chain.head.operator.id == operator_id
        return self.backend.state(ValueStateDescriptor("_reduce", spec.value_type))

    def collector(self, operator_id: int) -> tuple[Callable[[Any], None], Callable[[Any], None]]:
        batches = (*self._sinks, *(a for a, _ in self._assigners))
        batch = next(b for b in batches if b.operator.id == operator_id)
        return batch.values.append, batch.timestamps.append

    def output(self, edge_id: int) -> EdgeOutput:
        return next(o for o in self._outputs if o.edge.id == edge_id)

    # -- a round -------------------------------------------------------------------------------------------------------

    def run(self, context: RoundContext, plan: TaskPlan, rows: Iterator[Row]) -> Iterator[Row]:
        """Yields chunks, then barriers and the ack. Always drains ``rows``; a failure travels in the ack, not as a dead worker."""
        self._begin(context, plan)
        try:
            self._guard(self._prepare)
            if self._source is not None:
                for _ in rows:  # there are none, but an iterator that is not drained costs the worker
                    pass
                for interval in plan.intervals:
                    yield from self._read(interval)
            else:
                for row in rows:
                    self._guard(self._receive, row)
                    yield from self._take_rows()
            self._guard(self._end_of_round)
            yield from self._take_rows()
            if self._finished:
                self._guard(self._close_functions)
            self._snapshot()
            yield from self._barriers()
            faults.point("T2.before-ack", **self._where)
            self.ack.seconds = time.perf_counter() - self._started
            yield (-1, self.chain.offset + self.index, ACK, 0, 0, 0, 0, pickle.dumps(self.ack, 5))
        finally:
            self._end()

    def _begin(self, context: RoundContext, plan: TaskPlan) -> None:
        self._round, self._plan = context, plan
        self._started = time.perf_counter()
        self.ack = Ack(self.chain.id, self.index, new_token())
        self._where = {"chain": self.chain.name, "subtask": self.index, "round": context.round}
        self._failed = self._finished = self._timed = False
        for operator_id, below in self._below.items():
            statuses = context.statuses.get(operator_id)
            below.watermark, below.idle = statuses[self.index] if statuses else Status()
        self._over = self._below[self.chain.head.operator.id].watermark == MAX_WATERMARK
        # Every channel starts the round as active: only its barrier, behind all it sends, may say that it is idle.
        # A sender that was idle and reads again would otherwise be overtaken, and its records be late.
        starts = {
            (e.id, s): Status(context.statuses[e.source][s].watermark) if e.source in context.statuses else Status()
            for e, s in self._channels
        }
        head = self.chain.head.operator  # below an assigner there is another event time than above it
        reached = MIN_WATERMARK if isinstance(head.spec, TimestampsSpec) else self._below[head.id].watermark
        self._input = ChannelInput(starts, reached)
        self._marks = SplitWatermarks(self._strategy, plan.splits)
        if self._source is None:
            self.domain.watermark = self._input.watermarks.current()
        for output in self._outputs:
            output.begin()

    def _prepare(self) -> None:
        """Functions open (once), notifications; then the state: the local store is brought to exactly the accepted files."""
        if self.backend is not None:
            self.backend.stored = self._plan.schemas
        if not self._is_open:
            self._open_functions()
            self._is_open = True
        elif not self._over:
            for hooks in self._hooks:
                hooks.reopen()
        if self._round.completed or self._round.aborted:
            for hooks in self._hooks:
                hooks.notify(self._round.completed, self._round.aborted)
        now = self._now_ms()
        for assigner, _ in self._assigners:
            assigner.begin(self._plan.generators.get(assigner.operator.id), now)
        for sink in self._sinks:
            sink.begin(self._writer_context(sink.operator, now), self._plan.writers.get(sink.operator.id, []))
        faults.point("T1.before-state", **self._where)
        if self.backend is not None:
            self.backend.begin(self._plan.files, self._plan.replaced)
            self.backend.now_ms = now
            if self._plan.compact is not None:
                self._compact(self.backend, self._plan.compact)
            self._fire_due(self.backend.processing_timers, now, TimeDomain.PROCESSING_TIME)

    def _writer_context(self, operator: Operator, now: int) -> WriterContext:
        return WriterContext(
            job_id=self.settings.job_id,
            sink_id=operator.uid_hash,
            subtask=self.index,
            parallelism=operator.parallelism,
            round=self._round.round,
            checkpoint_id=self._round.checkpoint_id,
            attempt=self.ack.token,
            now_ms=now,
            staging=f"{self.settings.root}/taskowned/{operator.uid_hash}",
        )

    def _compact(self, backend: KeyedBackend, run: tuple[int, int]) -> None:
        try:
            self.ack.compacted = backend.compact(self._plan.files, run, self._state_path("base"))
        except StorageError as error:
            if any(file.root for file in self._plan.files):
                self._decline(error)  # files of another job's directory may not get into a checkpoint of this one
            self.ack.compacted = None  # otherwise the old files are as good; a later round tries again

    def _now_ms(self) -> int:
        """Processing time, never behind the driver's, which decided that a timer is due."""
        return max(self._round.now_ms, self.settings.now_ms())

    def _guard(self, step: Callable[..., None], *arguments: Any) -> None:
        """Run a step unless an earlier one failed."""
        if self._failed:
            return
        try:
            step(*arguments)
        except TidegateError as error:
            self._fail(error)
        except Exception as error:
            self._fail(user_error(error, f"chain '{self.chain.name}'", None))

    def _fail(self, error: Exception) -> None:
        self._failed = True
        self.ack.error = error
        for output in self._outputs:
            output.begin()

    def _read(self, interval: SplitInterval) -> Iterator[Row]:
        self._batches: Iterator[Any] | None = None
        self._guard(self._open_split, interval)
        while self._batches is not None and not self._failed:
            self._guard(self._next_batch, interval.split)
            yield from self._take_rows()
        if interval.last:
            self._marks.finish(interval.split)

    def _open_split(self, interval: SplitInterval) -> None:
        assert self._source is not None
        self._marks.start(interval.split, self._now_ms())
        self._reader = self._reader or self._source.source.create_reader(self.index)
        self._batches = self._reader.read(interval)

    def _next_batch(self, split: str) -> None:
        assert self._batches is not None
        batch = next(self._batches, None)
        if batch is None:
            self._batches = None
        else:
            self._source_batch(split, *batch)

    def _source_batch(self, split: str, values: Values, timestamps: list[int] | None) -> None:
        now = self._now_ms()
        try:
            timestamps = self._strategy.timestamps(values, timestamps)
        except Exception as error:
            where = f"timestamp assigner of operator '{self.chain.head.operator.name}'"
            raise user_error(error, where, record_in(error, watermarks.__file__, "value")) from error
        self.ack.records_in += len(values)
        self._process(self._in, values, timestamps, None)
        self._marks.seen(split, timestamps, now)
        self.domain.watermark, self.domain.idle = self._marks.status(self.domain.watermark, now)
        self._cut(everything=False)

    def _receive(self, row: Row) -> None:
        for _, _, kind, edge, sender, _, watermark, payload in self._input.ready(row):
            if kind == BARRIER:
                self._input.watermarks.update(edge, sender, watermark, payload.idle)
            else:
                values, keys, timestamps = self._unpacked(edge, *payload)
                self.ack.records_in += len(values)
                if self.backend is not None:
                    self.backend.now_ms = self._now_ms()
                    self.backend.prefetch(keys)
                self._process(self._in, values, timestamps, keys)
                self._input.watermarks.update(edge, sender, watermark, False)
            self._advance(self._input.watermarks.current())
            self._cut(everything=False)

    def _unpacked(self, edge: int, values: bytes, keys: bytes | None, times: bytes | None) -> tuple[Values, Any, Any]:
        """Values, keys or None, timestamps or None."""
        records = self._packers[edge].unpack(values)
        if keys is not None and isinstance(records, ColumnBatch):
            records.key_field = packed_field(keys)
            if records.key_field is not None:
                return records, records.columns[records.key_field].tolist(), times and PLAIN.unpack_list(times)
        return records, keys and PLAIN.unpack_list(keys), times and PLAIN.unpack_list(times)

    def _process(self, loop: _Loop, values: Values, timestamps: list[Any] | None, keys: list[Any] | None) -> None:
        self._run_loop(loop, values, timestamps, keys)
        for assigner, below in self._assigners:
            now = self._now_ms()
            batch = assigner.take(now)
            if batch is not None:
                self._run_loop(below, *batch, None)
                assigner.advance(now)
        for sink in self._sinks:
            sink.drain()

    def _run_loop(self, loop: _Loop, values: Values, timestamps: list[Any] | None, keys: list[Any] | None) -> None:
        timed = timestamps is not None
        if timed != self._timed:  # a chunk has timestamps for all of its records or for none
            self._cut(everything=True)
            self._timed = timed
        loop(values, timestamps, keys)

    def _advance(self, watermark: int) -> None:
        if watermark > self.domain.watermark:
            self.domain.watermark = watermark
        if self.backend is not None:
            self._fire_due(self.backend.event_timers, self.domain.watermark, TimeDomain.EVENT_TIME)
            self._fire_due(self.backend.processing_timers, self._now_ms(), TimeDomain.PROCESSING_TIME)
            below = self._below[self.chain.head.operator.id]
            below.watermark, below.idle = self.domain.watermark, self.domain.idle

    def _fire_due(self, queue: Any, up_to: int, kind: TimeDomain) -> None:
        due = None if self._over else queue.next_time()  # Flink: no timer fires in a task that has ended
        if due is not None and due <= up_to:
            self._fire(queue.due(up_to), kind)

    def _fire(self, timers: Iterable[tuple[int, Any]], kind: TimeDomain) -> None:
        assert self.backend is not None
        head = self.chain.head.operator
        context = self._contexts[head.id]
        on_timer = getattr(getattr(head.spec, "function", None), "on_timer", None)
        values: list[Any] = []
        times: list[int | None] = []
        context.domain = kind
        for moment, key in timers:
            self.backend.key, context.ts = key, moment
            try:
                values.extend(map(own, (on_timer and on_timer(moment, context)) or ()))
            except Exception as error:
                raise user_error(error, f"on_timer({moment}) of operator '{head.name}', key {key!r}", None) from error
            # Flink: what an event-time timer emits carries the timer's time, a processing-time timer's output no timestamp
            times.extend([moment if kind is TimeDomain.EVENT_TIME else None] * (len(values) - len(times)))
            if len(values) >= _FIRED_BATCH:
                self._process(self._out, values, times, None)
                self._cut(everything=False)
                values, times = [], []
        self._process(self._out, values, times, None)
        self._cut(everything=False)

    def _cut(self, everything: bool) -> None:
        for output in self._outputs:
            output.cut(self._below[output.edge.source].watermark, everything)

    def _take_rows(self) -> Iterator[Row]:
        for output in self._outputs:
            if output.rows:
                yield from output.rows
                output.rows.clear()

    def _end_of_round(self) -> None:
        """Step 4: all barriers are in. Then the last timers, and the end of input if this is it."""
        now = self._now_ms()
        if self._source is not None:
            self._finished = self._plan.source_finished
            self.domain.watermark, self.domain.idle = self._marks.status(self.domain.watermark, now)
            self.ack.splits = self._marks.splits
            self._wake_up(self._marks.next_idle_ms(now))
        else:
            self._input.check_complete(self.chain.name)
            self.ack.inputs = self._input.tokens
            if self._input.failed:
                self._failed = True
                return
            self._finished = self._input.finished
            self.domain.idle = self._input.watermarks.idle
        if self._finished:
            self.domain.idle = False
            self._advance(MAX_WATERMARK)
            if self.settings.batch and self.backend is not None:
                # Flink: with the input all time ends, and timers set from here on are ignored (so a periodic one ends)
                self._fire(self.backend.processing_timers.remaining(), TimeDomain.PROCESSING_TIME)
        else:
            self._advance(self.domain.watermark if self._source else self._input.watermarks.current())
        for assigner, _ in self._assigners:
            self._wake_up(assigner.end_of_round(now, self._finished))
            self.ack.generators[assigner.operator.id] = assigner.generator
        self._cut(everything=True)
        if self.backend is not None and not self._finished:
            self._wake_up(self.backend.processing_timers.next_time())

    def _wake_up(self, moment: int | None) -> None:
        if moment is not None and (self.ack.wake_up_ms is None or moment < self.ack.wake_up_ms):
            self.ack.wake_up_ms = moment

    # -- steps 5 and 6 -------------------------------------------------------------------------------------------------

    def _snapshot(self) -> None:
        """Step 5: segment durable, sinks prepared. A failure declines; nothing of the attempt is visible to anybody."""
        started = time.perf_counter()
        try:
            if not self._failed:
                faults.point("T2.before-segment", **self._where)
                if self.backend is not None:
                    self.ack.segment = self.backend.write_segment(self._round.version, self._state_path("seg"))
                    self.ack.schemas = self.backend.schemas()
                faults.point("T2.after-segment", **self._where)
                for sink in self._sinks:
                    self.ack.prepared[sink.operator.id] = sink.prepare_commit(self._finished)
                    self.ack.declined = self.ack.declined or sink.declined
                faults.point("K2.prepared", **self._where)
        except (UserCodeError, StateFormatError) as error:
            self._fail(error)
        except Exception as error:
            self._decline(error)
        self.ack.snapshot_seconds = time.perf_counter() - started

    def _decline(self, error: Exception) -> None:
        place = f"'{self.chain.name}' ({self.index + 1}/{self.chain.parallelism})"
        self.ack.declined = f"snapshot of {place}: {type(error).__name__}: {error}"

    def _state_path(self, ending: str) -> str:
        """Unique for every attempt: a zombie can never write over the file of another one."""
        operator = self.chain.head.operator.uid_hash[:12]
        return f"shared/{operator}-{self.index}-{self._round.round}-{self.ack.token}.{ending}"

    def _barriers(self) -> Iterator[Row]:
        """Step 6 for the subtasks below: one barrier each, behind everything else."""
        ack = self.ack
        for operator_id, below in self._below.items():
            ack.statuses[operator_id] = Status(MAX_WATERMARK if self._finished else below.watermark, below.idle)
        for output in self._outputs:
            status = ack.statuses[output.edge.source]
            ack.records_out += output.records
            barrier = Barrier(ack.token, status.idle, self._finished, self._failed)
            yield from output.barrier_rows(status.watermark, barrier)

    def _end(self) -> None:
        for sink in self._sinks:
            sink.end(abort=self._failed or self.ack.declined is not None)
        if self.backend is not None:
            self.backend.end()
