"""A chain as one generated Python loop: an operator costs the call of the user's function, or not even that.

A loop takes columns (values, timestamps, keys). Variants are compiled on demand, with and without timestamps, so a stream
without them does not pay, and for records that come as columns of ints (``vectors.py``): of those only the fields
that are used become Python objects. Small functions are not called but written into the loop (``bodies.py``), and there a
value state of the current key is an entry of a dict. A generated line remembers its operator, the variable with its input and
the user's line: an exception is traced to operator and record from its traceback alone, at no cost on the good path.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable
from functools import lru_cache
from itertools import repeat
from types import CodeType, FunctionType, TracebackType
from typing import Any, NamedTuple, Protocol

from tidegate.common.errors import ProgramError
from tidegate.common.user_code import CHAIN_FILE
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
from tidegate.operators.batch_path import BatchPath
from tidegate.operators.blame import reprlib_repr, user_error
from tidegate.operators.bodies import Body
from tidegate.operators.inlining import Inliner, certain_updates, state_attributes
from tidegate.operators.ownership import ATOMS, is_immutable, own
from tidegate.operators.vectors import IntColumns, Values
from tidegate.state.keyed import ImmutableValueState

_DEEPEST = 12
"""Levels of indentation. What comes deeper is a loop of its own: Python allows 20 blocks inside each other."""
_LONGEST = 400
"""Lines behind which generators are called: a chain of generators with two yields each would double with every one."""


class Bindings(Protocol):
    """What the generated code needs to know of the subtask it runs in."""

    def function(self, operator_id: int) -> Callable[..., Any]: ...

    def context(self, operator_id: int) -> Any: ...

    def reduce_state(self, operator_id: int) -> Any: ...

    def collector(self, operator_id: int) -> tuple[Callable[[Any], None], Callable[[Any], None]]:
        """Appends of the value and timestamp column of an operator that works on whole batches (sinks, assigners)."""
        ...

    def output(self, edge_id: int) -> Any: ...

    def body(self, function: Callable[..., Any]) -> Body | None:
        """What may stand in the loop instead of a call of the function."""
        ...

    @property
    def backend(self) -> Any: ...

    @property
    def object_reuse(self) -> bool:
        """Whether records are never copied."""
        ...

    @property
    def side_outputs(self) -> bool:
        """Whether any output can carry a tag."""
        ...


class _Variant(NamedTuple):
    """What a compiled loop takes. ``columns``: records come as so many columns of ints, ``key_field`` of which is the key."""

    timed: bool
    columns: int | None = None
    key_field: int | None = None


class Loop:
    """One entry into a chain. ``into`` True: the values are inputs of ``node``; False: they are its outputs."""

    def __init__(self, node: ChainNode, bindings: Bindings, *, into: bool) -> None:
        self._node, self._bindings, self._into = node, bindings, into
        self._keyed = into and node.operator.keyed is not None
        self._variants: dict[_Variant, tuple[Callable[..., None], _Source]] = {}
        self._path: BatchPath | None = None

    def __call__(self, values: Values, timestamps: list[Any] | None, keys: list[Any] | None = None) -> None:
        if not self._keyed and self._through_path(values, timestamps):
            return
        variant = _Variant(timestamps is not None)
        if isinstance(values, IntColumns):
            if values.width and self._keyed:
                variant = _Variant(timestamps is not None, values.width, values.key_field)
            else:
                values = values.rows()
        if variant not in self._variants or self._variants[variant][1].is_stale():
            self._variants[variant] = self._compile(variant)
        run, source = self._variants[variant]
        tags = OutputTag.created
        try:
            run(values, timestamps, keys)
        except BaseException as error:  # sys.exit too: a task must not die of it, and be tried again
            blamed = source.blame(error)
            if blamed is error:
                raise  # with the cause it has
            raise blamed from error
        if OutputTag.created != tags and not self._bindings.side_outputs:
            raise ProgramError(
                "Side outputs nobody can read are refused: their records would be taken for main output",
                where=f"operator '{self._node.operator.name}' or one behind it",
                found="an OutputTag made while a record was processed, and none in the program",
                cure="make the OutputTag where the program is built, and read it with get_side_output(tag)",
            )

    def _through_path(self, values: Values, timestamps: list[Any] | None) -> bool:
        if self._path is None:
            self._path = BatchPath(self._node, self._bindings, into=self._into)
        return self._path.useful and self._path.run(values, timestamps)

    def _compile(self, variant: _Variant) -> tuple[Callable[..., None], _Source]:
        source = _Source(self._bindings, variant, self._keyed)
        if self._into:
            source.operator(self._node, "tg_v", 2, self._keyed)
        else:
            source.emitted(self._node, "tg_v", 2)
        return source.compile(), source


class _Owner(NamedTuple):
    """Of a generated line: the operator, the variable with the record, the user's line if the text is the user's."""

    where: str
    variable: str
    place: str | None = None


class _Source:
    """The text of one variant while it is built, and its line table afterwards."""

    def __init__(self, bindings: Bindings, variant: _Variant, keyed: bool) -> None:
        self._bindings, self._variant, self._keyed = bindings, variant, keyed
        self._timed = variant.timed
        self._used: set[str] = set()
        """Of a record that comes as columns, the variables of fields that stand in the lines."""
        self._once: list[str] = []
        self._lines: list[str] = []
        self._owners: list[_Owner | None] = []
        self._names: dict[str, Any] = {}
        self._globals: dict[str, Any] | None = None
        self._inlined_states: list[tuple[Any, str, Any]] = []
        self._code: CodeType | None = None
        self._copies = 0

    def line(self, depth: int, text: str, owner: _Owner | None) -> None:
        self._lines.append("    " * depth + text)
        self._owners.append(owner)

    def bind(self, name: str, value: Any) -> str:
        name = f"tg_{name}"
        self._names[name] = value
        return name

    def _open(self) -> list[str]:
        """The lines before those of the operators: the head of the loop, and the current key."""
        columns = self._columns() if self._variant.columns else [("tg_v", "tg_values")]
        if self._keyed:
            self._once.append(f"tg_i = {self.bind('iter', iter)}(tg_keys)")  # an error asks it how far it is
            columns.insert(0, ("tg_k", "tg_i"))
        names, sources = zip(*columns, *[("tg_t", "tg_timestamps")] * self._timed, strict=True)
        every = sources[0] if len(sources) == 1 else f"{self.bind('zip', zip)}({', '.join(sources)})"
        head = [f"    for {', '.join(names)} in {every}:"]
        if self._keyed:
            head.append(f"        {self.bind('B', self._bindings.backend)}.key = tg_k")
        return head

    def _columns(self) -> list[tuple[str, str]]:
        """Variables of a record that comes as columns, and where they come from: only those that the lines use."""
        width = self._variant.columns or 0
        whole = any(re.search(r"\btg_v\b", line) for line in self._lines)
        used = [field for field in range(width) if f"tg_v_{field}" in self._used]
        for field in range(width) if whole else used:
            self._once.append(f"tg_c_{field} = tg_values.columns[{field}].tolist()")
        record = [(f"tg_v_{field}", f"tg_c_{field}") for field in used]
        if whole:
            every = ", ".join(f"tg_c_{field}" for field in range(width))
            record.append(("tg_v", f"{self.bind('zip', zip)}({every})"))
        return record

    def compile(self) -> Callable[..., None]:
        # What the loop uses becomes a default argument: a local variable is cheaper to reach than a global one. Global are only the
        # names of inlined bodies, and they are found where the user's functions find them.
        opening = self._open()
        head = f"def loop(tg_values, tg_timestamps, tg_keys, {', '.join(f'{name}={name}' for name in self._names)}):"
        text = [head, *("    " + line for line in self._once), *opening, *self._lines]
        self._owners[:0] = [None] * (len(text) - len(self._lines))
        exec(_compiled("\n".join(text) + "\n"), self._names)
        made: FunctionType = self._names["loop"]
        self._code = made.__code__
        if self._globals is None:
            return made
        return FunctionType(made.__code__, self._globals, "loop", made.__defaults__)

    def is_stale(self) -> bool:
        """Whether a state that was inlined is not any more what the function's attribute holds."""
        return any(getattr(this, name, None) is not state for this, name, state in self._inlined_states)

    # -- operators -------------------------------------------------------------------------------------------------

    def operator(self, node: ChainNode, value: str, depth: int, keyed: bool = False) -> None:
        """Code that hands the record in ``value`` to the node. ``keyed``: it is the head of its chain, and has a current key."""
        spec, n = node.operator.spec, node.operator.id
        owner = _Owner(f"operator '{node.operator.name}'", value)
        if isinstance(spec, SinkSpec | TimestampsSpec):
            return self._collect(n, value, depth, owner)
        out = f"tg_v{n}"
        function = self._bindings.function(n)
        if isinstance(spec, MapSpec):
            self._result(f"{n}", function, [value], out, depth, owner, keyed)
            return self.consumers(node, None, out, depth)
        if isinstance(spec, FilterSpec):
            self._result(f"{n}", function, [value], out, depth, owner, keyed)
            self.line(depth, f"if {out}:", owner)
            return self.consumers(node, None, value, depth + 1)
        if isinstance(spec, ReduceSpec):
            return self._reduce(node, function, value, depth, owner)
        assert isinstance(spec, ProcessSpec | FlatMapSpec), spec
        return self._process(node, function, value, depth, owner, keyed)

    def _reduce(self, node: ChainNode, function: Any, value: str, depth: int, owner: _Owner) -> None:
        n = node.operator.id
        state, before, out = self._bindings.reduce_state(n), f"tg_a{n}", f"tg_v{n}"
        self.line(depth, f"{before} = {self.bind(f's{n}', state.value)}()", owner)
        self.line(depth, f"if {before} is None:", owner)
        self.line(depth + 1, f"{out} = {value}", owner)
        self.line(depth, "else:", owner)
        self._result(f"{n}", function, [before, value], out, depth + 1, owner)
        self.line(depth, f"{self.bind(f'u{n}', state.update)}({out})", owner)
        self.consumers(node, None, out, depth)

    def _process(self, node: ChainNode, function: Any, value: str, depth: int, owner: _Owner, keyed: bool) -> None:
        """Process functions and flat maps: outputs one by one from whatever the function returns."""
        n, out, arguments = node.operator.id, f"tg_v{node.operator.id}", [value]
        if isinstance(node.operator.spec, ProcessSpec):
            context = self.bind(f"c{n}", self._bindings.context(n))
            arguments.append(context)
            if self._timed:
                self.line(depth, f"{context}.ts = tg_t", owner)
            else:
                self._once.append(f"{context}.ts = None")
        body = self._inlinable(function, len(arguments))
        if body is not None and body.generator and len(self._lines) < _LONGEST:
            return self._generator(node, body, function, arguments, depth, owner, keyed)
        result = f"tg_r{n}"
        self._result(f"{n}", function, arguments, result, depth, owner, keyed)
        self.line(depth, f"if {result} is not None:", owner)
        self.line(depth + 1, f"for {out} in {result}:", owner)
        self.emitted(node, out, depth + 2)

    def emitted(self, node: ChainNode, value: str, depth: int) -> None:
        """Code that passes an output of the node on: to a side output if it is tagged (process functions only)."""
        if isinstance(node.operator.spec, ProcessSpec) and self._bindings.side_outputs:
            tags = sorted({tag for tag, _ in node.children if tag} | {edge.tag for edge in node.edges if edge.tag})
            tag_class = self.bind("OutputTag", OutputTag)
            tuple_class = self.bind("tuple", tuple)
            tagged = f"{value}.__class__ is {tuple_class} and {value} and {value}[0].__class__ is {tag_class}"
            self.line(depth, f"if {tagged}:", None)
            side = f"tg_x{node.operator.id}"
            for tag in tags:
                self.line(depth + 1, f"if {value}[0].tag_id == {tag!r}:", None)
                self.line(depth + 2, f"{side} = {value}[1]", _Owner(f"operator '{node.operator.name}'", value))
                self.consumers(node, tag, side, depth + 2)
            self.line(depth + 1, "pass", None)
            self.line(depth, "else:", None)
            depth += 1
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
                mine = value if safe or fresh or fused else self._owned(value, depth)
                (self.operator if depth <= _DEEPEST else self._apart)(child, mine, depth)
        for edge in node.edges:
            if edge.tag == tag:
                self._edge(edge, value if safe or fresh else self._owned(value, depth), depth, node.operator.name)
        if len(self._lines) == before:
            self.line(depth, "pass", None)

    def _apart(self, node: ChainNode, value: str, depth: int) -> None:
        """Code that hands the record to a loop of its own."""
        loop = self.bind(f"l{node.operator.id}", Loop(node, self._bindings, into=True))
        self.line(depth, f"{loop}([{value}], {'[tg_t]' if self._timed else None})", None)

    def _owned(self, value: str, depth: int) -> str:
        if self._bindings.object_reuse:
            return value
        atoms, copied = self.bind("atoms", ATOMS), self.bind("own", own)
        self._copies += 1
        mine = f"tg_o{self._copies}"
        self.line(depth, f"{mine} = {value} if {value}.__class__ in {atoms} else {copied}({value})", None)
        return mine

    def _collect(self, n: int, value: str, depth: int, owner: _Owner) -> None:
        append_value, append_time = self._bindings.collector(n)
        self.line(depth, f"{self.bind(f'w{n}', append_value)}({value})", owner)
        if self._timed:
            self.line(depth, f"{self.bind(f'q{n}', append_time)}(tg_t)", owner)

    def _edge(self, edge: Edge, value: str, depth: int, name: str) -> None:
        output, e = self._bindings.output(edge.id), edge.id
        ship, selector = edge.partitioning.ship, edge.partitioning.selector
        owner = _Owner(f"partitioning of the output of operator '{name}'", value)
        if not output.per_record:
            append_value, _, append_time = output.appends
            self.line(depth, f"{self.bind(f'a{e}_', append_value)}({value})", owner)
            if self._timed:
                self.line(depth, f"{self.bind(f't{e}_', append_time)}(tg_t)", owner)
            return
        key = f"tg_k{e}_"
        assert selector is not None
        self._result(f"s{e}_", selector, [value], key, depth, owner)
        where = key
        if ship is Ship.CUSTOM:
            where = f"{self.bind(f'p{e}_', edge.partitioning.partitioner)}({key}, {output.target.parallelism})"
        self.line(depth, f"tg_a{e}_, tg_b{e}_, tg_t{e}_ = {self.bind(f'r{e}_', output.router)}[{where}]", owner)
        self.line(depth, f"tg_a{e}_({value})", owner)
        if ship is Ship.HASH:
            self.line(depth, f"tg_b{e}_({key})", owner)
        if self._timed:
            self.line(depth, f"tg_t{e}_(tg_t)", owner)

    # -- functions: called or inlined ------------------------------------------------------------------------------

    def _result(
        self, label: str, function: Any, arguments: list[str], out: str, depth: int, owner: _Owner, keyed: bool = False
    ) -> None:
        """Code after which ``out`` holds what the function returns."""
        body = self._inlinable(function, len(arguments))
        if body is None or body.generator:
            self.line(depth, f"{out} = {self.bind(f'f{label}', function)}({', '.join(arguments)})", owner)
            return

        def returned(text: str | None, level: int, statement: ast.AST) -> None:
            self.line(level, f"{out} = {text}", owner._replace(place=body.place(statement)))
            if body.early:
                self.line(level, "break", None)

        def yielded(text: str, every: bool, level: int, statement: ast.AST) -> None:
            raise AssertionError("not a generator")

        self._inline(label, body, function, arguments, depth, owner, keyed, returned, yielded)

    def _generator(
        self, node: ChainNode, body: Body, function: Any, arguments: list[str], depth: int, owner: _Owner, keyed: bool
    ) -> None:
        n = node.operator.id
        out = f"tg_v{n}"

        def returned(text: str | None, level: int, statement: ast.AST) -> None:
            self.line(level, "break" if body.early else "pass", None)

        def yielded(text: str, every: bool, level: int, statement: ast.AST) -> None:
            place = owner._replace(place=body.place(statement))
            self.line(level, f"for {out} in {text}:" if every else f"{out} = {text}", place)
            self.emitted(node, out, level + every)

        self._inline(f"{n}", body, function, arguments, depth, owner, keyed, returned, yielded)

    def _inlinable(self, function: Any, arguments: int) -> Body | None:
        """The body, if the names in it mean in this loop what they mean in the function."""
        body = self._bindings.body(function)
        plain: Any = getattr(function, "__func__", function)
        if body is None or len(body.parameters) != arguments + (plain is not function):
            return None
        if _has_empty_cell(plain):
            return None
        scope = plain.__globals__
        if body.outer:
            if self._globals is None:
                self._globals = scope
            elif scope is not self._globals and not all(map(self._is_builtin, body.outer, repeat(scope))):
                return None  # two modules in one loop, and it has only one place to look names up
        return body

    def _is_builtin(self, name: str, scope: dict[str, Any]) -> bool:
        """In both modules. A name that is not there yet may come while the job runs."""
        return name not in scope and name not in (self._globals or ()) and hasattr(builtins, name)

    def _inline(
        self,
        label: str,
        body: Body,
        function: Any,
        arguments: list[str],
        depth: int,
        owner: _Owner,
        keyed: bool,
        returned: Callable[[str | None, int, ast.AST], None],
        yielded: Callable[[str, bool, int, ast.AST], None],
    ) -> None:
        plain = getattr(function, "__func__", function)
        if plain is not function:
            arguments = [self.bind(f"self{label}", function.__self__), *arguments]
        names = {name: f"tg_u{label}_{name}" for name in body.variables}
        for name, cell in zip(body.free, plain.__closure__ or (), strict=True):
            names[name] = self.bind(f"o{label}_{name}", cell.cell_contents)
        for name, argument in zip(body.parameters, arguments, strict=True):
            if name in body.assigned:
                self.line(depth, f"{names[name]} = {argument}", None)
            else:
                names[name] = argument
        cells = self._cells(label, body, function) if keyed and plain is not function else {}
        fields: dict[str, list[str]] = {}
        if self._variant.columns is not None and "tg_v" in arguments:
            fields[body.parameters[arguments.index("tg_v")]] = list(map(self._field, range(self._variant.columns)))

        def line(level: int, text: str, statement: ast.AST) -> None:
            self.line(level, text, owner._replace(place=body.place(statement)))

        write = Inliner(body, names, cells, fields, line, returned, yielded)
        if body.early:
            self.line(depth, "while True:", None)  # a return is a break out of it
        write.block(body.statements, depth + body.early)
        if (body.early or not body.generator) and not isinstance(body.statements[-1], ast.Return):
            returned(None, depth + body.early, body.statements[-1])
        self._used |= write.used_fields

    def _field(self, index: int) -> str:
        return "tg_k" if index == self._variant.key_field else f"tg_v_{index}"

    def _cells(self, label: str, body: Body, function: Any) -> dict[str, tuple[str, ...]]:
        """The value states among the attributes of the function object whose values per key can be had as dicts, and which of
        their dicts an update has to fill. Keys that come as a column, and are all written, are noted as a column."""
        this, certain = function.__self__, certain_updates(body)
        found: dict[str, tuple[str, ...]] = {}
        for name in sorted(state_attributes(body)):
            state: Any = vars(this).get(name) if hasattr(this, "__dict__") else None
            if isinstance(state, ImmutableValueState) and getattr(this, name) is state:
                found[name] = (self.bind(f"d{label}_{name}", state.cells),)
                if self._variant.key_field is not None and name in certain:
                    note = self.bind(f"n{label}_{name}", state.note)
                    self._once.append(f"{note}(tg_values.columns[{self._variant.key_field}])")
                else:
                    found[name] += (self.bind(f"h{label}_{name}", state.wrote),)
                self._inlined_states.append((this, name, state))
        return found

    # -- errors ----------------------------------------------------------------------------------------------------

    def blame(self, error: BaseException) -> Exception:
        """The error with operator, user line and record; read off its traceback."""
        where, record, place = self._locate(error.__traceback__)
        return user_error(error, where, record, place)

    def _locate(self, tb: TracebackType | None) -> tuple[str, str | None, str | None]:
        while tb is not None:
            if tb.tb_frame.f_code is self._code:
                owner = self._owners[tb.tb_lineno - 1]
                if owner is None:
                    break
                return owner.where, reprlib_repr(self._found(owner.variable, tb.tb_frame.f_locals)), owner.place
            tb = tb.tb_next
        return "the chain", None, None

    def _found(self, variable: str, found: dict[str, Any]) -> Any:
        """The record in a variable. One that came as columns is that of the last key."""
        if variable == "tg_v" and self._variant.columns is not None:
            records: IntColumns = found["tg_values"]
            return records.row(len(records) - found["tg_i"].__length_hint__() - 1)
        return found.get(variable)


@lru_cache(maxsize=256)
def _compiled(text: str) -> CodeType:
    return compile(text, CHAIN_FILE, "exec")


def _has_empty_cell(function: FunctionType) -> bool:
    """Whether a closure variable has no value yet: reading it is the user's error, at the record that does."""
    try:
        for cell in function.__closure__ or ():
            _ = cell.cell_contents
    except ValueError:
        return True
    return False
