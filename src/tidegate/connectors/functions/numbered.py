"""Committables that are committed together and under a number: what of them is done already, after a crash or beside the next.

A checkpoint holds what it covers **and what the one before it had not confirmed at its cut**. When it is restored that may have
been committed long ago, under the number of the one before: so the number of each committable has to be known, and a commit takes
only those behind the last number that is done.

The number is the id of the checkpoint whose barrier came with the round, or with the next one that carried any. In at-least-once
mode rounds are committed, and a checkpoint that is restored lies behind what is committed: there it is attempt and round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tidegate.operators.contracts.sink import WriterContext

_ROUND_BITS = 32


def number_of(context: WriterContext) -> int | None:
    """None: the next barrier says. A sink that uses this says ``marks_checkpoints``."""
    if context.publishes:
        return (context.lease << _ROUND_BITS) + context.round
    return context.checkpoint_id


def with_numbers(committables: Iterable[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """In their order, each with its number. Behind the last barrier: of a job without checkpoints, whose output is committed at its
    end and never again, under the number of the last round."""
    every = list(committables)
    following = max((item["round"] for item in every), default=0)
    found: list[tuple[int, dict[str, Any]]] = []
    for item in reversed(every):
        following = item["checkpoint"] if item["checkpoint"] is not None else following
        found.append((following, item))
    return found[::-1]


def behind(done: int | None, numbered: Iterable[tuple[int, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Those that the commit under ``done``, and all before it, did not have."""
    return (item for number, item in numbered if done is None or number > done)
