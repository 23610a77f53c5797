"""Generate one Python loop for a chain: an operator costs the call of the user's function, or even less.

A loop takes the parts of a ``Batch``: values, timestamps, keys. Variants are compiled on demand. Variants with and
without timestamps exist, so a stream without timestamps does not pay for them. Other variants take records as columns,
of which only the used fields become Python objects. Small functions are not called but written into the loop
(``rewrites/``), where a value state of the current key is an entry of a dict. A generated line remembers its operator,
the variable with its input and the user's line. So an exception is traced to operator and record from its traceback
alone, at no cost without an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from types import CodeType, FunctionType, TracebackType
from typing import Any, NamedTuple, Protocol

from tidegate.base.portable_errors import with_causes
from tidegate.base.user_code import CHAIN_FILE, UserFunction, with_user_frame
from tidegate.graph.plan import ChainNode
from tidegate.graph.transformation import OutputTag, Partitioning, Ship
from tidegate.operators.contracts.batch import INT, Batch, ColumnBatch, Keys, Rows, TimeList
from tidegate.operators.contracts.operator import StreamOperator
from tidegate.operators.flow.outputs import EdgeOutput
from tidegate.operators.loop import decoding
from tidegate.operators.loop.blame import RecordRefused, reprlib_repr, user_error
from tidegate.operators.loop.ownership import ATOMS, is_immutable, own
from tidegate.operators.loop.rewrites import rewrite
from tidegate.operators.loop.rewrites.rewrite import Call, Emit, LineOwner, Rewrites, WholeBatch
from tidegate.state.context import NO_KEY, KeyContext
from tidegate.state.keys import key_identity, visible

_MOST_NESTED = 40
"""The greatest number of consecutive operators in one loop. Further operators have a loop of their own: the text is
written by recursion."""
_DEEPEST = 12
"""The greatest number of indentation levels. Deeper code has a loop of its own: Python allows 20 nested blocks."""


class ChainParts(rewrite.Bindings, Protocol):
    """Give the parts of a loop: the operators of a chain in one subtask, and its outputs."""

    def operator(self, operator_id: int) -> StreamOperator: ...

    def output(self, edge_id: int) -> EdgeOutput: ...

    @property
    def rewrites(self) -> Rewrites:
        """Return the rewrites that may replace calls."""
        ...

    @property
    def object_reuse(self) -> bool:
        """Tell whether records are never copied."""
        ...

    @property
    def json_fields(self) -> bool:
        """Tell whether only the fields of JSON texts that a loop uses are decoded."""
        ...


class _Variant(NamedTuple):
    """Describe the input of a compiled loop. ``columns``: records come as this number of columns, ``key_field`` of
    which is the key; ``int_keys``: the key is a column of ints."""

    timed: bool
    keyed: bool
    columns: int | None = None
    key_field: int | None = None
    int_keys: bool = False


class Held(NamedTuple):
    """Say what is known of the record in a variable. ``plain``: it consists of exact builtin classes, so reading it changes
    nothing. ``sole``: nobody else holds it. ``lent``: another reader uses it too, and it must not change."""

    plain: bool = False
    sole: bool = False
    lent: bool = False


_UNKNOWN = Held()


class Loop:
    """Enter a chain. ``into`` True: the records are inputs of ``node``; False: they are its outputs. ``input``: the
    number of the node's input to which they belong."""

    def __init__(self, node: ChainNode, parts: ChainParts, *, into: bool, input: int = 0) -> None:
        self._node, self._parts, self._into, self._input = node, parts, into, input
        self._variants: dict[_Variant, tuple[Callable[..., None], LoopSource]] = {}
        self._ways: list[WholeBatch] | None = None
        self._outputs: list[tuple[EdgeOutput, bool]] = []
        """With whether the loop itself gives the records their timestamps."""
        self._collecting: list[StreamOperator] = []

    def __call__(self, batch: Batch) -> None:
        """Process a batch: its records pass the chain, up to the outputs and the operators that collect. A batch without records
        reaches nothing: the lines of a file may be blank, and messages may be skipped."""
        if not len(batch):
            return
        if self._ways is None:
            self._ways = [*self._handed(), *self._parts.rewrites.whole_batch(self._node, self._parts, into=self._into)]
            self._find_readers()
        for output, timed in self._outputs:
            output.expect(timed=timed or batch.times is not None)
        keys = batch.keys if self._into else None
        if keys is not None and batch.is_columnar and self._parts.operator(self._node.operator.id).fold_batch(batch):
            pass
        elif keys is not None and batch.width:
            field, timed = batch.key_field, batch.times is not None
            int_keys = field is not None and batch.columns[field].dtype.kind == INT
            self._run(_Variant(timed, True, batch.width, field, int_keys), batch, batch.time_list(), keys)
        elif keys is not None or not any(way(batch) for way in self._ways):
            times = batch.time_list()
            self._run(_Variant(times is not None, keys is not None), batch.rows(), times, keys)
        for operator in self._collecting:
            operator.settle()

    def _handed(self) -> list[WholeBatch]:
        """Return the way for columns to the only reader, if this reader takes columns: no loop makes rows for it."""
        children = [] if self._into or self._node.edges else self._node.children
        readers = [self._parts.operator(child.operator.id) for tag, child in children if tag is None]
        if len(children) != 1 or not readers or not readers[0].takes_columns or readers[0].key_context is not None:
            return []

        def hand_over(batch: Batch) -> bool:
            # an undecided batch that would become rows in the reader becomes rows in the loop, which calls the reader less
            taken = batch.is_columnar and not (batch.is_undecided and readers[0].needs_rows)
            if taken:
                readers[0].take_batch(batch)
            return taken

        return [hand_over]

    def _find_readers(self) -> None:
        """Find the outputs of the loop, and the operators that collect the loop's output."""
        waiting = [(self._node, False)]
        last = list[StreamOperator]()
        while waiting:
            node, timed = waiting.pop()
            operator = self._parts.operator(node.operator.id)
            within = node is not self._node and operator.in_loop
            if node is not self._node and operator.collects and not within:
                self._collecting.append(operator)
                continue
            if within:
                last.insert(0, operator)
            self._outputs.extend((self._parts.output(edge.id), timed or within) for edge in node.edges)
            waiting.extend((child, timed or within) for _, child in reversed(node.children))
        self._collecting += last

    def decoded(self) -> list[tuple[str, decoding.Paths | None]]:
        """Return what the loop decodes of JSON texts in records without timestamps, for explanations."""
        return [one for source in self._compile(_Variant(False, False))[1].every for one in source.decoded]

    def _run(self, variant: _Variant, values: Rows | Batch, timestamps: TimeList | None, keys: Keys | None) -> None:
        if variant not in self._variants or self._variants[variant][1].is_stale():
            self._variants[variant] = self._compile(variant)
        run, source = self._variants[variant]
        try:
            run(values, timestamps, keys)
        except BaseException as error:  # sys.exit too: it must not kill the task, and must not be retried
            blamed = source.blame(error)
            if blamed is error:
                raise  # with its own cause
            raise blamed from error

    def _compile(self, variant: _Variant) -> tuple[Callable[..., None], LoopSource]:
        operator = self._parts.operator(self._node.operator.id)
        source = LoopSource(self._parts, variant, operator.key_context if self._into else None)
        if self._into:
            operator.write(source, "tg_v", 2, keyed=variant.keyed, input=self._input)
        else:
            source.held["tg_v"] = source.passed_through(operator)
            source.emitted(operator, "tg_v", 2)
        for each in source.every:  # further ones are added on the way
            source.every += each.write_apart()
        for each in reversed(source.every):  # a loop is called by one that comes before it
            run = each.compile()
        return run, source


class LoopSource:
    """Build the text of one variant, and keep its line table.

    ``timed``: the record's timestamp is in ``tg_t``. Operators write their part with ``call`` or ``call_each`` and
    ``line``, and hand their output to ``emitted`` or ``consumers``.
    """

    def __init__(self, parts: ChainParts, variant: _Variant, key_context: KeyContext | None) -> None:
        """Start the text. ``key_context``: of the operator that the records enter."""
        self._parts, self._variant, self._key_context = parts, variant, key_context
        self.timed = variant.timed
        self.scope: dict[str, Any] | None = None
        self._used: set[str] = set()
        """The variables of fields that the lines use, of a record that comes as columns."""
        self._once: list[str] = []
        self._lines: list[str] = []
        self._owners: list[LineOwner | None] = []
        self._names: dict[str, Any] = {}
        self._checks: list[Callable[[], bool]] = []
        self._code: CodeType | None = None
        self._apart: dict[str, tuple[ChainNode, bool]] = {}
        """For each loop that this one calls: its first operator, and whether the records have keys."""
        self._inner: list[tuple[str, LoopSource]] = []
        self.every = [self]
        """Of the first loop: the loop itself, and all loops that are called for its records."""
        self._run: Callable[..., None] | None = None
        self._copies = 0
        self._nested = 0
        self.decoded: list[tuple[str, decoding.Paths | None]] = []
        """For each call of ``json.loads`` that the loop answers: where it is, the fields that are decoded; None: all."""
        self._parts_of: dict[str, tuple[str, decoding.Path]] = {}
        """The variables with values of which only some fields are there: the variable of the text, the place in it."""
        self.held: dict[str, Held] = {}
        """What is known of the records in variables (``rewrites/lending.py``)."""

    def line(self, depth: int, text: str, owner: LineOwner | None) -> None:
        self._lines.append("    " * depth + text)
        self._owners.append(owner)

    # -- what rewrites may ask (rewrites/rewrite.py) -----------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._lines)

    def once(self, text: str) -> None:
        self._once.append(text)

    def fields(self, variable: str) -> list[str] | None:
        if variable != "tg_v" or self._variant.columns is None:
            return None
        key = self._variant.key_field
        return ["tg_k" if field == key else f"tg_v_{field}" for field in range(self._variant.columns)]

    def use(self, fields: Iterable[str]) -> None:
        self._used.update(fields)

    @property
    def key_column(self) -> str | None:
        return f"tg_values.columns[{self._variant.key_field}]" if self._variant.int_keys else None

    def holds_while(self, check: Callable[[], bool]) -> None:
        if check not in self._checks:
            self._checks.append(check)

    def bind(self, name: str, value: object) -> str:
        name = f"tg_{name}"
        self._names[name] = value
        return name

    def owner(self, node: ChainNode, value: str) -> LineOwner:
        """Return the owner of a line that an operator writes for the record in the variable."""
        return LineOwner(f"operator '{node.operator.name}'", value, added=node.operator.place)

    def _open(self) -> list[str]:
        """Return the lines before those of the operators: the head of the loop, and the current key."""
        columns = self._columns() if self._variant.columns else [("tg_v", "tg_values")]
        keyed, context = self._variant.keyed, self._key_context
        if keyed:
            # an error asks the iterator for its position
            self._once.append(f"tg_i = {self.bind('iter', iter)}(tg_keys)")
            columns.insert(0, ("tg_k", "tg_i"))
        elif context is not None:
            self._once.append(f"{self.bind('B', context)}.slot = {self.bind('NO_KEY', NO_KEY)}")
        names, sources = zip(*columns, *[("tg_t", "tg_timestamps")] * self.timed, strict=True)
        every = sources[0] if len(sources) == 1 else f"{self.bind('zip', zip)}({', '.join(sources)})"
        head = [f"    for {', '.join(names)} in {every}:"]
        if keyed and context is not None:
            head.append(f"        {self.bind('B', context)}.slot = tg_k")
        return head

    def _columns(self) -> list[tuple[str, str]]:
        """Return the variables of a record that comes as columns, and their origins: only variables that the lines
        use."""
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
        # Objects that the loop uses become default arguments: a local variable is cheaper to reach than a global one.
        # Only the names of inlined bodies are global, and they are found where the user's functions find them.
        for name, inner in self._inner:
            self._names[name] = inner._run
        opening = self._open()
        if self._parts.rewrites.may_write(self) and decoding.still_fast():
            self._decode()
        head = f"def loop(tg_values, tg_timestamps, tg_keys, {', '.join(f'{name}={name}' for name in self._names)}):"
        text = [head, *("    " + line for line in self._once), *opening, *self._lines]
        self._owners[:0] = [None] * (len(text) - len(self._lines))
        exec(_compiled("\n".join(text) + "\n"), self._names)
        made: FunctionType = self._names["loop"]
        self._code = made.__code__
        self._run = made if self.scope is None else FunctionType(self._code, self.scope, "loop", made.__defaults__)
        return self._run

    def _decode(self) -> None:
        """Decode JSON where a line calls ``json.loads``, and only what the loop uses of it."""
        only_used, text = self._parts.json_fields, "\n".join(["if True:", *self._lines])
        found = decoding.decoded_in(text, self._names, self.scope or {}, only_used=only_used)
        owners = [self._owners[each.line - 1] for each in found]
        for each in reversed(found):  # the later lines first: the numbers of the others stay
            at, variable, fields = each.line - 1, each.variable, each.fields
            line, owner = self._lines[at], self._owners[at]
            indent = line[: len(line) - len(line.lstrip())]
            decode, refused = self.bind(f"j{at}", decoding.decoder(fields)), self.bind("refused", decoding.REFUSED)
            fits, kept = f"{each.text}.__class__ is {self.bind('str', str)}", list[str]()
            if fields is not None:
                most = decoding.limit()
                fits += f" and {self.bind('len', len)}({each.text}) <= {most}"
                self.holds_while(partial(_is_limit, most))
                for name in each.relied:
                    self.holds_while(name.holds)
                whole = f"tg_d{at}" if each.changes else each.text
                kept = [f"{indent}{whole} = {each.text}"] if each.changes else []
                self._parts_of |= {name: (whole, path) for name, path in each.parts.items()}
            # A record before this one may have changed a name. The variable is set once, when there is a value: it may be
            # the variable of the text, and stays what it was if the text is refused.
            names = {name.text: name.value for name in each.relied if name.text not in self._names}
            still = [f"{name} is {self.bind(f'j{at}_{n}', value)}" for n, (name, value) in enumerate(names.items())]
            lines = [
                *kept,
                f"{indent}tg_j = {fits}",
                f"{indent}if tg_j:",
                f"{indent}    try:",
                *([f"{indent}        tg_j = {' and '.join(still)}", f"{indent}        if tg_j:"] if still else []),
                f"{indent}        {'    ' if still else ''}{variable} = {decode}({each.text})",
                f"{indent}    except {refused}:",
                f"{indent}        tg_j = False",
                f"{indent}if not tg_j:",  # outside of the block: an error has no other error as its context
                f"    {line}",
            ]
            self._lines[at : at + 1] = lines
            self._owners[at : at + 1] = [owner] * len(lines)
        if found:
            self.holds_while(decoding.still_fast)
            self.decoded = [
                (owner.where if owner else "the chain", each.fields) for owner, each in zip(owners, found, strict=True)
            ]

    def is_stale(self) -> bool:
        """Tell whether something that a rewrite relied on has changed."""
        return not all(check() for source in self.every for check in source._checks)

    # -- operators -------------------------------------------------------------------------------------------------

    def _operator(self, node: ChainNode, value: str, depth: int) -> None:
        """Write the code that hands the record to an operator inside of the chain. If the operator is keyed, its key is
        made here."""
        operator = self._parts.operator(node.operator.id)
        context, keyed = operator.key_context, node.operator.keyed
        if context is not None and keyed is not None:
            owner = LineOwner(f"key selector of operator '{node.operator.name}'", value)
            key = self.key(f"k{operator.id}", keyed, value, depth, owner)
            self.line(depth, f"{self.bind(f'B{operator.id}', context)}.slot = {key}", owner)
            self.held[value] = _UNKNOWN  # the selector has seen the record
        operator.write(self, value, depth, keyed=False, input=0)

    def key(self, label: str, partitioning: Partitioning, value: str, depth: int, owner: LineOwner) -> str:
        """Write the code that makes the key of a record; return the key's variable."""
        key = f"tg_k{label}"
        assert partitioning.selector is not None
        self.call(label, partitioning.selector, [value], key, depth, owner)
        if partitioning.has_key:  # keys of the common classes are their own form; others cost a call
            identity = key_identity(partitioning.key_type)
            # one class after the other: a look into a set costs three times as much
            safe = sorted(identity.safe, key=lambda kind: kind.__name__)
            # The width of ints is checked by the router
            fields = identity.fields if partitioning.ship is Ship.HASH else ()
            if fields:
                kinds = [self.bind(f"y{label}{kind.__name__}", kind) for kind in (tuple, *fields)]
                checks = [f"{key}[{n}].__class__ is not {kind}" for n, kind in enumerate(kinds[1:])]
                length = f"{self.bind('len', len)}({key}) != {len(fields)}"
                self.line(depth, f"if {' or '.join((f'{key}.__class__ is not {kinds[0]}', length, *checks))}:", owner)
                depth += 1
            other = [f"{key}.__class__ is not {self.bind(f'y{label}{kind.__name__}', kind)}" for kind in safe]
            if other:
                self.line(depth, f"if {' and '.join(other)}:", owner)
                depth += 1
            self.line(depth, f"{key} = {self.bind(f'i{label}', identity.identify)}({key})", owner)
        return key

    def emitter(self, operator: StreamOperator) -> Emit:
        """Return the function that writes the code for each output of the operator."""
        return lambda value, depth: self.emitted(operator, value, depth)

    def emitted(self, operator: StreamOperator, value: str, depth: int) -> None:
        """Write the code that passes an output of the operator on: to a side output if it is tagged."""
        node = operator.node
        if operator.tags:
            tags = sorted({tag for tag, _ in node.children if tag} | {edge.tag for edge in node.edges if edge.tag})
            tag_class, tuple_class = self.bind("OutputTag", OutputTag), self.bind("tuple", tuple)
            tagged = f"{value}.__class__ is {tuple_class} and {value} and {value}[0].__class__ is {tag_class}"
            self.line(depth, f"if {tagged}:", None)
            side = f"tg_x{operator.id}"
            for tag in tags:
                self.line(depth + 1, f"if {value}[0].tag_id == {tag!r}:", None)
                self.line(depth + 2, f"{side} = {value}[1]", self.owner(node, value))
                self.consumers(operator, tag, side, depth + 2)
            self.line(depth + 1, "pass", None)
            self.line(depth, "else:", None)
            depth += 1
        self.consumers(operator, None, value, depth)

    def consumers(self, operator: StreamOperator, tag: str | None, value: str, depth: int) -> None:
        """Write the code that hands ``value`` to all its readers, to each as a record of its own (``ownership.py``):
        the function that emitted the value may still change it, and so may another reader. A function that is the only
        reader gets the value itself."""
        before, node = len(self._lines), operator.node
        safe = tag is None and is_immutable(node.operator.output_type)
        alone = len(node.children) + len(node.edges) == 1
        held = self.held.get(value, _UNKNOWN)
        fresh = alone and (operator.emits_fresh or held.sole)
        for wanted, child in node.children:
            if wanted == tag:
                reader, apart = (
                    self._parts.operator(child.operator.id),
                    depth > _DEEPEST or self._nested >= _MOST_NESTED,
                )
                fused = alone and (not reader.collects or reader.in_loop) and not held.lent
                if safe or fresh or fused:
                    mine, handed = value, held if alone else held._replace(sole=False)
                elif held.plain and not apart and child.operator.keyed is None and reader.looks_with(self._looks):
                    mine, handed = value, Held(plain=True, lent=True)
                else:
                    mine, handed = self._owned(value, depth), Held(held.plain, sole=not self._parts.object_reuse)
                if apart:
                    self._call_apart(child, mine, depth)
                    continue
                self.held[mine] = reader.taken = handed
                self._nested += 1
                self._operator(child, mine, depth)
                self._nested -= 1
                self.held[value] = held
        for edge in node.edges:
            if edge.tag == tag:
                mine = value if safe or fresh else self._owned(value, depth)
                self._parts.output(edge.id).write(self, mine, depth, node.operator.name)
        if len(self._lines) == before:
            self.line(depth, "pass", None)

    def looked_at(self, function: UserFunction, value: str, out: str) -> None:
        """Note what is known of ``out``, which a function has made of the record in ``value``, or which is this record."""
        held, rewrites = self.held.get(value, _UNKNOWN), self._parts.rewrites
        if out != value and rewrites.makes_plain(self, function):
            self.held[out] = Held(plain=True, sole=True)
        elif not held.plain or not self._looks(function):
            self.held[out] = _UNKNOWN
        else:
            self.held[out] = held if out == value or rewrites.returns_parts(function) else Held(lent=held.lent)

    def passed_through(self, operator: StreamOperator) -> Held:
        """Return what is known of the records that an operator emits outside of a loop, if it emits the records it has taken."""
        seen_by, taken = operator.passes_through, operator.taken
        if seen_by is None or taken is None:
            return _UNKNOWN
        return taken if not seen_by or (taken.plain and all(map(self._looks, seen_by))) else _UNKNOWN

    def _looks(self, function: UserFunction) -> bool:
        return self._parts.rewrites.looks_only(self, function)

    def _call_apart(self, node: ChainNode, value: str, depth: int) -> None:
        """Write the code that hands the record to a loop of its own."""
        n, keyed, keys = node.operator.id, node.operator.keyed, "None"
        if self._parts.operator(n).key_context is not None and keyed is not None:
            owner = LineOwner(f"key selector of operator '{node.operator.name}'", value)
            keys = f"[{self.key(f'k{n}', keyed, value, depth, owner)}]"
        loop = self.bind(f"l{n}", None)  # until all texts are written
        self._apart[loop] = node, keys != "None"
        self.line(depth, f"{loop}([{value}], {'[tg_t]' if self.timed else None}, {keys})", None)

    def write_apart(self) -> list[LoopSource]:
        """Write the loops that this one calls, and return them."""
        for name, (node, keyed) in self._apart.items():
            operator = self._parts.operator(node.operator.id)
            source = LoopSource(self._parts, _Variant(self.timed, keyed), operator.key_context)
            operator.write(source, "tg_v", 2, keyed=keyed, input=0)
            self._inner.append((name, source))
        return [source for _, source in self._inner]

    def _owned(self, value: str, depth: int) -> str:
        if self._parts.object_reuse:
            return value
        atoms, copied = self.bind("atoms", ATOMS), self.bind("own", own)
        self._copies += 1
        mine = f"tg_o{self._copies}"
        self.line(depth, f"{mine} = {value} if {value}.__class__ in {atoms} else {copied}({value})", None)
        return mine

    # -- functions: rewritten or called ------------------------------------------------------------------------------

    def call(
        self,
        label: str,
        function: UserFunction,
        arguments: list[str],
        out: str,
        depth: int,
        owner: LineOwner,
        keyed: bool = False,
    ) -> None:
        """Write the code after which ``out`` holds the function's result. ``label``: of this place, unique in the
        loop."""
        if not self._parts.rewrites.call(self, Call(label, function, arguments, depth, owner, keyed), out):
            self.line(depth, f"{out} = {self.bind(f'f{label}', function)}({', '.join(arguments)})", owner)

    def call_each(
        self,
        label: str,
        function: UserFunction,
        arguments: list[str],
        depth: int,
        owner: LineOwner,
        keyed: bool,
        emit: Emit,
    ) -> None:
        """Write the code that hands each output of the function to ``emit(variable, depth)``."""
        if self._parts.rewrites.call_each(self, Call(label, function, arguments, depth, owner, keyed), emit):
            return
        result, out = f"tg_r{label}", f"tg_v{label}"
        self.call(label, function, arguments, result, depth, owner, keyed)
        self.line(depth, f"if {result} is not None:", owner)
        self.line(depth + 1, f"for {out} in {result}:", owner)
        emit(out, depth + 2)

    # -- errors ----------------------------------------------------------------------------------------------------

    def blame(self, error: BaseException) -> Exception:
        """Return the error with operator, user line and record, taken from its traceback."""
        by_code, blamed, tb = {source._code: source for source in self.every}, self, error.__traceback__
        while tb is not None:
            blamed, tb = by_code.get(tb.tb_frame.f_code, blamed), tb.tb_next
        return blamed._blame(error)

    def _blame(self, error: BaseException) -> Exception:
        where, record, place, added, key = self._locate(error.__traceback__)
        if isinstance(error, RecordRefused):
            return error.about(record or "not known")
        _, *causes = with_causes(error)
        for cause, _ in causes:  # causes may come from other lines of the loop
            line = self._locate(cause.__traceback__)[2]
            if line is not None:
                with_user_frame(cause, line)
        return user_error(error, where, record, place, added, key)

    def _locate(self, tb: TracebackType | None) -> tuple[str, str | None, str | None, str | None, str | None]:
        """Return operator, record, the user's line, the line that added the operator, and the key."""
        while tb is not None:
            if tb.tb_frame.f_code is self._code:
                owner = self._owners[tb.tb_lineno - 1]
                if owner is None:
                    break
                record = reprlib_repr(self._found(owner.variable, tb.tb_frame.f_locals))
                key = reprlib_repr(visible(tb.tb_frame.f_locals["tg_k"])) if self._variant.keyed else None
                return owner.where, record, owner.place, owner.added, key
            tb = tb.tb_next
        return "the chain", None, None, None, None

    def record_at(self, line: int, found: dict[str, Any]) -> list[Any]:
        """Return the record that a line processes, by the loop's variables; empty if the line is not for a record."""
        owner = self._owners[line - 1]
        return [] if owner is None else [self._found(owner.variable, found)]

    def _found(self, variable: str, found: dict[str, Any]) -> Any:
        """Return the record in a variable. A record that came as columns is the record of the last key."""
        if variable == "tg_v" and self._variant.columns is not None:
            records: ColumnBatch = found["tg_values"]
            return records.row(len(records) - found["tg_i"].__length_hint__() - 1)
        if variable in self._parts_of:  # only some fields were decoded
            text, path = self._parts_of[variable]
            return decoding.part_of(json.loads(found[text]), path)
        return found.get(variable)


def _is_limit(most: int) -> bool:
    return decoding.limit() == most


@lru_cache(maxsize=256)
def _compiled(text: str) -> CodeType:
    return compile(text, CHAIN_FILE, "exec")
