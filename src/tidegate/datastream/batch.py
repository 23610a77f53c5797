"""Batch mode: which programs run in it, and what differs in it."""

from __future__ import annotations

import pickle
from dataclasses import replace

from tidegate.base.errors import ProgramError
from tidegate.graph.transformation import OperatorSpec, Transformation


def resolve_mode(mode: str, transformations: list[Transformation]) -> str:
    """Return STREAMING or BATCH. BATCH with an unbounded source is refused."""
    unbounded = [t.name for t in transformations if not t.spec.is_bounded]
    if mode == "AUTOMATIC":
        return "STREAMING" if unbounded else "BATCH"
    if mode == "BATCH" and unbounded:
        raise ProgramError(
            "BATCH mode needs bounded sources",
            where=f"source '{unbounded[0]}'",
            found="it is unbounded",
            cure="set the runtime mode to STREAMING or AUTOMATIC, or bound the source",
        )
    return mode


def with_batch_semantics(transformation: Transformation) -> Transformation:
    """Return the operator of batch mode. Only a rolling reduce differs: it emits its last result alone."""
    spec = transformation.spec.in_batch_mode()
    if spec is transformation.spec:
        return transformation
    if transformation.pickled_spec is not None:
        added: OperatorSpec = pickle.loads(transformation.pickled_spec)
        spec = added.in_batch_mode()
    return replace(transformation, spec=spec, pickled_spec=None)
