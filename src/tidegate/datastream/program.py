"""From an environment's operators to a Program: what belongs to it, which mode it runs in, and every check before it starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from tidegate.base.errors import ProgramError
from tidegate.base.pickling import cure_of, dumps, why_not
from tidegate.common.configuration import Configuration, effective
from tidegate.common.dependencies import Dependencies
from tidegate.common.jars import notice_of_jars
from tidegate.common.options import (
    AUTO_UIDS,
    CHAINING,
    CLASSPATHS,
    JARS,
    JOB_NAME,
    MAX_PARALLELISM,
    PARALLELISM,
    RUNTIME_MODE,
)
from tidegate.datastream.batch import resolve_mode, with_batch_semantics
from tidegate.datastream.cached_stream import cache_writers, with_caches
from tidegate.graph.plan import build
from tidegate.graph.transformation import Program, Transformation

DEFAULT_JOB_NAME = "Tidegate Streaming Job"


def build_program(
    registry: Mapping[int, Transformation],
    wanted: Iterable[int],
    configuration: Configuration,
    parallelism: int,
    job_name: str | None,
    caches: Mapping[int, str] = MappingProxyType({}),
) -> Program:
    """The wanted operators and everything they read from. Raises before anything is started. ``caches``: operators whose records
    are to be cached -> where."""
    transformations = _with_upstream(with_caches(registry, caches), wanted)
    if not transformations:
        raise ProgramError(
            "A job needs at least one operator",
            where="execute",
            found="none since the environment was made or last executed",
            cure="add a source and a sink before calling execute()",
        )
    settings = effective(configuration)
    notice_of_jars([*(settings[JARS.key] or ()), *(settings[CLASSPATHS.key] or ())])
    settings[PARALLELISM.key] = parallelism
    settings[RUNTIME_MODE.key] = resolve_mode(settings[RUNTIME_MODE.key], transformations)
    transformations += cache_writers(transformations, caches, settings[RUNTIME_MODE.key], len(registry) + 1)
    if settings[RUNTIME_MODE.key] == "BATCH":
        transformations = [with_batch_semantics(t) for t in transformations]
    name = job_name or settings[JOB_NAME.key] or DEFAULT_JOB_NAME
    program = Program(name, tuple(transformations), settings, settings[CHAINING.key])
    _check(program)
    return program


def _with_upstream(registry: Mapping[int, Transformation], wanted: Iterable[int]) -> list[Transformation]:
    """Ids grow along the edges, so sorted ids are an order in which inputs come first."""
    found: set[int] = set()
    todo = list(wanted)
    while todo:
        operator_id = todo.pop()
        if operator_id not in found:
            found.add(operator_id)
            todo += [i.upstream for i in registry[operator_id].inputs]
    return [registry[operator_id] for operator_id in sorted(found)]


def _check(program: Program) -> None:
    settings = program.configuration
    Dependencies.of(settings)
    build(program, settings[PARALLELISM.key], settings[MAX_PARALLELISM.key], {})  # uids, parallelism, forward
    for transformation in program.transformations:
        if not settings[AUTO_UIDS.key] and not (transformation.uid or transformation.uid_hash):
            raise ProgramError(
                "Every operator needs a uid when generated ones are switched off",
                where=f"operator '{transformation.name}'",
                found=f"no uid, and '{AUTO_UIDS.key}' is false",
                cure='call uid("...") on it',
            )
        _check_picklable(transformation)


def _check_picklable(transformation: Transformation) -> None:
    partitionings = [i.partitioning for i in transformation.inputs if i.partitioning is not None]
    for what, part in [
        ("its function", transformation.spec),
        ("a key selector or partitioner before it", partitionings),
    ]:
        try:
            dumps(part)
        except Exception as error:  # pickling runs user code, which may raise anything
            raise ProgramError(
                "What an operator runs must be picklable, because it travels to the executors",
                where=f"operator '{transformation.name}', {what}",
                found=why_not(part, error),
                cure=cure_of(
                    error, "make connections, locks and the like in open(), not in __init__ or outside the function"
                ),
            ) from error
