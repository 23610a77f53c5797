"""A chain as one generated Python loop: an operator costs the call of the user's function and nothing else.

A loop takes columns (values, timestamps, keys). Two variants are compiled on demand, with and without timestamps, so a stream
without them does not pay. Each generated line remembers its operator and the variable that holds its input: an exception
is traced to operator and record from its traceback alone, at no cost on the good path.
"""

from __future__ import annotations

import os
import reprlib
import traceback
from collections.abc import Callable
from types import CodeType, TracebackType
from typing import Any, Protocol

from tidegate.common.errors import ProgramError, TidegateError, UserCodeError
from tidegate.graph.output_tag import OutputTag
from tidegate.graph.plan import ChainNode, Edge
from tidegate.graph.transformation import (
    FilterSpec,
    FlatMapSpec,
    MapSpec,
    ProcessSpec,
    ReduceSpec,
    Ship,
    SinkSpec,
    SourceSpec,
    TimestampsSpec,
)
from tidegate.operators.ownership import ATOMS, is_immutable, own

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


class Bindings(Protocol):
    """What the generated code needs to know of the subtask it runs in."""

    def function(self, operator_id: int) -> Callable[..., Any]: ...

    def context(self, operator_id: int) -> Any: ...

    def reduce_state(self, operator_id: int) -> Any: ...

    def collector(self, operator_id: int) -> tuple[Callable[[Any], None], Callable[[Any], None]]:
        """Appends of the value and timestamp column of an operator that works on whole batches (sinks, assigners)."""
        ...

    def output(self, edge_id: int) -> Any: ...

    @property
    def backend(self) -> Any: ...

    @property
    def side_outputs(self) -> bool:
        """Whether any output can carry a tag."""
        ...


class Loop:
    """One entry into a chain. ``into`` True: the values are inputs of ``node``; False: they are its outputs."""

    def __init__(self, node: ChainNode, bindings: Bindings, *, into: bool) -> None:
        self._node, self._bindings, self._into = node, bindings, into
        self._variants: dict[bool, tuple[Callable[..., None], _Source]] = {}

    def __call__(self, values: list[Any], timestamps: list[Any] | None, keys: list[Any] | None = None) -> None:
        timed = timestamps is not None
        if timed not in self._variants:
            self._variants[timed] = self._compile(timed)
        run, source = self._variants[timed]
        tags = OutputTag.created
        try:
            run(values, timestamps, keys)
        except Exception as error:
            raise source.blame(error) from error
        if OutputTag.created != tags and not self._bindings.side_outputs:
            raise ProgramError(
                "Side outputs nobody can read are refused: their records would be taken for main output",
                where=f"operator '{self._node.operator.name}' or one behind it",
                found="an OutputTag made while a record was processed, and none in the program",
                cure="make the OutputTag where the program is built, and read it with get_side_output(tag)",
            )

    def _compile(self, timed: bool) -> tuple[Callable[..., None], _Source]:
        source = _Source(self._bindings, timed)
        keyed = self._into and self._node.operator.keyed is not None
        source.open(keyed)
        if keyed:
            source.bind("B", self._bindings.backend)
            source.line(2, "B.key = k", None)
        if self._into:
            source.operator(self._node, "v", 2)
        else:
            source.emitted(self._node, "v", 2)
        return source.compile(), source


class _Source:
    """The text of one variant while it is built, and its line table afterwards."""

    def __init__(self, bindings: Bindings, timed: bool) -> None:
        self._bindings, self._timed = bindings, timed
        self._once: list[str] = []
        self._lines: list[str] = []
        self._owners: list[tuple[str, str] | None] = []
        self._names: dict[str, Any] = {"OutputTag": OutputTag}
        self._code: CodeType | None = None
        self._copies = 0

    def line(self, depth: int, text: str, owner: tuple[str, str] | None) -> None:
        self._lines.append("    " * depth + text)
        self._owners.append(owner)

    def bind(self, name: str, value: Any) -> str:
        self._names[name] = value
        return name

    def open(self, keyed: bool) -> None:
        columns = [("k", "keys")] * keyed + [("v", "values")] + [("t", "timestamps")] * self._timed
        if len(columns) == 1:
            self.line(1, "for v in values:", None)
        else:
            names, sources = zip(*columns, strict=True)
            self.line(1, f"for {', '.join(names)} in zip({', '.join(sources)}):", None)

    def compile(self) -> Callable[..., None]:
        # What the loop uses becomes a default argument: a local variable is cheaper to reach than a global one.
        head = f"def loop(values, timestamps, keys, {', '.join(f'{name}={name}' for name in self._names)}):"
        text = [head, *("    " + line for line in self._once), *self._lines]
        self._owners[:0] = [None] * (len(text) - len(self._lines))
        code = compile("\n".join(text) + "\n", "<tidegate chain>", "exec")
        exec(code, self._names)
        loop: Callable[..., None] = self._names["loop"]
        self._code = loop.__code__
        return loop

    # -- operators -------------------------------------------------------------------------------------------------

    def operator(self, node: ChainNode, value: str, depth: int) -> None:
        """Code that hands the record in ``value`` to the node."""
        spec, n = node.operator.spec, node.operator.id
        owner = (f"operator '{node.operator.name}'", value)
        if isinstance(spec, SinkSpec | TimestampsSpec):
            return self._collect(n, value, depth, owner)
        out = f"v{n}"
        f = self.bind(f"f{n}", self._bindings.function(n))
        if isinstance(spec, MapSpec):
            self.line(depth, f"{out} = {f}({value})", owner)
            return self.consumers(node, None, out, depth)
        if isinstance(spec, FilterSpec):
            self.line(depth, f"if {f}({value}):", owner)
            return self.consumers(node, None, value, depth + 1)
        if isinstance(spec, ReduceSpec):
            state = self._bindings.reduce_state(n)
            read, write = self.bind(f"s{n}", state.value), self.bind(f"u{n}", state.update)
            self.line(depth, f"a{n} = {read}()", owner)
            self.line(depth, f"{out} = {value} if a{n} is None else {f}(a{n}, {value})", owner)
            self.line(depth, f"{write}({out})", owner)
            return self.consumers(node, None, out, depth)
        arguments = value
        if isinstance(spec, ProcessSpec):
            c = self.bind(f"c{n}", self._bindings.context(n))
            if self._timed:
                self.line(depth, f"{c}.ts = t", owner)
            else:
                self._once.append(f"{c}.ts = None")
            arguments = f"{value}, {c}"
        assert isinstance(spec, ProcessSpec | FlatMapSpec), spec
        self.line(depth, f"r{n} = {f}({arguments})", owner)
        self.line(depth, f"if r{n} is not None:", owner)
        self.line(depth + 1, f"for {out} in r{n}:", owner)
        return self.emitted(node, out, depth + 2)

    def emitted(self, node: ChainNode, value: str, depth: int) -> None:
        """Code that passes an output of the node on: to a side output if it is tagged (process functions only)."""
        if isinstance(node.operator.spec, ProcessSpec) and self._bindings.side_outputs:
            tags = sorted({tag for tag, _ in node.children if tag} | {edge.tag for edge in node.edges if edge.tag})
            self.line(depth, f"if {value}.__class__ is tuple and {value} and {value}[0].__class__ is OutputTag:", None)
            side = f"x{node.operator.id}"
            for tag in tags:
                self.line(depth + 1, f"if {value}[0].tag_id == {tag!r}:", None)
                self.line(depth + 2, f"{side} = {value}[1]", (f"operator '{node.operator.name}'", value))
                self.consumers(node, tag, side, depth + 2)
            self.line(depth + 1, "continue", None)
        self.consumers(node, None, value, depth)

    def consumers(self, node: ChainNode, tag: str | None, value: str, depth: int) -> None:
        """Code that hands ``value`` to everybody who reads it, to each as a record of its own (``ownership.py``): the function
        that emitted it may go on changing it, and so may another reader. A function that is the only reader is handed it as it is.
        """
        before = len(self._lines)
        safe = tag is None and is_immutable(node.operator.output_type)
        alone = len(node.children) + len(node.edges) == 1
        fresh = alone and isinstance(node.operator.spec, SourceSpec)
        for wanted, child in node.children:
            if wanted == tag:
                fused = alone and not isinstance(child.operator.spec, SinkSpec | TimestampsSpec)
                self.operator(child, value if safe or fresh or fused else self._owned(value, depth), depth)
        for edge in node.edges:
            if edge.tag == tag:
                self._edge(edge, value if safe or fresh else self._owned(value, depth), depth, node.operator.name)
        if len(self._lines) == before:
            self.line(depth, "pass", None)

    def _owned(self, value: str, depth: int) -> str:
        atoms, copied = self.bind("atoms", ATOMS), self.bind("own", own)
        self._copies += 1
        mine = f"o{self._copies}"
        self.line(depth, f"{mine} = {value} if {value}.__class__ in {atoms} else {copied}({value})", None)
        return mine

    def _collect(self, n: int, value: str, depth: int, owner: tuple[str, str]) -> None:
        append_value, append_time = self._bindings.collector(n)
        self.line(depth, f"{self.bind(f'w{n}', append_value)}({value})", owner)
        if self._timed:
            self.line(depth, f"{self.bind(f'q{n}', append_time)}(t)", owner)

    def _edge(self, edge: Edge, value: str, depth: int, name: str) -> None:
        output, e = self._bindings.output(edge.id), edge.id
        ship, selector = edge.partitioning.ship, edge.partitioning.selector
        owner = (f"partitioning of the output of operator '{name}'", value)
        if not output.per_record:
            append_value, _, append_time = output.appends
            self.line(depth, f"{self.bind(f'a{e}_', append_value)}({value})", owner)
            if self._timed:
                self.line(depth, f"{self.bind(f't{e}_', append_time)}(t)", owner)
            return
        key = f"k{e}_"
        self.line(depth, f"{key} = {self.bind(f's{e}_', selector)}({value})", owner)
        where = key
        if ship is Ship.CUSTOM:
            self.bind(f"p{e}_", edge.partitioning.partitioner)
            where = f"p{e}_({key}, {output.target.parallelism})"
        self.line(depth, f"a{e}_, b{e}_, t{e}_ = {self.bind(f'r{e}_', output.router)}[{where}]", owner)
        self.line(depth, f"a{e}_({value})", owner)
        if ship is Ship.HASH:
            self.line(depth, f"b{e}_({key})", owner)
        if self._timed:
            self.line(depth, f"t{e}_(t)", owner)

    # -- errors ----------------------------------------------------------------------------------------------------

    def blame(self, error: Exception) -> Exception:
        """The error with operator, user line and record; read off its traceback."""
        frame_line, record = self._locate(error.__traceback__)
        return user_error(error, frame_line, record)

    def _locate(self, tb: TracebackType | None) -> tuple[str, str | None]:
        while tb is not None:
            if tb.tb_frame.f_code is self._code:
                owner = self._owners[tb.tb_lineno - 1]
                if owner is None:
                    break
                return owner[0], reprlib_repr(tb.tb_frame.f_locals.get(owner[1]))
            tb = tb.tb_next
        return "the chain", None


class _Cut(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 200
        self.maxtuple = self.maxlist = self.maxdict = 12


def reprlib_repr(value: Any) -> str:
    """repr cut to a sane length; never raises."""
    try:
        text = _Cut().repr(value)
    except Exception as error:
        text = f"<{type(value).__name__} whose repr fails: {error}>"
    return text if len(text) <= 500 else text[:497] + "..."


def record_in(error: Exception, file: str, name: str) -> str | None:
    """The record a loop of ours was at when user code raised: the variable ``name`` of the frame in ``file``."""
    record = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename == file and name in frame.f_locals:
            record = reprlib_repr(frame.f_locals[name])
    return record


def user_line(error: Exception) -> str | None:
    """File, line and function of the user's code the error came from; None if there is none."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_user_file(f.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else None


def user_error(error: Exception, where: str, record: str | None) -> Exception:
    """Wrap what user code raised; errors of ours keep their class and gain the place."""
    line = user_line(error)
    if line is not None:
        where += f", {line}"
    if isinstance(error, TidegateError):
        error.__init__(error.rule, where=error.where or where, found=error.found, cure=error.cure)  # type: ignore[misc]
        return error
    found = f"{type(error).__name__}: {error}"
    if record is not None:
        found += f"; record {record}"
    return UserCodeError("A user function raised an exception", where=where, found=found, cure="see the cause above")


def _is_user_file(name: str) -> bool:
    return not name.startswith(_PACKAGE) and name != "<tidegate chain>"
