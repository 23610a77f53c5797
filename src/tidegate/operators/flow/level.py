"""Run one partition of a level's stage: find its subtask, relay rows for later levels, address the output rows.

``Job`` is what a Python worker keeps of a job attempt; ``JobSpec`` is sent to the worker once.
"""

from __future__ import annotations

import logging
import pickle
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tidegate.base import imports
from tidegate.base.errors import ProgramError, TidegateError
from tidegate.base.pickling import allow_stored, dumps, why_not
from tidegate.graph.plan import Chain, JobGraph
from tidegate.operators.contracts.operator import Settings
from tidegate.operators.flow.outputs import Receiver
from tidegate.operators.flow.round import SubtaskRound
from tidegate.operators.flow.rows import ACK, BARRIER, RoundContext, Row, TaskPlan
from tidegate.operators.flow.subtask import Subtask
from tidegate.operators.loop import rewrites
from tidegate.operators.loop.rewrites.explain import assigners_of, log_functions, places_of
from tidegate.operators.loop.rewrites.rewrite import Rewrites
from tidegate.operators.loop.tagging import tagging_operators

log = logging.getLogger(__name__)


Addressed = tuple[int, Row | bytes]
"""A partition of the next level and a row for it; after the last level 0 and a pickled ``Ack``."""


@dataclass(frozen=True)
class JobSpec:
    """Describe a job for the workers. Functions are pickled per chain, so that every subtask unpickles its own function
    objects."""

    attempt: str
    settings: Settings
    widths: list[int]
    partitions: list[list[tuple[int, int]]]
    """Per level and partition: chain and subtask index."""
    chains: list[bytes]
    senders: dict[int, int]
    targets: dict[int, Receiver]
    main_classes: bytes
    pyflink: bool
    """Imports of ``pyflink`` mean Tidegate, as they do where the program was built."""


@dataclass(frozen=True)
class ShippedChain:
    """Hold a chain with the driver's knowledge about its functions. ``tagging``: operators that may emit to side
    outputs."""

    chain: Chain
    rewrites: Rewrites
    tagging: frozenset[int]


def job_spec(graph: JobGraph, attempt: str, settings: Settings) -> JobSpec:
    """Pickle the user's functions. An error names a function that cannot be pickled, before anything starts."""
    log_functions(graph, fast_json=settings.fast_json)
    tagging = tagging_operators(graph)
    return JobSpec(
        attempt=attempt,
        settings=settings,
        widths=[graph.width(level) for level in range(len(graph.levels))],
        partitions=[[(c.id, s) for c in level for s in range(c.parallelism)] for level in graph.levels],
        chains=[_pickle_chain(chain, tagging) for chain in graph.chains],
        senders={operator.id: operator.parallelism for operator in graph.operators},
        targets=receivers(graph),
        main_classes=_main_classes(),
        pyflink=imports.is_installed(),
    )


def receivers(graph: JobGraph) -> dict[int, Receiver]:
    """Return where each edge leads."""
    receiving = {e.id: chain for chain in graph.chains for e in chain.inputs}
    return {
        e: Receiver(c.level, c.offset, c.parallelism, c.head.operator.max_parallelism, c.head.place)
        for e, c in receiving.items()
    }


def _pickle_chain(chain: Chain, tagging: frozenset[int]) -> bytes:
    try:
        prepared = rewrites.prepare([*(place.function for place in places_of(chain)), *assigners_of(chain)])
        return dumps(ShippedChain(chain, prepared, tagging))
    except Exception:
        for operator in chain.operators:
            try:
                dumps(operator.spec)
            except Exception as error:
                raise ProgramError(
                    "An operator cannot be pickled, so it cannot be sent to the executors",
                    where=f"operator '{operator.name}'",
                    found=why_not(operator.spec, error),
                    cure="create connections, locks and files in open(), not in __init__ or a closure",
                ) from error
        raise


def _main_classes() -> bytes:
    """Pickle the classes of the user's script, so that their instances pickle by reference in the workers too."""
    main = sys.modules.get("__main__")
    found = {n: c for n, c in vars(main).items() if isinstance(c, type) and c.__module__ == "__main__"} if main else {}
    shipped = {}
    for name, cls in found.items():
        try:
            dumps(cls)
            shipped[name] = cls
        except Exception:
            continue
    return dumps(shipped)


class Job:
    """Hold the subtasks of one job attempt that this worker has run so far, with their open functions."""

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec
        self._subtasks: dict[tuple[int, int], Subtask] = {}
        if spec.pyflink:  # before any user code is unpickled
            imports.install()
        self._main_classes: dict[str, type] = pickle.loads(spec.main_classes)
        self.install_main_classes()

    def install_main_classes(self) -> None:
        """Let records of these classes pickle by reference. Another job of this worker may have brought other classes
        of the same name."""
        main = sys.modules["__main__"]
        for name, cls in self._main_classes.items():
            # never a name that the worker's own program has imported
            if getattr(main, name, cls).__module__ == "__main__":
                setattr(main, name, cls)

    def subtask(self, chain: int, index: int, plan: TaskPlan) -> Subtask:
        former = self._subtasks.get((chain, index))
        if former is not None and not former.fits(plan):
            self._drop(self._subtasks.pop((chain, index)))
        if (chain, index) not in self._subtasks:
            s, shipped = self.spec, pickle.loads(self.spec.chains[chain])
            self._subtasks[chain, index] = Subtask(
                shipped.chain, index, s.settings, s.senders, s.targets, shipped.rewrites, shipped.tagging
            )
        return self._subtasks[chain, index]

    def name_of(self, level: int, partition: int, plan: TaskPlan) -> str:
        """Return ``operators (subtask/parallelism)``, for log lines."""
        subtask = self.subtask(*self.spec.partitions[level][partition], plan)
        return f"{subtask.chain.name} ({subtask.index + 1}/{subtask.chain.parallelism})"

    def _drop(self, subtask: Subtask) -> None:
        """Close a subtask that did not run the last round. An error in its ``close`` does not fail the next round."""
        try:
            subtask.close()
        except TidegateError as error:
            log.warning("chain '%s': %s", subtask.chain.name, error)

    def close(self) -> None:
        for subtask in self._subtasks.values():
            subtask.close()
        self._subtasks.clear()

    def run_partition(
        self,
        level: int,
        partition: int,
        context: RoundContext,
        plan: TaskPlan,
        rows: Iterator[Row],
        tasks: Sequence[int] = (),
    ) -> Iterator[Addressed]:
        """Run a round of the partition's subtask. Yield rows with their target partitions. ``tasks``: see ``SubtaskRound``."""
        allow_stored(self.spec.settings.allow_pickle)
        chain, index = self.spec.partitions[level][partition]
        relayed: list[Row] = []
        subtask = self.subtask(chain, index, plan)
        for row in SubtaskRound(subtask, context, plan, tasks).run(_own_rows(rows, level, relayed)):
            yield self._address(row, level, tasks)
            if relayed:
                yield from [self._address(r, level, tasks) for r in relayed]
                relayed.clear()
        yield from [self._address(r, level, tasks) for r in relayed]

    def run_task(
        self,
        level: int,
        task: int,
        context: RoundContext,
        plans: Sequence[TaskPlan],
        rows: Iterable[tuple[int, Row]],
        tasks: Sequence[int],
        begins: Callable[[str], None] = lambda place: None,
    ) -> Generator[Addressed]:
        """Run a round of all subtasks of a task of the engine, one after the other. ``plans``: of these subtasks. ``tasks``: by
        level how many tasks run it: partition p is in task p modulo this number. ``begins`` is called with each subtask's name.
        """
        partitions = range(task, self.spec.widths[level], tasks[level])
        waiting: dict[int, Iterator[Row]]
        if len(partitions) == 1:
            waiting = {task: (row for _, row in rows)}
        else:
            waiting = {partition: iter(dealt) for partition, dealt in self._deal(level, partitions, rows).items()}
        for partition, plan in zip(partitions, plans, strict=True):
            begins(self.name_of(level, partition, plan))
            yield from self.run_partition(level, partition, context, plan, waiting.pop(partition), tasks)

    def _deal(self, level: int, partitions: range, rows: Iterable[tuple[int, Row]]) -> dict[int, list[Row]]:
        """Give the rows of one task to its partitions. A barrier goes to all of them that its edge leads to."""
        dealt: dict[int, list[Row]] = {partition: [] for partition in partitions}
        receiving: dict[int, list[list[Row]]] = {}
        for partition, row in rows:
            if row[2] != BARRIER or row[0] != level:  # of a later level: a subtask relays it
                dealt[partition].append(row)
                continue
            edge = row[3]
            if edge not in receiving:
                target = self.spec.targets[edge]
                last = target.offset + target.parallelism
                receiving[edge] = [dealt[p] for p in partitions if target.offset <= p < last]
            for waiting in receiving[edge]:
                waiting.append(row)
        return dealt

    def _address(self, row: Row, level: int, tasks: Sequence[int]) -> Addressed:
        """Address a row to the next level. A row for a later level goes by the *task* that it is for, whatever subtask of the task
        it is for. So the chunks of a channel and the barrier that counts them pass the same tasks, and come from one attempt of
        the sender. On two ways they could come from two attempts, if the sender ran again in between (T4)."""
        following = level + 1
        if following == len(self.spec.widths):
            assert row[2] == ACK
            return 0, row[7]
        if row[0] == following:
            return row[1], row
        target = row[1] % tasks[row[0]] if tasks and row[2] != ACK else row[1]
        return target % self.spec.widths[following], row


def _own_rows(rows: Iterator[Row], level: int, relayed: list[Row]) -> Iterator[Row]:
    for row in rows:
        if row[0] == level:
            yield row
        else:
            relayed.append(row)


_jobs: dict[str, Job] = {}
"""By attempt, the most recently used last."""
_KEPT_JOBS = 8


def job_in_this_worker(attempt: str, load: Callable[[], JobSpec]) -> Job:
    """Return the cached job of this attempt. Close earlier attempts of the job, and the least recently used jobs if
    there are very many."""
    if next(reversed(_jobs), None) == attempt:
        return _jobs[attempt]
    job = _jobs.pop(attempt, None)
    if job is not None:
        job.install_main_classes()
    else:
        job = Job(load())
        close_job(job.spec.settings.local_name)
        for old in list(_jobs)[: 1 - _KEPT_JOBS]:
            _jobs.pop(old).close()
    _jobs[attempt] = job
    return job


def close_job(local_name: str) -> None:
    """Close everything that this worker holds of a job: all its attempts."""
    for attempt in [attempt for attempt, job in _jobs.items() if job.spec.settings.local_name == local_name]:
        _jobs.pop(attempt).close()
