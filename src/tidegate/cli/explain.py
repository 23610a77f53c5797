"""Explains a program: its graph, and how each of its functions runs. No job is started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidegate.base.errors import ConfigurationError, ProgramError
from tidegate.base.plain_text import count, plain_line
from tidegate.cli.outcome import say
from tidegate.cli.script import run_script
from tidegate.common.global_configuration import set_dynamic_properties
from tidegate.common.job_client import RunningJob
from tidegate.common.options import TYPES_FROM_ANNOTATIONS
from tidegate.datastream.executor import instead_of_all
from tidegate.graph.drawing import of_graph
from tidegate.graph.plan import Chain, Edge, JobGraph, Operator, build
from tidegate.graph.transformation import Program
from tidegate.operators.flow.decoded import decoded_fields
from tidegate.operators.loop.rewrites.explain import explain_functions
from tidegate.runtime.guarantee import guarantee_of
from tidegate.runtime.settings import JobSettings


class Built(BaseException):
    """The program has called ``execute``. It is no Exception, so that a program that catches exceptions does not continue."""

    def __init__(self, program: Program) -> None:
        super().__init__(program.name)
        self.program = program


class ExplainingExecutor:
    """Hands the program over instead of running it."""

    def execute_async(self, program: Program) -> RunningJob:
        raise Built(program)


def built(
    script: str, arguments: list[str], properties: dict[str, object], *, asks: str, pyflink: bool = False
) -> Program:
    """Run a file up to its first ``execute()`` and return the program. ``asks`` is the command that needs it."""
    set_dynamic_properties(properties)
    try:
        with instead_of_all(ExplainingExecutor):
            run_script(script, arguments, pyflink=pyflink)
    except Built as done:
        return done.program
    raise ProgramError(f"{asks} needs a program that calls execute()", where=script, found="the program ended before")


def facts(program: Program) -> dict[str, Any]:
    """Return the explanation as data."""
    settings = JobSettings.of(program.configuration)
    graph = build(program, settings.parallelism, settings.max_parallelism, {})
    guarantee = guarantee_of(graph, settings.checkpoints)
    chains = [
        {
            "level": number,
            "name": chain.name,
            "parallelism": chain.parallelism,
            "operators": [o.id for o in chain.operators],
        }
        for number, level in enumerate(graph.levels)
        for chain in level
    ]
    annotated = {t.id: t.annotated for t in program.transformations}
    edges = [{"source": e.source, "target": e.target, "ship": e.partitioning.ship.value} for e in _edges(graph)]
    return {
        "name": graph.name,
        "guarantee": str(guarantee),
        "paths": [path.facts() for path in guarantee.paths],
        "operators": [_operator(operator, annotated.get(operator.id)) for operator in graph.operators],
        "chains": chains,
        "edges": edges,
        "functions": [each._asdict() for each in explain_functions(graph, fast_json=settings.fast_json)],
        "decoded": list(decoded_fields(graph, only_used=settings.json_fields))
        if settings.fast_json and settings.inline_functions
        else [],
    }


def draw(program: Program, path: str) -> None:
    """Draw the chains into a file, or print the drawing if the path is ``-``."""
    settings = JobSettings.of(program.configuration)
    picture = of_graph(build(program, settings.parallelism, settings.max_parallelism, {}))
    if path == "-":
        return say(picture)
    try:
        Path(path).write_text(f"{picture}\n", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            "The drawing cannot be written", where=path, found=error.strerror, cure="choose another path for --svg"
        ) from None
    say(plain_line(f"drew {path}"))


def _edges(graph: JobGraph) -> Iterator[Edge]:
    for chain in graph.chains:
        for node in chain.head.walk():
            yield from node.edges


def _operator(o: Operator, annotated: str | None) -> dict[str, Any]:
    return {
        "id": o.id,
        "name": o.name,
        "label": o.label,
        "uid": o.uid,
        "uid_hash": o.uid_hash,
        "parallelism": o.parallelism,
        "max_parallelism": o.max_parallelism,
        "keyed": o.keyed is not None,
        "type": None if o.output_type is None else o.output_type.describe(),
        "annotated": annotated,
    }


def explained(program: Program) -> Iterator[str]:
    """Give the lines of the explanation."""
    settings = JobSettings.of(program.configuration)
    graph = build(program, settings.parallelism, settings.max_parallelism, {})
    numbers = {"operator": graph.operators, "chain": graph.chains, "level": graph.levels}
    yield f"job '{graph.name}': " + ", ".join(count(len(of), what) for what, of in numbers.items())
    guarantee = guarantee_of(graph, settings.checkpoints)
    yield f"guarantee: {guarantee}"
    yield from (f"  {line}" for line in guarantee.lines())
    yield from _levels(graph)
    functions = explain_functions(graph, fast_json=settings.fast_json)
    if functions:
        yield "functions:"
    yield from (f"  {explained.operator}: {explained.function} is {explained}" for explained in functions)
    if settings.fast_json and settings.inline_functions:
        yield from (f"  {line}" for line in decoded_fields(graph, only_used=settings.json_fields))
    annotated = [t for t in program.transformations if t.annotated is not None]
    if annotated:
        yield f"types from annotations ({TYPES_FROM_ANNOTATIONS.key}):"
    yield from (f"  {t.name}: {t.output_type}, the annotation of {t.annotated}" for t in annotated)


def _levels(graph: JobGraph) -> Iterator[str]:
    for number, level in enumerate(graph.levels):
        yield f"level {number}:"
        for chain in level:
            yield f"  {' -> '.join(o.label for o in chain.operators)}, parallelism {chain.parallelism}"
            yield from _ids(chain)


def _ids(chain: Chain) -> Iterator[str]:
    for operator in chain.operators:
        uid = (
            f"uid {operator.uid}"
            if operator.uid
            else f"no uid, id {operator.uid_hash} is made from its position in the graph"
        )
        keyed = ", keyed" if operator.keyed is not None else ""
        yield f"    {operator.label}: {uid}, maximum parallelism {operator.max_parallelism}{keyed}"
