"""Whether a function can emit to side outputs, decided on the driver from its pickle.

To look at every output for a tag is a tenth of a simple keyed loop, and most process functions never emit one. A function can
only get at an ``OutputTag`` if something it is made of names it: its code, its closure, its class, its fields. What is pickled
by value shows that in the texts of the pickle. What is pickled by reference is a name in a module: then the source of the
module tells, and of those that it imports. Where there is no source to read, or too much, the function is taken to be able to.
"""

from __future__ import annotations

import importlib.util
import linecache
import pickletools
import re
import sys
from collections.abc import Iterator
from types import ModuleType

from tidegate.common.pickling import dumps
from tidegate.graph.output_tag import OutputTag
from tidegate.graph.plan import ChainNode, JobGraph, Operator

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
"""Packages whose functions emit no tags of their own accord. Ours are wrappers around what is looked at itself."""
_MOST_MODULES = 100
_IMPORT = re.compile(r"^[ \t]*(?:from|import)[ \t]+(\.*)([\w.]*)", re.MULTILINE)


def tagging_operators(graph: JobGraph) -> frozenset[int]:
    """The operators of a job that may emit to side outputs.

    A tag that another kind of operator has emitted is a part of its record, and goes to a side output where a process function
    passes the record on: then all of them may.
    """
    nodes = [node for chain in graph.chains for node in chain.head.walk()]
    able = [node for node in nodes if node.operator.spec.emits_tagged]
    others = [node.operator for node in nodes if node.operator.spec.method and not node.operator.spec.emits_tagged]
    handed_on = bool(able) and any(map(_can_tag, others))
    return frozenset(n.operator.id for n in able if handed_on or _is_read(n) or _can_tag(n.operator))


def _is_read(node: ChainNode) -> bool:
    return any(tag for tag, _ in node.children) or any(edge.tag for edge in node.edges)


def _can_tag(operator: Operator) -> bool:
    try:
        return can_tag(operator.pickled_spec or dumps(operator.spec))
    except Exception:
        return True  # it will not travel, and whoever packs it says so


def can_tag(pickled: bytes) -> bool:
    """Whether what is in the pickle can come to make, or has, an OutputTag."""
    texts = {text for text in _texts(pickled) if text}
    if any(_WORD in text for text in texts):
        return True
    waiting, seen = [text for text in texts if text in sys.modules and _is_users(text)], set[str]()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            if len(seen) > _MOST_MODULES or name not in sys.modules or _names_tags(sys.modules[name]):
                return True
            waiting.extend(filter(_is_users, _imported(sys.modules[name])))
    return False


def _texts(pickled: bytes) -> Iterator[str]:
    """All texts in a pickle. What is pickled by reference is two of them, its module and its name."""
    for opcode, argument, _ in pickletools.genops(pickled):
        if isinstance(argument, str):
            yield from argument.split(" ") if opcode.name == "GLOBAL" else (argument,)


def _is_users(name: str) -> bool:
    return name.partition(".")[0] not in _CANNOT and name != "__main__"


def _names_tags(module: ModuleType) -> bool:
    text = _source(module)
    return text is None or _WORD in text or any(isinstance(value, OutputTag) for value in vars(module).values())


def _source(module: ModuleType) -> str | None:
    """None: there is none to be read."""
    file = getattr(module, "__file__", None)
    return "".join(linecache.getlines(file)) or None if isinstance(file, str) else None


def _imported(module: ModuleType) -> Iterator[str]:
    """The modules that a module imports anywhere, also inside of functions, or has something of."""
    for value in list(vars(module).values()):
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str):
            yield name
    for relative, name in _IMPORT.findall(_source(module) or ""):
        package = getattr(module, "__package__", None) or ""
        yield importlib.util.resolve_name(relative + name, package) if relative and package else name
