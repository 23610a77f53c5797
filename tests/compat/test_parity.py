"""Our API against PyFlink's recorded names and parameters. What is missing is listed with a reason, and the list only shrinks."""

from __future__ import annotations

import enum
import runpy
import subprocess
from pathlib import Path

import pytest

from tests.compat import api_values, parity
from tests.compat.pyflink_place import pyflink_python


def test_everything_missing_is_listed_with_a_reason() -> None:
    assert parity.unlisted() == []


def test_nothing_listed_exists_by_now() -> None:
    present, _ = parity.compare()
    patterns = [pattern for group in parity.listed().values() for pattern in group]
    found = [(pattern, identity) for pattern in patterns for identity in present if parity.matches(identity, pattern)]
    assert found == [], "the list only shrinks: run `python -m tests.compat.parity prune`"


def test_every_entry_names_something_of_pyflink() -> None:
    _, missing = parity.compare()
    patterns = [pattern for group in parity.listed().values() for pattern in group]
    idle = [pattern for pattern in patterns if not any(parity.matches(identity, pattern) for identity in missing)]
    assert idle == []


def test_the_comparison_sees_a_missing_method_and_a_missing_parameter() -> None:
    class Ours:
        def known(self, value: int) -> None: ...

    present: set[str] = set()
    missing: set[str] = set()
    methods = {"known": ["value", "other", "j_thing"], "unknown": ["x"]}
    parity._compare_class(type("M", (), {"Ours": Ours}), "m", "Ours", methods, present, missing)
    assert missing == {"m:Ours.known(other)", "m:Ours.unknown"}
    assert present == {"m:Ours", "m:Ours.known", "m:Ours.known(value)"}


def test_the_whole_foundation_api_is_there() -> None:
    """What the foundation promises must never move to the list."""
    _, missing = parity.compare()
    promised = [
        *("DataStream.map", "DataStream.flat_map", "DataStream.filter", "DataStream.process", "DataStream.key_by"),
        *(
            "DataStream.union",
            "DataStream.rebalance",
            "DataStream.shuffle",
            "DataStream.broadcast",
            "DataStream.forward",
        ),
        *("DataStream.rescale", "DataStream.partition_custom", "DataStream.assign_timestamps_and_watermarks"),
        *("DataStream.get_side_output", "DataStream.print", "DataStream.sink_to", "DataStream.add_sink"),
        *("DataStream.execute_and_collect", "DataStream.uid", "DataStream.name", "DataStream.set_parallelism"),
        *("KeyedStream.reduce", "KeyedStream.sum", "KeyedStream.min", "KeyedStream.max", "KeyedStream.min_by"),
        *("KeyedStream.max_by", "KeyedStream.process"),
    ]
    assert not [name for name in promised if f"pyflink.datastream.data_stream:{name}" in missing]


def test_the_comparison_sees_another_default_constant_and_member() -> None:
    theirs = {
        "A.f(x)": "1",
        "A.f(y)": "2",
        "A.f(gone)": "3",
        "A.f(j_x)": "4",
        "A.LIMIT": "5",
        "E.M": "member 0",
        "B.C": "6",
        "TOP": "7",
    }
    ours = {"A.f(x)": "1", "A.f(y)": "None", "A.LIMIT": "6", "E.M": "member 0", "TOP": "7"}
    present = {"m", "m:A", "m:A.f(x)", "m:A.f(y)", "m:E"}
    missing: set[str] = set()
    parity._compare_values("m", theirs, ours, present, missing)
    assert missing == {"m:A.f(y)=2", "m:A.LIMIT=5"}
    assert {"m:A.f(x)=1", "m:E.M=member 0", "m:TOP=7"} <= present


def test_values_are_recorded_as_text_that_tells_them_apart() -> None:
    class Size(enum.Enum):
        SMALL = 1

    class Ours:
        LIMIT = -1
        _hidden = 5

        def method(self, a: int, b: object = None, *, c: object = Size.SMALL, d: object = 1.0) -> None: ...

        @property
        def size(self) -> int:
            return 1

    assert api_values._class_values(Ours, {"method": ["a", "b"]}) == {
        "LIMIT": "-1", "size": "property", "method(b)": "None", "method(c)": "Size.SMALL", "method(d)": "1.0",
    }  # fmt: skip
    assert api_values._class_values(Size, {})["SMALL"] == "member 1"


def test_the_page_of_features_is_current() -> None:
    generator = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "gen_features_docs.py"))
    assert generator["PAGE"].read_text() == generator["page"](), "run: python scripts/gen_features_docs.py"


@pytest.mark.pyflink
def test_what_is_recorded_is_what_pyflink_has() -> None:
    script = Path(__file__).parents[2] / "scripts" / "record_pyflink_api.py"
    done = subprocess.run([pyflink_python(), script, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
