"""Explain which functions of a job are called, which are rewritten, and why not: as far as the driver can tell.

In the worker a function may still be called where the driver expected a rewrite: a batch that is not for columns, a
loop that would become too long, a debugger. The reverse never happens.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

from tidegate.base.user_code import UserFunction, UserValue
from tidegate.common import options
from tidegate.graph.plan import Chain, ChainNode, JobGraph
from tidegate.graph.transformation import Role, Ship
from tidegate.operators.contracts.functions import FunctionWrapper
from tidegate.operators.loop import rewrites
from tidegate.operators.loop.fast_json import functions_used
from tidegate.operators.loop.rewrites import prepared
from tidegate.operators.loop.rewrites.rewrite import Findings, Place, Refused, Rewrite

log = logging.getLogger(__name__)

CALLED = "called"
ON_BATCHES = "called on batches"
"""A function over batches: its operator calls it with columns."""


class Explained(NamedTuple):
    """Hold the explanation of a function. ``how``: ``called``, or the name of the rewrite that takes the function.
    ``reason``: why other rewrites do not; empty if none refused it. ``fast``: the functions of the standard library that
    faster code answers (``fast_json.py``), for this function and for the program's functions that it calls."""

    operator: str
    function: str
    how: str
    reason: str
    fast: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Say how the function runs."""
        fast = f", with fast {' and '.join(self.fast)}" if self.fast else ""
        return f"{self.how}{fast}{f' ({self.reason})' if self.reason else ''}"


def explain_functions(graph: JobGraph, *, fast_json: bool = options.FAST_JSON.default) -> list[Explained]:
    """Explain every function that is due for every record: of operators, and of the partitioning after them."""
    found = [explained for chain in graph.chains for explained in _explain_chain(chain)]
    return found if fast_json else [explained._replace(fast=()) for explained in found]


def functions_of(graph: JobGraph, *, fast_json: bool) -> dict[int, tuple[str, ...]]:
    """Return, by operator id, a line for each function of the operator: what ``explain_functions`` says."""
    lines: dict[int, tuple[str, ...]] = {}
    for chain in graph.chains:
        try:
            known_places = list(zip(places_of(chain), _explain_chain(chain), strict=True))
        except Exception:  # a function that cannot be looked at: the job reports it, if it matters
            log.debug("the functions of chain '%s' are not explained", chain.name, exc_info=True)
            continue
        for place, explained in known_places:
            known = explained if fast_json else explained._replace(fast=())
            what = "key selector" if place.edge else "function"
            line = f"{what} {known.function} is {known}"
            lines[place.node.operator.id] = (*lines.get(place.node.operator.id, ()), line)
    return lines


def log_functions(graph: JobGraph, *, fast_json: bool) -> None:
    if log.isEnabledFor(logging.DEBUG):
        for explained in explain_functions(graph, fast_json=fast_json):
            log.debug("operator '%s', function %s: %s", explained.operator, explained.function, explained)


def places_of(chain: Chain) -> Iterator[Place]:
    """Yield the places where the loops of a chain are due to call a user's function for every record."""
    for node in chain.head.walk():
        yield from (Place(node, None, function) for function in node.operator.spec.callables)
        for edge in node.edges:
            if edge.partitioning.selector is not None:
                yield Place(node, edge, edge.partitioning.selector)


def assigners_of(chain: Chain) -> Iterator[UserFunction]:
    """Yield the functions that give records their timestamps; the operator calls them, for a batch at a time."""
    for node in chain.head.walk():
        assigner = node.operator.spec.timestamp_assigner
        if assigner is not None:
            extract: UserValue = getattr(assigner, "extract_timestamp", assigner)
            yield extract


def _explain_chain(chain: Chain) -> Iterator[Explained]:
    places = list(places_of(chain))
    known = [
        (rewrite, prepared(rewrite, [place.function for place in places]))
        for rewrite in rewrites.REWRITES
        if rewrite.answers_calls
    ]
    yield from (_explained(chain, place, known) for place in places)


def _explained(chain: Chain, place: Place, known: list[tuple[Rewrite, Findings]]) -> Explained:
    reasons: list[str] = []
    how = CALLED
    if place.edge is None and place.node.operator.spec.takes_columns:
        reason = _columns_before(chain, place.node)
        return Explained(place.node.operator.label, _name(place.function), ON_BATCHES, reason)
    for rewrite, found in known:
        refusal = _refusal(rewrite, chain, place, found)
        if refusal is None:
            how = rewrite.name
            reasons += rewrite.notes(found.of(place.function))
            break
        reasons.append(f"not {rewrite.name}: {refusal}")
    if place.edge is None and place.node.operator.spec.folds_columns:
        reasons.append("records that arrive as columns are added as a whole")
    operator = place.node.operator.label
    where, fast = f"key of '{operator}'" if place.edge else operator, tuple(sorted(functions_used(place.function)))
    return Explained(where, _name(place.function), how, "; ".join(reasons), fast)


def _name(function: UserFunction) -> str:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, FunctionWrapper):  # the user's function is inside
        function = owner.wrapped
    return getattr(function, "__qualname__", None) or type(function).__name__


def _columns_before(chain: Chain, node: ChainNode) -> str:
    """Say whether the records reach an operator that takes columns as columns, and why not."""
    before = next((n for n in chain.head.walk() if any(child is node for _, child in n.children)), None)
    if before is None and any(edge.partitioning.ship is Ship.HASH for edge in chain.inputs):
        return "as columns from another chain, for each batch that is sent as columns: see the key selector"
    if before is None:
        return "not as columns: records come from another chain, and columns are made of them"
    label, spec = before.operator.name, before.operator.spec
    if len(before.children) + len(before.edges) > 1:
        return f"not as columns: '{label}' has several readers"
    if spec.takes_columns and not spec.callables:  # it passes on what it gets
        return _columns_before(chain, before)
    if spec.takes_columns:
        return f"as columns from '{label}'"
    if spec.role is Role.SOURCE:
        return f"as columns from '{label}', for each batch that the source gives as columns"
    return f"not as columns: '{label}' gives its records one by one"


def _refusal(rewrite: Rewrite, chain: Chain, place: Place, found: Findings) -> str | None:
    if place.edge is None and place.node.operator.spec.calls_only:
        return "its operator calls it, not the loop"
    try:
        rewrite.prepare(place.function)
        rewrite.check_place(chain, place, found)
    except Refused as refused:
        return str(refused)
    return None
