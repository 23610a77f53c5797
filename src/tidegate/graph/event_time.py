"""Operators that need timestamps behind sources that have none: found before a job starts, not with its first record."""

from __future__ import annotations

from tidegate.base.errors import ProgramError
from tidegate.graph.transformation import Program, Transformation


def refuse_untimed(program: Program) -> None:
    """Only where no way to an operator gives timestamps: then every record would fail the job."""
    gives: dict[int, bool] = {}
    for t in program.transformations:  # ids grow along the inputs
        comes_with_time = any(gives[i.upstream] for i in t.inputs)
        if t.spec.needs_time and not comes_with_time:
            raise _untimed(t, program)
        gives[t.id] = t.spec.gives_time or comes_with_time


def _untimed(t: Transformation, program: Program) -> ProgramError:
    by_id = {each.id: each for each in program.transformations}
    above, waiting = set[int](), [t.id]
    while waiting:
        for i in by_id[waiting.pop()].inputs:
            if i.upstream not in above:
                above.add(i.upstream)
                waiting.append(i.upstream)
    sources = ", ".join(repr(each.name) for each in program.transformations if each.id in above and each.spec.is_source)
    return ProgramError(
        f"'{t.name}' goes by event time: its records need timestamps",
        where=f"operator '{t.name}'" + (f", {t.place}" if t.place else ""),
        found=f"records of {sources} have none (Long.MIN_VALUE timestamp in Flink), and nothing on the way gives them any",
        cure="call assign_timestamps_and_watermarks(...) before, with a timestamp assigner, or use processing time",
    )
