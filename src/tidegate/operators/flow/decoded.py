"""Tell on the driver which fields of JSON texts the loops after sources decode."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

from tidegate.graph.plan import JobGraph
from tidegate.operators.contracts.operator import Settings
from tidegate.operators.flow.level import receivers
from tidegate.operators.flow.subtask import Subtask
from tidegate.operators.loop import fast_json, rewrites
from tidegate.operators.loop.codegen import Loop
from tidegate.operators.loop.rewrites.explain import assigners_of, places_of
from tidegate.operators.loop.tagging import tagging_operators


def decoded_fields(graph: JobGraph, *, only_used: bool) -> Iterator[str]:
    """Yield a line for each call of ``json.loads`` that a loop after a source answers. Functions are not open here: what
    depends on their attributes may still be decoded as a whole."""
    senders = {operator.id: operator.parallelism for operator in graph.operators}
    tagging = tagging_operators(graph)
    for chain in graph.chains:
        if chain.inputs:
            continue
        known = rewrites.prepare([*(place.function for place in places_of(chain)), *assigners_of(chain)])
        nowhere = tempfile.gettempdir()  # nothing is opened there
        settings = Settings("explained", nowhere, nowhere, json_fields=only_used)
        subtask = Subtask(chain, 0, settings, senders, receivers(graph), known, tagging)
        with fast_json.switched_on():
            found = Loop(chain.head, subtask, into=False).decoded()
        for where, fields in found:
            used = "everything" if fields is None else f"only {', '.join(sorted(map('.'.join, fields)))}"
            yield f"{where}: json.loads decodes {used}"
