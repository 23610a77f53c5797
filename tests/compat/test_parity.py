"""Our API against PyFlink's recorded names and parameters. What is missing is listed with a reason, and the list only shrinks."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import parity


def test_everything_missing_is_listed_with_a_reason() -> None:
    assert parity.unlisted() == []


def test_nothing_listed_exists_by_now() -> None:
    present, _ = parity.compare()
    patterns = [pattern for group in parity.listed().values() for pattern in group]
    found = [(pattern, identity) for pattern in patterns for identity in present if parity.matches(identity, pattern)]
    assert found == [], "the list only shrinks: run `python tests/compat/parity.py prune`"


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
