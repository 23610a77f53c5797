"""Which functions can emit to side outputs: what their pickles name, and what lies behind references."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from tests.unit.operators.loop_bindings import SINK, Bindings, node
from tidegate.common import Types
from tidegate.connectors.values.ranges import CollectionSource, NumberSequenceSource
from tidegate.datastream.typed_functions import TypedProcess
from tidegate.graph.plan import Chain, ChainNode, JobGraph
from tidegate.graph.transformation import OutputTag
from tidegate.operators.contracts.batch import Batch
from tidegate.operators.contracts.specs import MapSpec, ProcessSpec, SinkSpec, SourceSpec
from tidegate.operators.loop.codegen import Loop
from tidegate.operators.loop.tagging import can_tag, tagging_operators

HEAD = "import tidegate.datastream as ds\nfrom tidegate.datastream import OutputTag, KeyedProcessFunction\n"


@pytest.fixture
def script() -> Callable[[str], Any]:
    """Runs a text as if it were the user's script, so that its classes are pickled by value; gives its name F."""

    def run(text: str) -> Any:
        scope: dict[str, Any] = {"__name__": "__main__"}
        exec(HEAD + text, scope)
        return scope["F"]

    return run


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Writes and imports a module, so that what is in it is pickled by reference."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, text: str, load: bool = True) -> Any:
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return __import__(name) if load else None

    return write


def verdict(function: Any) -> bool:
    return can_tag(bytes(cloudpickle.dumps(ProcessSpec(function))))


PLAIN = "class F(KeyedProcessFunction):\n    def process_element(self, value, ctx):\n        yield value\n"


def test_a_plain_function_cannot(script: Callable[[str], Any]) -> None:
    function = script(PLAIN)()
    assert not verdict(function)
    assert not verdict(TypedProcess(function, Types.LONG))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "class F:\n    def process_element(self, value, ctx):\n        yield OutputTag('late'), value\n",
        "class F:\n    def process_element(self, value, ctx):\n        yield ds.OutputTag('late'), value\n",
        "LATE = OutputTag('late')\nclass F:\n    def process_element(self, value, ctx):\n        yield LATE, value\n",
        "def make():\n    return OutputTag('late')\nclass F:\n    def process_element(self, value, ctx):\n"
        "        yield make(), value\n",
        "class F:\n    tag = OutputTag('late')\n    def process_element(self, value, ctx):\n        yield self.tag, value\n",
        "class F:\n    def __init__(self):\n        self.tag = OutputTag('late')\n"
        "    def process_element(self, value, ctx):\n        yield self.tag, value\n",
        "class F:\n    def process_element(self, value, ctx):\n        from tidegate.datastream import OutputTag as T\n"
        "        yield T('late'), value\n",
    ],
)
def test_whatever_names_a_tag_can(script: Callable[[str], Any], text: str) -> None:
    function = script(text)()
    assert verdict(function)
    assert verdict(TypedProcess(function, Types.LONG))  # type: ignore[arg-type]


def test_a_closure_with_a_tag_can() -> None:
    late = OutputTag("late")

    class Function:
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield late, value

    assert verdict(Function())


CLASS = "class F:\n    def process_element(self, value, ctx):\n        yield {}\n"


def test_a_module_that_never_names_a_tag_cannot(module: Callable[..., Any]) -> None:
    assert not verdict(module("tg_plain", CLASS.format("value")).F())
    assert not verdict(module("tg_json", f"import json, os.path\n{CLASS.format('json.dumps(value)')}").F())


@pytest.mark.parametrize(
    "text",
    [
        f"from tidegate.datastream import OutputTag\n{CLASS.format('OutputTag(str(value)), value')}",
        f"from tg_tags import LATE\n{CLASS.format('LATE, value')}",
        f"import tg_tags\n{CLASS.format('tg_tags.LATE, value')}",
        f"from tg_tags import make\n{CLASS.format('make(), value')}",
        f"from tg_tags import *\n{CLASS.format('LATE, value')}",
        "class F:\n    def process_element(self, value, ctx):\n        import tg_tags\n        yield tg_tags.make(), value\n",
        "class F:\n    def process_element(self, value, ctx):\n        from tg_unloaded import make\n        yield make(), value\n",
    ],
)
def test_a_module_that_can_come_to_a_tag_can(module: Callable[..., Any], text: str) -> None:
    tags = "from tidegate.datastream import OutputTag\nLATE = OutputTag('late')\ndef make():\n    return OutputTag('late')\n"
    module("tg_tags", tags)
    module("tg_unloaded", tags, load=False)
    assert verdict(module("tg_user", text).F())


@pytest.fixture
def package(tmp_path: Path, module: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """``tg_package`` is loaded, and a module with a tag in it is not; nor is ``tg_unloaded``."""
    tags = "from tidegate.datastream import OutputTag\nLATE = OutputTag('late')\n"
    (tmp_path / "tg_package").mkdir()
    (tmp_path / "tg_package" / "__init__.py").write_text("")
    (tmp_path / "tg_package" / "tags.py").write_text(tags)
    module("tg_unloaded", tags, load=False)
    monkeypatch.delitem(sys.modules, "tg_package", raising=False)
    __import__("tg_package")


@pytest.mark.parametrize(
    "line",
    [
        "import tg_unloaded as tags",
        "import json, tg_unloaded as tags",
        "tags = None; import tg_unloaded as tags",
        "import importlib; tags = importlib.import_module('tg_' + 'unloaded')",
        "from tg_package import tags",
        "from tg_package import (\n        tags)",
        "import tg_package.tags as tags",
    ],
)
def test_what_a_function_itself_imports_counts(
    script: Callable[[str], Any], module: Callable[..., Any], package: None, line: str
) -> None:
    text = f"class F:\n    def process_element(self, value, ctx):\n        {line}\n        yield tags.LATE, value\n"
    assert verdict(script(text)())
    assert verdict(module("tg_importing", text).F())
    assert "tg_unloaded" not in sys.modules
    assert "tg_package.tags" not in sys.modules


def test_an_import_of_what_has_no_tags_does_not_count(script: Callable[[str], Any], module: Callable[..., Any]) -> None:
    module("tg_rules", "def rule(value):\n    return value\n")
    text = "class F:\n    def process_element(self, value, ctx):\n        from tg_rules import rule\n        yield rule(value)\n"
    assert not verdict(script(text)())
    assert not verdict(module("tg_importing", text).F())


def test_what_a_package_does_when_it_is_loaded_counts(
    tmp_path: Path, module: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tg_filled").mkdir()
    (tmp_path / "tg_filled" / "known.py").write_text("KNOWN = {}\n" + CLASS.format("KNOWN['late'], value"))
    head = "from tidegate.datastream import OutputTag\nfrom tg_filled import known\n"
    (tmp_path / "tg_filled" / "__init__.py").write_text(head + "known.KNOWN['late'] = OutputTag('late')\n")
    module("tg_unused", "")
    monkeypatch.delitem(sys.modules, "tg_filled.known", raising=False)
    assert verdict(sys.modules["tg_filled.known"].F() if __import__("tg_filled.known") else None)


def test_much_is_not_looked_through(script: Callable[[str], Any]) -> None:
    function = script(PLAIN)()
    function.table = dict.fromkeys(map(str, range(100_000)))
    assert verdict(function)


def test_a_module_without_source_is_taken_to_be_able_to(module: Callable[..., Any]) -> None:
    made = module("tg_gone", CLASS.format("value"))
    made.__file__ = made.__file__ + ".missing"
    assert verdict(made.F())


def job_of(root: ChainNode) -> JobGraph:
    chain = Chain(0, root, (), 0, 0)
    return JobGraph("job", (chain,), ((chain,),), {})


def test_operators_whose_side_outputs_are_read_and_no_others(script: Callable[[str], Any]) -> None:
    plain = script(PLAIN)
    read = node(2, ProcessSpec(plain()), ("late", node(3, SinkSpec(SINK))))
    root = node(
        0,
        SourceSpec(NumberSequenceSource(1, 2)),
        node(1, MapSpec(str), read),
        node(4, ProcessSpec(plain()), node(5, SinkSpec(SINK))),
    )
    assert tagging_operators(job_of(root)) == {2}


def test_all_that_pass_records_on_where_another_kind_makes_tags(script: Callable[[str], Any]) -> None:
    plain, late = script(PLAIN), OutputTag("late")
    root = node(
        0, SourceSpec(NumberSequenceSource(1, 2)), node(1, MapSpec(lambda v: (late, v)), node(2, ProcessSpec(plain())))
    )
    assert tagging_operators(job_of(root)) == {2}


def test_all_that_pass_records_on_where_a_source_has_tags(script: Callable[[str], Any]) -> None:
    for records, able in (([(OutputTag("late"), 1)], {1}), ([1], set())):
        root = node(0, SourceSpec(CollectionSource(records)), node(1, ProcessSpec(script(PLAIN)())))
        assert tagging_operators(job_of(root)) == able


def test_a_loop_looks_for_tags_only_where_there_may_be_some() -> None:
    class Splits:
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield OutputTag("late"), value

    root = node(0, SourceSpec(NumberSequenceSource(1, 2)), node(1, ProcessSpec(Splits()), node(2, SinkSpec(SINK))))
    for tags, expected in ((True, []), (False, [(OutputTag("late"), 1)])):
        parts = Bindings(root, tags=tags)
        Loop(root, parts, into=False)(Batch([1]))
        assert parts.values[2] == expected
