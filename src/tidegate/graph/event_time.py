"""Refuse operators that need timestamps downstream of sources without timestamps, before a job starts and not at its
first record."""

from __future__ import annotations

from tidegate.base.errors import ProgramError
from tidegate.graph.transformation import Program, Role, Transformation


def refuse_untimed(program: Program) -> None:
    """Refuse a program in which no path to an operator gives timestamps: every record would fail the job."""
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
    upstream = [each for each in program.transformations if each.id in above]
    sources = ", ".join(repr(each.name) for each in upstream if each.spec.role is Role.SOURCE)
    return ProgramError(
        f"'{t.name}' uses event time, but its records have no timestamps",
        where=f"operator '{t.name}'" + (f", {t.place}" if t.place else ""),
        found=f"records of {sources} have none (Long.MIN_VALUE timestamp in Flink), and no operator on the path assigns any",
        cure="call assign_timestamps_and_watermarks(...) with a timestamp assigner before, or use processing time",
    )
