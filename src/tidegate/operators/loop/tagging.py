"""Decide on the driver, from a function's pickle, whether the function can emit to side outputs.

To check every output for a tag costs a tenth of a simple keyed loop, and most process functions never emit a tag. A
function can only reach an ``OutputTag`` if one of its parts names it: its code, its closure, its class, its fields. For
an object that is pickled by value, the texts of the pickle show the name. An object that is pickled by reference is a
name in a module: then the source of the module, and of the modules it imports, shows it. Where there is no source to
read, or too much, or a module that only the function itself will load, the function is assumed to emit tags.
"""

from __future__ import annotations

import ast
import dis
import importlib.util
import linecache
import pickletools
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import ModuleType

from tidegate.base.pickling import dumps
from tidegate.graph.plan import ChainNode, JobGraph, Operator
from tidegate.graph.transformation import OutputTag
from tidegate.operators.contracts.specs import sources_of

_WORD = OutputTag.__name__
_PACKAGE = __name__.partition(".")[0]
_CANNOT = {
    *sys.stdlib_module_names,
    "cloudpickle",
    "msgspec",
    "numpy",
    "pandas",
    "py4j",
    "pyarrow",
    "pyspark",
    _PACKAGE,
}
"""Packages whose functions emit no tags by themselves. Functions of Tidegate wrap functions that are checked
themselves."""
_BY_NAME = {"import_module", "__import__"}
"""Functions that load a module whose name need not appear anywhere."""
_MOST_MODULES = 100
_LARGEST = 1 << 18
"""The largest pickle that is checked: to check a larger pickle takes longer than the result saves."""
_IMPORTS = dis.opmap["IMPORT_NAME"]


def tagging_operators(graph: JobGraph) -> frozenset[int]:
    """Return the operators of a job that may emit to side outputs.

    A tag that another kind of operator, or a source, has emitted is a part of its record. It goes to a side output
    where a process function passes the record on: then all process functions may emit tags.
    """
    _exists.cache_clear()
    nodes = [node for chain in graph.chains for node in chain.head.walk()]
    able = [node for node in nodes if node.operator.spec.emits_tagged]
    others = [
        node.operator
        for node in nodes
        if node.operator.spec.user_function is not None and not node.operator.spec.emits_tagged
    ]
    handed_on = bool(able) and (any(map(_can_tag, others)) or any(map(_has_tags, sources_of(graph))))
    return frozenset(n.operator.id for n in able if handed_on or _is_read(n) or _can_tag(n.operator))


def _is_read(node: ChainNode) -> bool:
    return any(tag for tag, _ in node.children) or any(edge.tag for edge in node.edges)


def _can_tag(operator: Operator) -> bool:
    try:
        return can_tag(operator.pickled_spec or dumps(operator.spec))
    except Exception:
        return True  # it cannot be sent, and the code that packs it reports this


def _has_tags(source: Operator) -> bool:
    """Tell whether a source holds tags. A source may contain many records, and they can be checked directly."""
    try:
        pickled = source.pickled_spec or dumps(source.spec)
    except Exception:
        return True
    return _WORD.encode() in pickled or (len(pickled) <= _LARGEST and can_tag(pickled))


def can_tag(pickled: bytes) -> bool:
    """Tell whether the contents of the pickle can make, or contain, an OutputTag."""
    if len(pickled) > _LARGEST:
        return True
    texts, imports = _contents(pickled)
    if any(_WORD in text for text in texts) or texts & _BY_NAME:
        return True
    waiting, seen = [text for text in texts if text in sys.modules and _is_users(text)], set[str]()
    if imports:
        modules = _imported_by_code(texts, waiting)
        if modules is None:
            return True
        waiting.extend(modules)
    while waiting:
        name = waiting.pop()
        if name and name not in seen:
            seen.add(name)
            if len(seen) > _MOST_MODULES or name not in sys.modules or _names_tags(sys.modules[name]):
                return True
            waiting.extend(filter(_is_users, (*_imported(sys.modules[name]), name.rpartition(".")[0])))
    return False


def _contents(pickled: bytes) -> tuple[set[str], bool]:
    """Return all texts in a pickle, and whether it may contain code with an import. An object that is pickled by
    reference is two texts, its module and its name."""
    texts, imports = set[str](), False
    for opcode, argument, _ in pickletools.genops(pickled):
        if isinstance(argument, str):
            texts.update(argument.split(" ") if opcode.name == "GLOBAL" else (argument,))
        elif isinstance(argument, bytes):
            imports = imports or _IMPORTS in argument[::2]  # code is pairs of an instruction and its argument
    return texts - {""}, imports


def _imported_by_code(texts: Iterable[str], packages: Iterable[str]) -> list[str] | None:
    """Return the modules in the packages that imports in the code may mean, by the names among the texts. None: one of
    these modules is not loaded."""
    names = [text for text in texts if all(map(str.isidentifier, text.split("."))) and _is_users(text)]
    if any(name not in sys.modules and _exists(name) for name in names):
        return None
    inside = [(sys.modules[package], name) for package in packages for name in names if "." not in name]
    found = [f"{package.__name__}.{name}" for package, name in inside if _is_submodule(package, name)]
    return None if any(name not in sys.modules for name in found) else found


@lru_cache(maxsize=4096)
def _exists(name: str) -> bool:
    """Tell whether a name may be that of a module. Cached for one job: functions have many names in common."""
    first = name.partition(".")[0]
    try:
        return first in sys.modules or importlib.util.find_spec(first) is not None
    except (ImportError, ValueError):
        return True


def _is_submodule(package: ModuleType, name: str) -> bool:
    path = getattr(package, "__path__", None)
    if path is None:
        return False
    full = f"{package.__name__}.{name}"
    try:
        return full in sys.modules or importlib.util.find_spec(full) is not None
    except (ImportError, ValueError):
        return True


def _is_users(name: str) -> bool:
    return name.partition(".")[0] not in _CANNOT and name != "__main__"


def _names_tags(module: ModuleType) -> bool:
    text = _source(module)
    if text is None or any(word in text for word in (_WORD, *_BY_NAME)):
        return True
    return any(isinstance(value, OutputTag) for value in vars(module).values())


def _source(module: ModuleType) -> str | None:
    """Return the source of a module; None: it cannot be read."""
    file = getattr(module, "__file__", None)
    return "".join(linecache.getlines(file)) or None if isinstance(file, str) else None


def _imported(module: ModuleType) -> Iterator[str]:
    """Yield the modules that a module imports anywhere, also inside of functions, or whose objects it has."""
    for value in list(vars(module).values()):
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str):
            yield name
    package = getattr(module, "__package__", None) or ""
    for name, parts in _imports(_source(module) or ""):
        origin = importlib.util.resolve_name(name, package) if name.startswith(".") and package else name
        yield origin
        loaded = sys.modules.get(origin)
        yield from (f"{origin}.{part}" for part in parts if loaded is None or _is_inside(loaded, part))


def _is_inside(package: ModuleType, name: str) -> bool:
    """Tell whether ``from package import name`` is a module, or loads one."""
    return isinstance(getattr(package, name, package), ModuleType) and _is_submodule(package, name)


@lru_cache(maxsize=256)
def _imports(text: str) -> list[tuple[str, list[str]]]:
    """Return the modules that a source names in its imports, and the imported names."""
    found: list[tuple[str, list[str]]] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.append(("." * node.level + (node.module or ""), [alias.name for alias in node.names]))
    return found
