"""Function bodies that may stand in the generated loop instead of being called there.

A call of a small Python function costs more than its work, a generator twice that. So the driver looks up the syntax tree of
every function of the program; where it is certain that the statements mean the same inside the loop, they travel with the
chain, and the loop takes them in (``codegen.py``). Certain means: the tree compiles to exactly the function's code, and nothing
in it depends on having a frame of its own. Everything else is called as ever: being refused costs speed, never a result.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

from tidegate.operators.rewrites.rewrite import Refused, function_id

RESERVED = "tg_"
"""How the names of the generated code begin, and no name of an inlined body."""
_MOST_NODES, _MOST_YIELDS, _MOST_BLOCKS = 300, 3, 6
"""The code behind a yield is repeated at every yield; and Python allows 20 blocks inside each other, of a loop and its bodies."""
_STARRED_PARAMETERS = 0x04 | 0x08
_FRAME_WORDS = {"locals", "vars", "dir", "eval", "exec", "globals", "super", "__class__", "breakpoint"}
_CALLER_WORDS = {
    *("log", "logger", "logging", "warnings", "warn", "inspect", "currentframe", "getframe"),
    *("traceback", "format_exc", "print_exc"),
}
"""They tell the file and line of the function that uses them. Written in any case, with or without underscores before them."""
_FORBIDDEN = (ast.Lambda, ast.GeneratorExp, ast.NamedExpr, ast.Await)
"""They outlive the record with the variables they see, or bind names in the middle of an expression."""

_Definition = ast.Lambda | ast.FunctionDef


@dataclass(frozen=True)
class Body:
    """The statements of a function without its docstring.

    ``variables``: its own names, ``assigned``: those it sets, ``free``: of its closure, ``outer``: globals and builtins. ``early``:
    there is a ``return`` before the last statement. ``generator``: every ``yield`` is a statement of its own.
    """

    parameters: tuple[str, ...]
    statements: list[ast.stmt]
    variables: frozenset[str]
    assigned: frozenset[str]
    free: tuple[str, ...]
    outer: frozenset[str]
    generator: bool
    early: bool
    file: str
    function: str

    def place(self, statement: ast.AST) -> str:
        """Where the user has written it."""
        return f"{self.file}:{getattr(statement, 'lineno', '?')} in {self.function}"


def body_of(function: Callable[..., Any]) -> Body:
    """The body of a function or bound method. Raises Refused."""
    found = function_id(function)
    body = None if found is None else _body(*found)
    if body is None:
        raise Refused
    return body


@lru_cache(maxsize=1024)
def _body(code: CodeType, file_name: str) -> Body | None:
    """``file_name`` is the code's own: two codes of different files may be equal."""
    if code.co_kwonlyargcount or code.co_posonlyargcount or code.co_flags & _STARRED_PARAMETERS:
        return None
    try:
        file = _parsed(file_name)
        for node in file.definitions.get(code.co_firstlineno, []):
            if _compiles_to(node, code, file.imports):
                return None if file.nonlocals & set(code.co_freevars) else _checked(node, code)
    except (Refused, SyntaxError, ValueError, RecursionError, OSError):
        return None
    return None


@dataclass(frozen=True)
class _File:
    """``definitions``: functions by their first line. ``nonlocals``: closure variables that some function may change."""

    definitions: dict[int, list[_Definition]]
    nonlocals: set[str]
    imports: list[ast.stmt]


@lru_cache(maxsize=64)
def _parsed(name: str) -> _File:
    file = _File({}, set(), [])
    for node in ast.walk(ast.parse("".join(linecache.getlines(name)))):
        if isinstance(node, ast.Lambda) or (isinstance(node, ast.FunctionDef) and not node.decorator_list):
            file.definitions.setdefault(node.lineno, []).append(node)
        elif isinstance(node, ast.Nonlocal):
            file.nonlocals.update(node.names)
        elif isinstance(node, ast.Module):
            file.imports.extend(s for s in node.body if isinstance(s, ast.Import | ast.ImportFrom))
    return file


# -- is it the source of this code? ------------------------------------------------------------------------------------

_COMPARED = ("co_code", "co_exceptiontable", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_argcount")


def _compiles_to(node: _Definition, code: CodeType, imports: list[ast.stmt]) -> bool:
    """An edited file, a rewritten assert or a mangled name shows here. ``imports``: calls of functions in modules that the file
    imports are compiled in a way of their own."""
    parameters = ", ".join(arg.arg for arg in node.args.args)
    inner = f"lambda {parameters}: 0" if isinstance(node, ast.Lambda) else f"def {node.name}({parameters}): pass"
    module = ast.parse(f"def outer({', '.join(code.co_freevars)}):\n    {inner}")
    [statement] = module.body[0].body  # type: ignore[attr-defined]
    (statement.value if isinstance(node, ast.Lambda) else statement).body = node.body
    module.body[:0] = [s for s in imports if not (isinstance(s, ast.ImportFrom) and s.module == "__future__")]
    [outer] = _inner_codes(compile(module, "<check>", "exec", dont_inherit=True))
    candidates = _inner_codes(outer)
    return len(candidates) == 1 and _same(candidates[0], code)


def _inner_codes(code: CodeType) -> list[CodeType]:
    return [const for const in code.co_consts if isinstance(const, CodeType)]


def _same(one: CodeType, other: CodeType) -> bool:
    if any(getattr(one, part) != getattr(other, part) for part in _COMPARED) or len(one.co_consts) != len(
        other.co_consts
    ):
        return False
    for a, b in zip(one.co_consts, other.co_consts, strict=True):
        if isinstance(a, CodeType) and isinstance(b, CodeType):
            if not _same(a, b):
                return False
        elif type(a) is not type(b) or repr(a) != repr(b):
            return False
    return True


# -- does it mean the same inside the loop? ----------------------------------------------------------------------------


def _checked(node: _Definition, code: CodeType) -> Body:
    if isinstance(node, ast.Lambda):
        statements: list[ast.stmt] = [ast.copy_location(ast.Return(value=node.body), node.body)]
    else:
        statements = _without_docstring(node.body)
    every = [part for statement in statements for part in ast.walk(statement)]
    scoped = {name for part in every for name in _comprehended(part)}
    variables = frozenset({*code.co_varnames, *code.co_cellvars} - scoped)
    names = {part.id for part in every if isinstance(part, ast.Name)}
    if scoped & {*(arg.arg for arg in node.args.args), *_used_outside(statements)}:
        raise Refused  # one name for two variables
    outer = names - variables - set(code.co_freevars) - scoped
    _check_words(every, {*variables, *code.co_freevars, *names})
    _check_text(statements)
    flow = _Flow(variables, any(isinstance(part, ast.Yield | ast.YieldFrom) for part in every))
    flow.block(statements, {arg.arg for arg in node.args.args}, loops=0, guarded=False)
    if len(every) > _MOST_NODES or flow.yields > _MOST_YIELDS or _blocks(statements) > _MOST_BLOCKS:
        raise Refused
    return Body(
        parameters=tuple(arg.arg for arg in node.args.args),
        statements=statements,
        variables=variables,
        assigned=frozenset(_set_outside(statements)),
        free=code.co_freevars,
        outer=frozenset(outer),
        generator=flow.generator,
        early=any(isinstance(part, ast.Return) and part is not statements[-1] for part in every),
        file=code.co_filename,
        function=code.co_name,
    )


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return body[1:] or [ast.copy_location(ast.Pass(), first)]
    return body


def _names_in(node: ast.AST) -> Iterator[str]:
    return (part.id for part in ast.walk(node) if isinstance(part, ast.Name))


def _comprehended(node: ast.AST) -> Iterator[str]:
    """The variables of a comprehension, which are its own."""
    if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp):
        for part in node.generators:
            yield from _names_in(part.target)


def _set_outside(statements: Sequence[ast.AST]) -> Iterator[str]:
    """The names set by the function itself, not by its comprehensions."""
    waiting: list[ast.AST] = list(statements)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name
        waiting.extend(c for c in ast.iter_child_nodes(node) if not isinstance(c, ast.comprehension))


def _used_outside(nodes: Iterable[ast.AST], own: frozenset[str] = frozenset()) -> Iterator[str]:
    """The names that stand where they are not a variable of a comprehension around."""
    for node in nodes:
        if isinstance(node, ast.Name):
            yield from {node.id} - own
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp):
            first = node.generators[0].iter  # evaluated outside
            inside = [c for part in (node, *node.generators) for c in ast.iter_child_nodes(part) if c is not first]
            yield from _used_outside([first], own)
            yield from _used_outside(
                [c for c in inside if not isinstance(c, ast.comprehension)], own | {*_comprehended(node)}
            )
        else:
            yield from {node.name} if isinstance(node, ast.ExceptHandler) and node.name else ()
            yield from _used_outside(ast.iter_child_nodes(node), own)


def _blocks(statements: Iterable[ast.AST]) -> int:
    """How many blocks of the interpreter the statements nest."""
    most = 0
    for node in statements:
        own = 3 if isinstance(node, ast.Try) else isinstance(node, ast.For | ast.While | ast.With)
        most = max(most, own + _blocks(ast.iter_child_nodes(node)))
    return most


def _check_words(every: list[ast.AST], names: set[str]) -> None:
    words = {*names, *(part.attr for part in every if isinstance(part, ast.Attribute))}
    callers = _CALLER_WORDS & {word.lstrip("_").lower() for word in words}
    if names & _FRAME_WORDS or callers or any(name.startswith(RESERVED) for name in names):
        raise Refused
    if any(isinstance(part, _FORBIDDEN) for part in every):
        raise Refused
    if any(isinstance(part, ast.JoinedStr) and "\n" in ast.unparse(part) for part in every):
        raise Refused  # the only expression whose text may need more than one line


def _check_text(statements: list[ast.stmt]) -> None:
    """The body goes into the loop as text, which must read as the same tree."""
    for statement in statements:
        if ast.dump(ast.parse(f"def f():\n {_indented(statement)}").body[0].body[0]) != ast.dump(statement):  # type: ignore[attr-defined]
            raise Refused


def _indented(statement: ast.stmt) -> str:
    return ast.unparse(statement).replace("\n", "\n ")


class _Flow:
    """Walks a body in its order. A variable may be read only where it has certainly been set for this record: in a frame of its
    own such a read raises, in the loop it would find the value of the record before."""

    def __init__(self, variables: frozenset[str], generator: bool) -> None:
        self._variables, self.generator = variables, generator
        self.yields = 0

    def block(self, statements: list[ast.stmt], known: set[str], loops: int, guarded: bool) -> set[str]:
        """Returns the variables known behind the statements. ``guarded``: inside try or with, which would catch errors of the
        operators behind a yield."""
        known = set(known)
        for statement in statements:
            step = getattr(self, f"_{type(statement).__name__.lower()}", None)
            if step is None:
                raise Refused
            step(statement, known, loops, guarded)
        return known

    def _reads(self, node: ast.AST | None, known: set[str]) -> None:
        parts = [] if node is None else list(ast.walk(node))
        unset = self._variables - known
        for part in parts:
            if isinstance(part, ast.Yield | ast.YieldFrom):
                raise Refused
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load) and part.id in unset:
                raise Refused

    def _sets(self, target: ast.AST, known: set[str]) -> None:
        self._reads(target, known)  # of objects whose fields and items are set
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
                raise Refused
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
            raise Refused
        self._reads(statement.target, known)

    def _annassign(self, statement: ast.AnnAssign, known: set[str], loops: int, guarded: bool) -> None:
        if statement.value is None or not statement.simple:
            raise Refused
        self._reads(statement.value, known)
        self._sets(statement.target, known)

    def _raise(self, statement: ast.Raise, known: set[str], loops: int, guarded: bool) -> None:
        self._reads(statement, known)

    def _assert(self, statement: ast.Assert, known: set[str], loops: int, guarded: bool) -> None:
        self._reads(statement, known)

    def _return(self, statement: ast.Return, known: set[str], loops: int, guarded: bool) -> None:
        if loops or (self.generator and statement.value is not None):
            raise Refused  # becomes a break, which would end the loop around it only
        self._reads(statement.value, known)

    def _if(self, statement: ast.If, known: set[str], loops: int, guarded: bool) -> None:
        self._reads(statement.test, known)
        branches = [statement.body, statement.orelse]
        known |= self._common([(b, self.block(b, known, loops, guarded)) for b in branches])

    def _for(self, statement: ast.For, known: set[str], loops: int, guarded: bool) -> None:
        if statement.orelse:
            raise Refused
        self._reads(statement.iter, known)
        inside = set(known)
        self._sets(statement.target, inside)
        self.block(statement.body, inside, loops + 1, guarded)

    def _while(self, statement: ast.While, known: set[str], loops: int, guarded: bool) -> None:
        if statement.orelse:
            raise Refused
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
        inside = set(known)  # behind it nothing more is known: a context manager may leave it at any point
        for item in statement.items:
            self._reads(item.context_expr, inside)
            if item.optional_vars is not None:
                self._sets(item.optional_vars, inside)
        self.block(statement.body, inside, loops, guarded=True)

    @staticmethod
    def _common(ways: list[tuple[list[ast.stmt], set[str]]]) -> set[str]:
        """What is known behind a fork: on every way that comes out of it."""
        going_on = [known for block, known in ways if not (block and isinstance(block[-1], _LEAVING))]
        return set.intersection(*going_on) if going_on else set()


_LEAVING = (ast.Return, ast.Raise, ast.Break, ast.Continue)
