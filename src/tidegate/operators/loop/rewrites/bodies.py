"""Find the syntax trees of the user's functions, for the rewrites.

The driver looks up the source of every function of the program. A tree is used only if it compiles to exactly the
function's code: this detects an edited file, a rewritten assert or a decorator that hides another function.
"""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType

from tidegate.base.user_code import UserFunction
from tidegate.operators.loop.rewrites.rewrite import Refused, function_id

_STARRED_PARAMETERS = 0x04 | 0x08

_Definition = ast.Lambda | ast.FunctionDef


@dataclass(frozen=True, eq=False)
class Body:
    """Hold the statements of a function without its docstring.

    ``variables``: its own names in the order of its frame. ``assigned``: the names it sets. ``free``: names of its
    closure. ``outer``: globals and builtins. ``early``: there is a ``return`` before the last statement. ``generator``:
    it yields. ``optimized``: the optimization level it was compiled with, where that makes a difference (asserts),
    otherwise None.
    """

    parameters: tuple[str, ...]
    statements: list[ast.stmt]
    variables: tuple[str, ...]
    assigned: frozenset[str]
    free: tuple[str, ...]
    outer: frozenset[str]
    generator: bool
    early: bool
    optimized: int | None
    file: str
    function: str

    def place(self, statement: ast.AST) -> str:
        """Return where the user has written the statement."""
        return f"{self.file}:{getattr(statement, 'lineno', '?')} in {self.function}"

    def parts(self) -> Iterator[ast.AST]:
        """Yield every node of the tree."""
        return (part for statement in self.statements for part in ast.walk(statement))


def body_of(function: UserFunction) -> Body:
    """Return the body of a function or bound method. Raise Refused."""
    found = function_id(function)
    if found is None:
        plain = getattr(function, "__func__", function)
        raise Refused("has default arguments" if isinstance(plain, FunctionType) else "is not a Python function")
    body = _body(*found)
    if isinstance(body, str):
        raise Refused(body)
    return body


@lru_cache(maxsize=1024)
def _body(code: CodeType, file_name: str) -> Body | str:
    """Return the body, or why there is none. ``file_name`` is the code's own: two codes of different files may be
    equal."""
    if code.co_kwonlyargcount or code.co_posonlyargcount or code.co_flags & _STARRED_PARAMETERS:
        return "has parameters that are not plain"
    try:
        file = _parsed(file_name)
        candidates = file.definitions.get(code.co_firstlineno, [])
        for node in candidates:
            if _compiles_to(node, code, file.imports):
                return _taken_apart(node, code)
    except (SyntaxError, ValueError, RecursionError, OSError) as error:
        return f"source not readable: {error}"
    return "source is not that of the running code" if candidates else "source not found"


def changed_elsewhere(file_name: str) -> set[str]:
    """Return the names of closure variables that some function of the file may change."""
    return _parsed(file_name).nonlocals


@dataclass(frozen=True)
class _File:
    """Hold a source file. ``definitions``: functions by their first line. ``nonlocals``: closure variables that some
    function may change."""

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
    """Tell whether the definition compiles to the code: this detects an edited file, a rewritten assert or a mangled
    name. ``imports``: calls of functions in modules that the file imports are compiled in their own way."""
    parameters = ", ".join(arg.arg for arg in node.args.args)
    inner = f"lambda {parameters}: 0" if isinstance(node, ast.Lambda) else f"def {node.name}({parameters}): pass"
    module = ast.parse(f"def outer({', '.join(code.co_freevars)}):\n    {inner}")
    [statement] = module.body[0].body  # type: ignore[attr-defined]
    made = statement.value if isinstance(node, ast.Lambda) else statement
    made.body = node.body
    ast.copy_location(made, node)  # from 3.12 on, different lines show in the code
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


# -- its parts ---------------------------------------------------------------------------------------------------------


def _taken_apart(node: _Definition, code: CodeType) -> Body:
    if isinstance(node, ast.Lambda):
        statements: list[ast.stmt] = [ast.copy_location(ast.Return(value=node.body), node.body)]
    else:
        statements = _without_docstring(node.body)
    every = [part for statement in statements for part in ast.walk(statement)]
    scoped = {name for part in every for name in comprehended(part)}
    names = {part.id for part in every if isinstance(part, ast.Name)}
    own = dict.fromkeys((*code.co_varnames, *code.co_cellvars))
    debugs = any(isinstance(part, ast.Assert) for part in every) or "__debug__" in names
    return Body(
        parameters=tuple(arg.arg for arg in node.args.args),
        statements=statements,
        variables=tuple(name for name in own if name not in scoped),
        assigned=frozenset(_set_outside(statements)),
        free=code.co_freevars,
        outer=frozenset(names - own.keys() - set(code.co_freevars) - scoped),
        generator=any(isinstance(part, ast.Yield | ast.YieldFrom) for part in every),
        early=any(isinstance(part, ast.Return) and part is not statements[-1] for part in every),
        optimized=sys.flags.optimize if debugs else None,
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


def comprehended(node: ast.AST) -> Iterator[str]:
    """Yield the variables of a comprehension, which are its own."""
    if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp):
        for part in node.generators:
            yield from _names_in(part.target)


def _set_outside(statements: Sequence[ast.AST]) -> Iterator[str]:
    """Yield the names set by the function itself, not by its comprehensions."""
    waiting: list[ast.AST] = list(statements)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name
        waiting.extend(c for c in ast.iter_child_nodes(node) if not isinstance(c, ast.comprehension))


def used_outside(nodes: Iterable[ast.AST], own: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the names that are used where they are not a variable of a surrounding comprehension."""
    for node in nodes:
        if isinstance(node, ast.Name):
            yield from {node.id} - own
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp):
            first = node.generators[0].iter  # evaluated outside
            inside = [c for part in (node, *node.generators) for c in ast.iter_child_nodes(part) if c is not first]
            yield from used_outside([first], own)
            yield from used_outside(
                [c for c in inside if not isinstance(c, ast.comprehension)], own | {*comprehended(node)}
            )
        else:
            yield from {node.name} if isinstance(node, ast.ExceptHandler) and node.name else ()
            yield from used_outside(ast.iter_child_nodes(node), own)


def own_attribute(node: ast.AST | None, this: str) -> str | None:
    """Return the name of an attribute of ``self``, if the expression is one."""
    ok = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == this
    return node.attr if ok else None  # type: ignore[union-attr]


def constant_index(index: ast.expr) -> int | None:
    """Return the number, if the expression is one: ``-1`` is an operator and a number."""
    sign = 1
    if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub):
        index, sign = index.operand, -1
    return sign * index.value if isinstance(index, ast.Constant) and type(index.value) is int else None
