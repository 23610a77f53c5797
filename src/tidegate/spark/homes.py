"""Where the tasks of a level run: each has a home, the host that has the local state of its subtasks."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from pyspark import RDD, SparkContext

from tidegate.operators.flow.rows import Ack
from tidegate.spark.pyspark_internals import Beside, executors, forget_block
from tidegate.spark.task import identity

_YOUNG, _LOOK_EVERY = 20, 50
"""Rounds. The driver looks for new executors after each of the first rounds, because executors register one after the other. Later
it looks rarely: the answer costs a millisecond."""


class Homes:
    """The homes of a job's tasks on a cluster, for as long as its Spark context lives. Local state is copied, so a home is a wish:
    a task that runs elsewhere brings the state there up to date, and nothing else changes.

    Spark itself remembers the homes. An *anchor* is an empty, cached RDD with a partition for each task. Its partition is cached
    where the task first runs, and from then on the task prefers this host, because the task reads the union of its rows and of the
    anchor. Both have the same partitioner, so the union has their partitions, and needs no shuffle. If an executor is lost, its
    blocks are lost: the tasks that lived there have no home until they have run somewhere, and no other task moves.

    Levels with as many tasks share an anchor, so the first subtasks of all levels run on one host.
    """

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._anchors: dict[int, RDD[Any]] = {}
        self._beside: dict[int, Beside] = {}
        self._executors: frozenset[str] = frozenset()
        self._rounds = 0

    def prefer(self, shuffled: RDD[Any], tasks: int) -> RDD[Any]:
        """Return the same rows, for tasks that prefer their homes."""
        if tasks not in self._beside:
            # Its parent has no partitions, so there is nothing that an executor could lose, and no task to compute an anchor again.
            anchor = self._context.emptyRDD().partitionBy(tasks, identity).setName("homes of tasks").persist()
            # Twice: Spark takes the host that most parents prefer, and the shuffled rows name each host once at most.
            self._anchors[tasks], self._beside[tasks] = anchor, Beside(self._context, [anchor, anchor])
        return self._beside[tasks](shuffled)

    def settle(self, acks: Iterable[Ack], sources: Collection[int]) -> None:
        """After a round: let tasks move to executors that are new. ``sources``: the chains of level 0, whose tasks have no home.

        A task that must leave gets no new home: its next round runs where there is space. So executors that come late, or in place
        of a lost one, get their share, and all other tasks stay.
        """
        self._rounds += 1
        if self._rounds > _YOUNG and self._rounds % _LOOK_EVERY:
            return
        known, self._executors = self._executors, executors(self._context)
        if self._executors <= known:
            return
        stages: dict[int, dict[int, str]] = {}
        for ack in acks:
            if ack.chain not in sources:
                stages.setdefault(ack.run.stage, {})[ack.run.task] = ack.run.place
        for places in stages.values():
            if len(places) in self._anchors:
                for task in too_many(places, len(self._executors)):
                    forget_block(self._anchors[len(places)], task)

    def included(self, tasks: RDD[Any]) -> RDD[Any]:
        """Return tasks on every home besides these."""
        return self._context.union([tasks, *self._anchors.values()])

    def forget(self) -> None:
        """Free what Spark keeps for the homes. An idle executor that keeps something is not given back to the cluster."""
        for anchor in self._anchors.values():
            anchor.unpersist()
        self._anchors.clear()
        self._beside.clear()


def too_many(places: dict[int, str], executors: int) -> list[int]:
    """Return the tasks that must leave so that no executor has more than its share. ``places``: where each task has run."""
    share = -(-len(places) // executors)
    by_place: dict[str, list[int]] = {}
    for task in sorted(places):
        by_place.setdefault(places[task], []).append(task)
    return sorted(task for tasks in by_place.values() for task in tasks[share:])
