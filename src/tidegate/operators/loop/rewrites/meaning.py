"""Check whether a function means the same inside the generated loop, and find the variables to release after it.

A call of a small Python function costs more than its work, a generator twice that. So the body is written into the loop
where nothing in it depends on a frame of its own. A body that is not certain is refused, with a reason. The function is
then called, which costs speed, never a result. ``callees.py`` decides which functions a body may call itself.

A function's variables die with its frame; variables of a loop live until the next record sets them. The point where the
last reference to an object dies can be observed: a file is closed, a lock released, ``__del__`` or a weak reference's
callback runs. So after a body the loop sets the variables of the body to None, in the order in which a frame releases
them. Variables that certainly hold only numbers, texts or containers of them are left out. No one can observe when
these die, and a store for each record is not free.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache

from tidegate.operators.loop.rewrites.bodies import (
    Body,
    changed_elsewhere,
    comprehended,
    constant_index,
    own_attribute,
    used_outside,
)
from tidegate.operators.loop.rewrites.rewrite import Refused

RESERVED = "tg_"
"""The prefix of all names of the generated code; no name of an inlined body has it."""
_MOST_NODES, _MOST_YIELDS, _MOST_BLOCKS = 300, 3, 6
"""The code after a yield is repeated at every yield; and Python allows 20 nested blocks, of a loop and its bodies."""
_FORBIDDEN = {
    ast.Lambda: "makes a lambda",
    ast.GeneratorExp: "makes a generator",
    ast.NamedExpr: "sets a variable inside an expression",
    ast.Await: "awaits",
}
"""These expressions outlive the record with the variables they see, or bind names in the middle of an expression."""


def check(body: Body) -> None:
    """Raise Refused unless the body may be inlined."""
    reason = _reason(body)
    if reason is not None:
        raise Refused(reason)


@lru_cache(maxsize=1024)
def _reason(body: Body) -> str | None:
    """Return why the body is refused. Found once for a body: every attempt of a job asks again."""
    try:
        _check(body)
    except Refused as refused:
        return str(refused)
    except RecursionError:
        return "is nested deeply"
    return None


def _check(body: Body) -> None:
    every = list(body.parts())
    scoped = {name for part in every for name in comprehended(part)}
    if scoped & {*body.parameters, *used_outside(body.statements)}:
        raise Refused("has one name for two variables")
    changed = sorted(changed_elsewhere(body.file) & set(body.free)) if body.free else []
    if changed:
        raise Refused(f"reads {changed[0]}, which another function may change")
    _check_parts(every, {*body.variables, *body.free, *body.outer, *scoped})
    _check_text(body.statements)
    flow = _Flow(frozenset(body.variables), body.generator)
    flow.block(body.statements, set(body.parameters), loops=0, guarded=False)
    if len(every) > _MOST_NODES:
        raise Refused("is long")
    if flow.yields > _MOST_YIELDS:
        raise Refused(f"{flow.yields} yields")
    if _blocks(body.statements) > _MOST_BLOCKS:
        raise Refused("nests many blocks")


def _blocks(statements: Iterable[ast.AST]) -> int:
    """Return how many blocks of the interpreter the statements nest."""
    most = 0
    for node in statements:
        own = 3 if isinstance(node, ast.Try) else isinstance(node, ast.For | ast.While | ast.With)
        most = max(most, own + _blocks(ast.iter_child_nodes(node)))
    return most


def _check_parts(every: list[ast.AST], names: set[str]) -> None:
    if any(name.startswith(RESERVED) for name in names):
        raise Refused(f"uses a name that begins with {RESERVED}")
    if "__class__" in names:
        raise Refused("uses __class__")
    for part in every:
        if type(part) in _FORBIDDEN:
            raise Refused(_FORBIDDEN[type(part)])
        if isinstance(part, ast.JoinedStr) and "\n" in ast.unparse(part):
            raise Refused("has an f-string of several lines")  # the only expression whose text may need more than one


def _check_text(statements: list[ast.stmt]) -> None:
    """Check that the text of the body parses to the same tree: the body goes into the loop as text."""
    for statement in statements:
        if ast.dump(ast.parse(f"def f():\n {_indented(statement)}").body[0].body[0]) != ast.dump(statement):  # type: ignore[attr-defined]
            raise Refused("has a text that does not parse to the same tree")


def _indented(statement: ast.stmt) -> str:
    return ast.unparse(statement).replace("\n", "\n ")


class _Flow:
    """Walk a body in its order. A variable may be read only where it has certainly been set for this record. In a frame
    of its own such a read raises; in the loop it would find the value of the previous record."""

    def __init__(self, variables: frozenset[str], generator: bool) -> None:
        self._variables, self.generator = variables, generator
        self.yields = 0

    def block(self, statements: list[ast.stmt], known: set[str], loops: int, guarded: bool) -> set[str]:
        """Return the variables known after the statements. ``guarded``: inside try or with, which would catch errors of
        the operators after a yield."""
        known = set(known)
        for statement in statements:
            step = getattr(self, f"_{type(statement).__name__.lower()}", None)
            if step is None:
                raise Refused(f"has a statement that is not inlined: {_KINDS.get(type(statement), 'another one')}")
            step(statement, known, loops, guarded)
        return known

    def _reads(self, node: ast.AST | None, known: set[str]) -> None:
        parts = [] if node is None else list(ast.walk(node))
        unset = self._variables - known
        for part in parts:
            if isinstance(part, ast.Yield | ast.YieldFrom):
                raise Refused("uses the value of a yield")
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load) and part.id in unset:
                raise Refused(f"reads a variable that may be unset: {part.id}")

    def _sets(self, target: ast.AST, known: set[str]) -> None:
        self._reads(target, known)  # objects whose fields and items are set
        known.update(
            part.id for part in ast.walk(target) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
        )

    def _pass(self, statement: ast.Pass, known: set[str], loops: int, guarded: bool) -> None:
        pass

    _break = _continue = _pass

    def _expr(self, statement: ast.Expr, known: set[str], loops: int, guarded: bool) -> None:
        value = statement.value
        if isinstance(value, ast.Yield | ast.YieldFrom):
            if guarded:
                raise Refused("yields inside try or with")
            self.yields += 1
            self._reads(value.value, known)
        else:
            self._reads(value, known)

    def _assign(self, statement: ast.Assign, known: set[str], loops: int, guarded: bool) -> None:
        self._reads(statement.value, known)
        for target in statement.targets:
            self._sets(target, known)

    def _augassign(self, statement: ast.AugAssign, known: set[str], loops: int, guarded: bool) -> None:
        self._reads(statement.value, known)
        if isinstance(statement.target, ast.Name) and statement.target.id not in known:
            raise Refused(f"reads a variable that may be unset: {statement.target.id}")
        self._reads(statement.target, known)

    def _annassign(self, statement: ast.AnnAssign, known: set[str], loops: int, guarded: bool) -> None:
        if statement.value is None or not statement.simple:
            raise Refused("declares a variable without setting it")
        self._reads(statement.value, known)
        self._sets(statement.target, known)

    def _raise(self, statement: ast.Raise, known: set[str], loops: int, guarded: bool) -> None:
        self._reads(statement, known)

    def _assert(self, statement: ast.Assert, known: set[str], loops: int, guarded: bool) -> None:
        self._reads(statement, known)

    def _return(self, statement: ast.Return, known: set[str], loops: int, guarded: bool) -> None:
        if loops or (self.generator and statement.value is not None):
            # it becomes a break, which would end only the loop around it
            raise Refused("returns from inside a loop" if loops else "returns a value and yields")
        self._reads(statement.value, known)

    def _if(self, statement: ast.If, known: set[str], loops: int, guarded: bool) -> None:
        self._reads(statement.test, known)
        branches = [statement.body, statement.orelse]
        known |= self._common([(b, self.block(b, known, loops, guarded)) for b in branches])

    def _for(self, statement: ast.For, known: set[str], loops: int, guarded: bool) -> None:
        if statement.orelse:
            raise Refused("has a loop with else")
        self._reads(statement.iter, known)
        inside = set(known)
        self._sets(statement.target, inside)
        self.block(statement.body, inside, loops + 1, guarded)

    def _while(self, statement: ast.While, known: set[str], loops: int, guarded: bool) -> None:
        if statement.orelse:
            raise Refused("has a loop with else")
        self._reads(statement.test, known)
        self.block(statement.body, known, loops + 1, guarded)

    def _try(self, statement: ast.Try, known: set[str], loops: int, guarded: bool) -> None:
        whole = [*statement.body, *statement.orelse]
        ways = [(whole, self.block(whole, known, loops, guarded=True))]
        for handler in statement.handlers:
            self._reads(handler.type, known)
            named = {handler.name} if handler.name else set()
            ways.append((handler.body, self.block(handler.body, known | named, loops, guarded=True) - named))
        last = self.block(statement.finalbody, known, loops, guarded=True)
        known |= self._common(ways) | last

    def _with(self, statement: ast.With, known: set[str], loops: int, guarded: bool) -> None:
        inside = set(known)  # nothing more is known after it: a context manager may leave it at any point
        for item in statement.items:
            self._reads(item.context_expr, inside)
            if item.optional_vars is not None:
                self._sets(item.optional_vars, inside)
        self.block(statement.body, inside, loops, guarded=True)

    @staticmethod
    def _common(ways: list[tuple[list[ast.stmt], set[str]]]) -> set[str]:
        """Return what is known after a fork: the variables that are known on every way out of it."""
        going_on = [known for block, known in ways if not (block and isinstance(block[-1], _LEAVING))]
        return set.intersection(*going_on) if going_on else set()


_LEAVING = (ast.Return, ast.Raise, ast.Break, ast.Continue)
_KINDS: dict[type[ast.stmt], str] = {
    ast.Import: "import",
    ast.ImportFrom: "import",
    ast.Global: "global",
    ast.Nonlocal: "nonlocal",
    ast.FunctionDef: "def",
    ast.ClassDef: "class",
    ast.Delete: "del",
    ast.Match: "match",
}


_ATOMS_OF_ANYTHING = {
    *("len", "int", "float", "str", "bool", "ord", "chr", "hash", "repr", "format", "isinstance", "issubclass"),
    *("hasattr", "callable", "id", "hex", "bin", "oct"),
}
_AS_THEIR_ARGUMENTS = {
    *("abs", "dict", "divmod", "enumerate", "frozenset", "list", "max", "min", "pow", "range", "reversed"),
    *("round", "set", "sorted", "sum", "tuple", "zip"),
}
_Assignment = tuple[str, ast.expr | None]
"""A variable and its new value; None: an unknown value."""


_LAST_FIRST = sys.version_info >= (3, 14)
"""The order in which a frame releases its variables when it ends."""


def lingering(body: Body, states: Collection[str], fields: Collection[str]) -> list[str]:
    """Return the variables to release. ``states``: attributes of ``self`` that are value states of numbers, texts or
    bytes; ``fields``: parameters that are tuples of numbers."""
    assignments = [pair for statement in body.statements for pair in _assignments(statement)]
    plain = {name for name, _ in assignments}
    seen = _Seen(body, states, fields)
    while True:
        # the assumption about the others decides about each variable, so repeat until no variable has to be taken out
        readable = plain - set(body.parameters)
        wrong = {name for name, value in assignments if value is None or not seen.is_plain(value, readable)} & plain
        if not wrong:
            found = [name for name in body.variables if name in body.assigned and name not in plain]
            return found[::-1] if _LAST_FIRST else found
        plain -= wrong


class _Seen:
    def __init__(self, body: Body, states: Collection[str], fields: Collection[str]) -> None:
        self._body, self._states, self._fields = body, states, fields

    def is_plain(self, node: ast.expr, readable: set[str]) -> bool:
        """Tell whether an expression certainly returns numbers, texts, None, or containers of them."""
        match node:
            case ast.Constant() | ast.JoinedStr() | ast.UnaryOp(op=ast.Not()):
                return True
            case ast.Name(id=name):
                # a variable of the closure, which holds it all the time
                return name in readable or name in self._body.free
            case ast.Compare(ops=ops) if all(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in ops):
                return True
            case ast.Subscript(value=ast.Name(id=name), slice=index) if name in self._fields:
                return constant_index(index) is not None
            case ast.Call():
                return self._call(node, readable)
            case ast.IfExp(body=one, orelse=other):
                return self.is_plain(one, readable) and self.is_plain(other, readable)
            case ast.Subscript(value=value):
                return self.is_plain(value, readable)
            case ast.BinOp() | ast.BoolOp() | ast.UnaryOp() | ast.Compare() | ast.Tuple() | ast.List() | ast.Set():
                return all(self.is_plain(part, readable) for part in _operands(node))
        return False

    def _call(self, node: ast.Call, readable: set[str]) -> bool:
        match node:
            case ast.Call(func=ast.Attribute(value=state, attr="value"), args=[], keywords=[]) if self._is_state(state):
                return True
            case ast.Call(func=ast.Name(id=name)) if name in self._body.outer and name in _ATOMS_OF_ANYTHING:
                return True
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in self._body.outer:
                return name in _AS_THEIR_ARGUMENTS and all(self.is_plain(a, readable) for a in arguments)
            case ast.Call(func=ast.Attribute(value=value), args=arguments, keywords=[]):
                return all(self.is_plain(part, readable) for part in (value, *arguments))
        return False

    def _is_state(self, node: ast.expr) -> bool:
        return bool(self._body.parameters) and own_attribute(node, self._body.parameters[0]) in self._states


def _operands(node: ast.expr) -> Iterator[ast.expr]:
    return (part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))


def _assignments(statement: ast.AST) -> Iterator[_Assignment]:
    match statement:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _set(target, value)
        case ast.AnnAssign(target=target, value=value):
            yield from _set(target, value)
        case ast.AugAssign(target=ast.Name(id=name) as target, value=value):
            yield name, ast.Tuple([ast.Name(name, ast.Load()), value], ast.Load())
        case ast.For(target=target, iter=every):
            yield from _set(target, every)  # the contents of a container are as plain as the container
        case ast.With(items=items):
            for item in items:
                yield from _set(item.optional_vars, None) if item.optional_vars else ()
    for part in ast.iter_child_nodes(statement):
        if isinstance(part, ast.stmt | ast.ExceptHandler):
            yield from _assignments(part)


def _set(target: ast.AST, value: ast.expr | None) -> Iterator[_Assignment]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple | ast.List):
        values = value.elts if isinstance(value, ast.Tuple) else None
        fits = values is not None and len(values) == len(target.elts)
        for index, part in enumerate(target.elts):
            if isinstance(part, ast.Starred):
                yield from _set(part.value, value)
            else:
                yield from _set(part, values[index] if fits and values is not None else value)
