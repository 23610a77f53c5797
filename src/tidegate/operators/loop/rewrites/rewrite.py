"""Define the seam of the fast path: what a rewrite is, and what it may ask of the loop it writes into.

A chain is correct when every function in it is called. A rewrite knows a faster way to the same result for some
functions. It looks at the functions on the driver, where their source is, and its findings travel with the chain. In
the worker the rewrite is asked first, wherever the loop would call a function and wherever a batch enters a chain. If
it declines, the function is called. So a rewrite may be removed from the list (``__init__.py``) at any time: this costs
speed, never a result.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from tidegate.base.user_code import UserFunction
from tidegate.operators.loop.fast_json import FUNCTIONS, parses_plainly

if TYPE_CHECKING:
    from tidegate.graph.plan import Chain, ChainNode, Edge
    from tidegate.operators.contracts.batch import Batch, Int64s

Emit = Callable[[str, int], None]
"""Writes the code for an output: the output's variable, the depth."""
WholeBatch = Callable[["Batch"], bool]
"""Processes a batch. False: nothing has happened, and the loop processes the batch."""
OfColumn = Callable[["Batch", int], "Int64s | None"]
"""The results of a function of a record and a number, for all records of a batch. None: nothing has happened; call the
function for each record."""


_TOOLS = 6
"""The places for tools in ``sys.monitoring``."""


class Refused(Exception):
    """Report that a rewrite does not take a function. The text gives the reason, in words for the user."""


class LineOwner(NamedTuple):
    """Name the owner of a generated line: the operator, the variable with the record, the user's line if the text is
    the user's. ``added``: the line of the program that added the operator."""

    where: str
    variable: str
    place: str | None = None
    added: str | None = None


class Call(NamedTuple):
    """Describe a place in a loop where a function is due. ``label``: unique in the loop, so names may be made from it.
    ``keyed``: the record has a current key, ``tg_k``."""

    label: str
    function: UserFunction
    arguments: Sequence[str]
    depth: int
    owner: LineOwner
    keyed: bool


class Place(NamedTuple):
    """Describe a place in a chain where a function is due for every record: ``node``'s own function, or the selector of
    ``edge`` after it."""

    node: ChainNode
    edge: Edge | None
    function: UserFunction


class LoopText(Protocol):
    """Build the text of a loop. All its own names begin with ``tg_``."""

    scope: dict[str, Any] | None
    """The module in which the loop looks up names that it does not bind. None: no rewrite has asked for one."""

    def __len__(self) -> int:
        """Return the number of lines so far."""
        ...

    def line(self, depth: int, text: str, owner: LineOwner | None) -> None: ...

    def once(self, text: str) -> None:
        """Add a line before the loop: it runs once for each chunk."""
        ...

    def bind(self, name: str, value: object) -> str:
        """Make an object known to the loop; return its name there."""
        ...

    def fields(self, variable: str) -> list[str] | None:
        """Return the variables of the fields of a record that comes as columns; None if it comes as an object. The
        fields that the lines use are named with ``use``."""
        ...

    def use(self, fields: Iterable[str]) -> None: ...

    @property
    def key_column(self) -> str | None:
        """Return an expression for the keys of the chunk as a column of ints, if there is one."""
        ...

    def holds_while(self, check: Callable[[], bool]) -> None:
        """Discard the text, and write it again, as soon as the check fails before a chunk."""
        ...


class Bindings(Protocol):
    """Tell rewrites what they need to know of the subtask; a part of what the loop itself asks for."""

    def function(self, operator_id: int) -> UserFunction: ...

    def output(self, edge_id: int) -> Any: ...


class Rewrite:
    """Define one way to be faster. A rewrite has no state: it knows of a function only what ``prepare`` has
    returned."""

    name: str
    answers_calls: ClassVar[bool] = True
    """Whether the rewrite takes the place of calls; otherwise it only knows something of functions."""

    def prepare(self, function: UserFunction) -> Any:
        """Return on the driver what the worker needs to know of the function; it is pickled. Raise Refused."""
        raise NotImplementedError

    def check_place(self, chain: Chain, place: Place, prepared: Findings) -> None:
        """Raise Refused on the driver if a function that ``prepare`` has taken will not be taken at this place."""

    def notes(self, prepared: Any) -> list[str]:
        """Return what else the rewrite changes in a function that it takes, in words for the user."""
        return []

    def call(self, text: LoopText, call: Call, prepared: Any, out: str) -> bool:
        """Write code after which ``out`` holds the function's result. Return False if nothing was written."""
        return False

    def call_each(self, text: LoopText, call: Call, prepared: Any, emit: Emit) -> bool:
        """Write code that hands each output of the function to ``emit``. Return False if nothing was written."""
        return False

    def whole_batch(self, node: ChainNode, bindings: Bindings, prepared: Findings, *, into: bool) -> WholeBatch | None:
        """Return a way for whole batches that enter a chain before ``node`` (``into``) or after it. None: there is
        none."""
        return None

    def looks_only(self, function: UserFunction, prepared: Any) -> bool:
        """Tell whether the function only looks at a plain record (``lending.py``)."""
        return False

    def returns_parts(self, function: UserFunction, prepared: Any) -> bool:
        """Tell whether the result of a function that looks is made of its record alone."""
        return False

    def makes_plain(self, function: UserFunction, prepared: Any) -> bool:
        """Tell whether the function returns a new plain value that nobody else holds."""
        return False

    def column_of(self, function: UserFunction, prepared: Any, rows: bool) -> OfColumn | None:
        """Return a way to get the function's ints for the records of a batch. ``rows``: the records are rows. None: there is
        none."""
        return None


FunctionId = tuple[CodeType, str]
"""Codes of different files may be equal."""


class Findings:
    """Hold what one rewrite has found out about the functions of a chain."""

    def __init__(self, found: dict[FunctionId, Any]) -> None:
        self._found = found

    def of(self, function: UserFunction) -> Any:
        """Return what the rewrite knows of the function; None: the rewrite does not take it."""
        key = function_id(function)
        return None if key is None else self._found.get(key)


def is_watched() -> bool:
    """Tell whether a debugger, or a tool that counts lines, looks for the frames of the user's functions."""
    if sys.gettrace() is not None:
        return True
    monitoring: Any = getattr(sys, "monitoring", None)  # since Python 3.12
    return monitoring is not None and any(monitoring.get_tool(tool) is not None for tool in range(_TOOLS))


def _is_unwatched() -> bool:
    return not is_watched()


class Rewrites:
    """Hold the rewrites of a chain with their knowledge; sent to the workers. While a debugger watches, nothing is
    rewritten."""

    def __init__(self, prepared: Sequence[tuple[Rewrite, Findings]] = ()) -> None:
        self._prepared = prepared

    def call(self, text: LoopText, call: Call, out: str) -> bool:
        return self.may_write(text) and any(
            found is not None and rewrite.call(text, call, found, out) for rewrite, found in self._known(call.function)
        )

    def call_each(self, text: LoopText, call: Call, emit: Emit) -> bool:
        return self.may_write(text) and any(
            found is not None and rewrite.call_each(text, call, found, emit)
            for rewrite, found in self._known(call.function)
        )

    def may_write(self, text: LoopText) -> bool:
        """Tell whether rewrites may write into a loop. The text is discarded when this changes."""
        if not self._prepared or is_watched():
            return False
        text.holds_while(_is_unwatched)
        return True

    def _known(self, function: UserFunction) -> Iterable[tuple[Rewrite, Any]]:
        return ((rewrite, prepared.of(function)) for rewrite, prepared in self._prepared)

    def whole_batch(self, node: ChainNode, bindings: Bindings, *, into: bool) -> list[WholeBatch]:
        ways = (rewrite.whole_batch(node, bindings, prepared, into=into) for rewrite, prepared in self._prepared)
        return [_unless_watched(way) for way in ways if way is not None]

    def looks_only(self, text: LoopText, function: UserFunction) -> bool:
        """Tell whether the function only looks at its record, as long as the text of the loop lives."""
        for rewrite, found in self._known(function):
            if found is not None and rewrite.looks_only(function, found):
                text.holds_while(partial(rewrite.looks_only, function, found))
                return True
        return False

    def returns_parts(self, function: UserFunction) -> bool:
        return any(
            found is not None and rewrite.returns_parts(function, found) for rewrite, found in self._known(function)
        )

    def makes_plain(self, text: LoopText, function: UserFunction) -> bool:
        """Tell whether the function returns a new plain value, as long as the text of the loop lives."""
        own = isinstance(function, FunctionType) and function in FUNCTIONS  # others may have no hash
        parses = bool(self._prepared) and own and parses_plainly()
        if not parses and not any(
            found is not None and rewrite.makes_plain(function, found) for rewrite, found in self._known(function)
        ):
            return False
        text.holds_while(parses_plainly)
        return True

    def column_of(self, function: UserFunction, rows: bool = False) -> OfColumn | None:
        ways = (
            rewrite.column_of(function, found, rows) for rewrite, found in self._known(function) if found is not None
        )
        way = next((way for way in ways if way is not None), None)
        return None if way is None else lambda batch, number: None if is_watched() else way(batch, number)


def _unless_watched(way: WholeBatch) -> WholeBatch:
    return lambda batch: not is_watched() and way(batch)


def function_id(function: UserFunction) -> FunctionId | None:
    """Return the id of a plain function or bound method that is called with positional arguments only; otherwise None.

    The class decides, not the attributes: objects that decorate a function often show the attributes of the function
    inside.
    """
    plain = function.__func__ if isinstance(function, MethodType) else function
    if not isinstance(plain, FunctionType) or plain.__defaults__ or plain.__kwdefaults__:
        return None
    return plain.__code__, plain.__code__.co_filename
