"""Decide when the state files of all subtasks become bases: for checkpoints that share no files, and for the changelog."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tidegate.common import options
from tidegate.common.options import Option


class Merge(Enum):
    """Which state files a round merges."""

    TIERS = "tiers"
    """Small neighbours, so that files do not pile up (``state/compaction.py``)."""
    BASES = "bases"
    """Each list as a whole: its segments can be deleted. If the merge fails, a later round retries."""
    WHOLE = "whole"
    """As BASES, also for a list that is already a base: the round's state refers to no file of an earlier round, or the round is
    declined."""


@dataclass(frozen=True)
class MergePolicy:
    """``incremental``: checkpoints share files. ``materialize_ms``: with the changelog, how often it becomes bases; None: never."""

    incremental: bool = options.INCREMENTAL.default
    materialize_ms: int | None = None

    @staticmethod
    def of(get: Callable[[Option], Any]) -> MergePolicy:
        """Read the policy. With the changelog a checkpoint is a base with changes, whatever the backend's own settings say."""
        if not get(options.CHANGELOG):
            return MergePolicy(get(options.INCREMENTAL))
        interval: int = get(options.MATERIALIZE_INTERVAL)
        return MergePolicy(True, interval if interval > 0 else None)


class Merging:
    """The merges of one attempt. Call ``of_round`` once for every planned round."""

    def __init__(self, policy: MergePolicy, now_ms: int) -> None:
        self._policy, self._last_ms = policy, now_ms

    def of_round(self, now_ms: int, *, checkpoint: bool) -> Merge:
        """Return the kind of merge for the next round. ``checkpoint``: whether the round carries a checkpoint."""
        policy = self._policy
        if checkpoint and not policy.incremental:
            return Merge.WHOLE
        if policy.materialize_ms is not None and now_ms - self._last_ms >= policy.materialize_ms:
            self._last_ms = now_ms
            return Merge.BASES
        return Merge.TIERS
