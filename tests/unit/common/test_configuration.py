"""Keys, spellings, types, rules between options, and where configuration comes from."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tidegate.base.errors import ArgumentTypeError, ConfigurationError
from tidegate.common import ConfigOptions, Configuration, Duration, Time, global_configuration
from tidegate.common.configuration import effective, meaning
from tidegate.common.option_types import parse_duration, parse_list, parse_map, parse_memory
from tidegate.common.options import CHECKPOINT_DIR, CHECKPOINT_INTERVAL, PARALLELISM, REGISTRY, SPELLINGS


@pytest.mark.parametrize(
    ("raw", "ms"),
    [
        ("10 s", 10_000),
        ("500ms", 500),
        (250, 250),
        ("250", 250),
        ("2 min", 120_000),
        ("1 h", 3_600_000),
        ("1d", 86_400_000),
        ("1500 micros", 1),
        (timedelta(seconds=2), 2_000),
        (Duration.of_minutes(1), 60_000),
        (Time.seconds(1), 1_000),
    ],
)
def test_durations(raw: Any, ms: int) -> None:
    assert parse_duration(raw) == ms


@pytest.mark.parametrize("raw", ["ten", "10 parsecs", "-5 s", "1.5 s", True, ""])
def test_what_is_no_duration(raw: Any) -> None:
    with pytest.raises(ValueError):
        parse_duration(raw)


def test_sizes_lists_and_maps() -> None:
    assert parse_memory("64 mb") == 64 << 20
    assert parse_memory(17) == 17
    assert parse_list("a;b") == parse_list("[a, 'b']") == parse_list(["a", "b"]) == ["a", "b"]
    assert parse_map("a:1,b:x:y") == {"a": "1", "b": "x:y"}
    assert parse_map({"a": 1, "b": True}) == {"a": "1", "b": "true"}
    with pytest.raises(ValueError, match="key:value"):
        parse_map("a")


def test_an_unknown_key_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(ConfigurationError) as caught:
        meaning("execution.checkpointing.intervall")
    assert str(caught.value) == (
        "The configuration key is unknown\n"
        "  found: 'execution.checkpointing.intervall'\n"
        "  cure: did you mean 'execution.checkpointing.interval'?"
    )


def test_a_key_like_no_other_is_refused_too() -> None:
    with pytest.raises(ConfigurationError, match="run `tidegate options`"):
        meaning("qqq")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("state.checkpoints.dir", "execution.checkpointing.dir"),
        ("state.backend", "state.backend.type"),
        ("state.checkpoints.num-retained", "execution.checkpointing.num-retained"),
        ("execution.savepoint.path", "execution.state-recovery.path"),
        ("restart-strategy", "restart-strategy.type"),
    ],
)
def test_old_spellings_mean_the_new_ones(old: str, new: str) -> None:
    option = meaning(old)
    assert option is not None
    assert option.key == new


def test_no_spelling_means_two_options_and_every_default_is_valid() -> None:
    assert len(SPELLINGS) == sum(1 + len(option.aliases) for option in REGISTRY.values())
    for option in REGISTRY.values():
        if option.default is not None:
            assert option.parse(option.default) == option.default


def test_flink_keys_without_meaning_are_accepted_with_one_notice(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="tidegate.configuration"):
        for _ in range(3):
            effective(Configuration.from_dict({"taskmanager.numberOfTaskSlots": "4"}))
    assert [record.getMessage() for record in caplog.records] == [
        "'taskmanager.numberOfTaskSlots' is accepted and has no effect: Flink's key has no counterpart on Spark"
    ]


WITHOUT_EFFECT = {
    "pipeline.operator-chaining.chain-operators-with-different-max-parallelism": ("false", "false runs as true"),
}


@pytest.mark.parametrize("key", WITHOUT_EFFECT)
def test_what_an_option_does_not_do_is_reported_once(key: str, caplog: pytest.LogCaptureFixture) -> None:
    value, text = WITHOUT_EFFECT[key]
    with caplog.at_level(logging.WARNING, logger="tidegate.configuration"):
        for _ in range(3):
            effective(Configuration.from_dict({key: value}))
    (record,) = caplog.records
    assert key in record.getMessage()
    assert f"is accepted and has no effect: {text}" in record.getMessage()


INTERVAL, PAUSE = "execution.checkpointing.interval", "execution.checkpointing.min-pause"
UNALIGNED, CONCURRENT = (
    "execution.checkpointing.unaligned.enabled",
    "execution.checkpointing.max-concurrent-checkpoints",
)
WITHOUT_ANOTHER = [
    ({"execution.checkpointing.mode": "AT_LEAST_ONCE"}, {INTERVAL: "1 s"}, f"it needs '{INTERVAL}'"),
    ({"state.checkpoints.num-retained": "3"}, {INTERVAL: "1 s"}, f"it needs '{INTERVAL}'"),
    ({UNALIGNED: "true"}, {INTERVAL: "1 s"}, f"it needs '{INTERVAL}'"),
    (
        {INTERVAL: "1 s", "execution.checkpointing.alignment-timeout": "1 s"},
        {UNALIGNED: "true"},
        f"it needs '{UNALIGNED}'",
    ),
    ({INTERVAL: "1 s", "execution.checkpointing.unaligned.forced": "true"}, {UNALIGNED: "true"}, "it needs"),
    (
        {"state.changelog.periodic-materialize.interval": "1 s"},
        {"state.changelog.enabled": "true"},
        "it needs 'state.changelog.enabled'",
    ),
    ({INTERVAL: "1 s", CONCURRENT: "3", PAUSE: "1 s"}, {PAUSE: "0 s"}, f"'{PAUSE}' leaves room for one"),
]


@pytest.mark.parametrize(("given", "cured", "text"), WITHOUT_ANOTHER)
def test_what_does_nothing_without_another_option_is_reported(
    given: dict[str, str], cured: dict[str, str], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="tidegate.configuration"):
        effective(Configuration.from_dict({**given, **cured}))
        assert caplog.records == []
        effective(Configuration.from_dict(given))
    (record,) = caplog.records
    assert f"is accepted and has no effect: {text}" in record.getMessage()


def test_values_that_are_honoured_need_no_notice(caplog: pytest.LogCaptureFixture) -> None:
    honoured = {
        INTERVAL: "1 s",
        "execution.checkpointing.mode": "AT_LEAST_ONCE",
        "execution.checkpointing.max-concurrent-checkpoints": 2,
        "execution.checkpointing.checkpoints-after-tasks-finish": True,
        "execution.state-recovery.claim-mode": "NO_CLAIM",
    }
    with caplog.at_level(logging.WARNING, logger="tidegate.configuration"):
        effective(Configuration.from_dict(honoured))
    assert caplog.records == []


def test_spark_keys_pass_through_as_texts() -> None:
    settings = effective(Configuration.from_dict({"spark.executor.cores": 2, "spark.master": "local[2]"}))
    assert settings["spark.executor.cores"] == "2"
    assert settings["spark.master"] == "local[2]"


def test_effective_values_are_typed() -> None:
    settings = effective(
        Configuration.from_dict(
            {
                "execution.checkpointing.interval": "10 s",
                "state.checkpoints.dir": "file:///tmp/c",
                "execution.checkpointing.externalized-checkpoint-retention": "retain-on-cancellation",
                "tidegate.state.map-size": "1 gb",
                "io.tmp.dirs": "/a;/b",
            }
        )
    )
    assert settings["execution.checkpointing.interval"] == 10_000
    assert settings["execution.checkpointing.dir"] == "file:///tmp/c"
    assert settings["execution.checkpointing.externalized-checkpoint-retention"] == "RETAIN_ON_CANCELLATION"
    assert settings["tidegate.state.map-size"] == 1 << 30
    assert settings["io.tmp.dirs"] == ["/a", "/b"]
    assert settings["tidegate.chunk.records"] == 4096
    assert settings["tidegate.round.target-time"] == 1_000
    assert settings["parallelism.default"] is None
    assert "state.checkpoints.dir" not in settings


def test_the_restart_strategy_follows_checkpointing_unless_set() -> None:
    assert effective(Configuration())["restart-strategy.type"] == "none"
    with_checkpoints = Configuration.from_dict({"execution.checkpointing.interval": 100})
    assert effective(with_checkpoints)["restart-strategy.type"] == "exponential-delay"
    with_checkpoints.set_string("restart-strategy", "off")
    assert effective(with_checkpoints)["restart-strategy.type"] == "none"


def test_a_minimum_pause_makes_concurrency_one() -> None:
    values = {"execution.checkpointing.max-concurrent-checkpoints": 3, "execution.checkpointing.min-pause": "1 s"}
    assert effective(Configuration.from_dict(values))["execution.checkpointing.max-concurrent-checkpoints"] == 1


def test_unaligned_needs_exactly_once() -> None:
    values = {"execution.checkpointing.unaligned": "true", "execution.checkpointing.mode": "at-least-once"}
    with pytest.raises(ConfigurationError, match="Unaligned checkpoints need exactly-once mode") as caught:
        effective(Configuration.from_dict(values))
    assert caught.value.found == "'execution.checkpointing.mode' is AT_LEAST_ONCE"


def test_unaligned_checkpoints_are_taken_one_at_a_time() -> None:
    values = {
        "execution.checkpointing.unaligned.enabled": True,
        "execution.checkpointing.max-concurrent-checkpoints": 2,
    }
    with pytest.raises(ConfigurationError, match="Unaligned checkpoints cannot be concurrent") as caught:
        effective(Configuration.from_dict(values))
    assert "set 'execution.checkpointing.max-concurrent-checkpoints' to 1" in str(caught.value.cure)
    effective(Configuration.from_dict({**values, "execution.checkpointing.min-pause": "1 s"}))  # which implies one


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("execution.checkpointing.interval", "5 ms", "must be at least 10 ms"),
        ("execution.checkpointing.interval", -1, "must be a duration"),
        ("execution.checkpointing.timeout", 1, "must be at least 10 ms"),
        ("execution.checkpointing.max-concurrent-checkpoints", 0, "must be at least 1"),
        ("execution.checkpointing.tolerable-failed-checkpoints", -1, "must be at least 0"),
        ("execution.checkpointing.num-retained", "none", "must be a whole number"),
        ("execution.checkpointing.storage", "tape", "must be one of filesystem, jobmanager"),
        ("tidegate.checkpoint.max-state-size", 0, "must be at least 1 bytes"),
        ("execution.checkpointing.mode", "twice", "must be one of EXACTLY_ONCE, AT_LEAST_ONCE"),
        ("state.backend", "disk", "must be one of hashmap, rocksdb"),
        ("parallelism.default", 0, "must lie between 1 and 32,768"),
        ("pipeline.max-parallelism", 40_000, "must lie between 1 and 32,768"),
        ("pipeline.operator-chaining", "maybe", "must be true or false"),
        ("tidegate.job-id", "a/b", "because it names a directory"),
        ("restart-strategy.exponential-delay.jitter-factor", "2", "must lie between 0 and 1"),
        ("parallelism.default", 1.5, "must be a whole number"),
    ],
)
def test_wrong_values_name_key_value_and_cure(key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        effective(Configuration.from_dict({key: value}))
    assert f"'{key}'" in caught.value.rule
    assert repr(value) in str(caught.value.found)
    assert caught.value.cure


def test_of_two_spellings_the_current_one_wins_and_layers_replace_whatever_spelling_was_there() -> None:
    both = Configuration.from_dict({"state.checkpoints.dir": "old", "execution.checkpointing.dir": "new"})
    assert both.read(CHECKPOINT_DIR) == "new"
    target = Configuration.from_dict({"execution.checkpointing.dir": "file"})
    target.overlay(Configuration.from_dict({"state.checkpoints.dir": "code"}))
    assert target.read(CHECKPOINT_DIR) == "code"
    assert target.key_set() == {"execution.checkpointing.dir"}
    target.overlay(both)
    assert target.read(CHECKPOINT_DIR) == "new"


def test_write_checks_and_none_removes() -> None:
    target = Configuration()
    with pytest.raises(ConfigurationError, match="at least 10 ms"):
        target.write(CHECKPOINT_INTERVAL, 9)
    target.write(PARALLELISM, 3)
    target.write(PARALLELISM, None)
    assert target.key_set() == set()


def test_the_class_behaves_like_pyflinks() -> None:
    config = Configuration()
    config.set_string("a", "b").set_integer("i", 5).set_boolean("t", True).set_float("f", 1.5)
    config.set_bytearray("by", bytearray(b"x"))
    assert config.get_string("a", "d") == "b"
    assert config.get_string("z", None) is None
    assert config.get_string("i", "") == "5"
    assert config.get_integer("i", 1) == 5
    assert config.get_boolean("t", False) is True
    assert config.get_float("f", 0.0) == 1.5
    assert config.get_bytearray("by", bytearray()) == bytearray(b"x")
    assert config.key_set() == {"a", "i", "t", "f", "by"}
    assert config.contains_key("a")
    assert config.remove_config("a")
    assert not config.remove_config("a")
    with pytest.raises(ConfigurationError, match="'t' must be a whole number"):
        config.get_integer("t", 1)
    target: dict[str, Any] = {}
    config.add_all_to_dict(target)
    assert target["i"] == 5
    assert config.to_dict()["t"] == "true"
    assert Configuration().add_all(Configuration.from_dict({"x": "1"}), "pre.").to_dict() == {"pre.x": "1"}
    assert Configuration(config) == config
    assert hash(Configuration(config)) == hash(config)
    assert Configuration.parse_list_value("a;b") == ["a", "b"]
    assert Configuration.parse_list_value("- a\n- b") == ["a", "b"] == Configuration.parse_list_value("[a, b]")
    assert Configuration.parse_list_value("") == []
    with pytest.raises(ArgumentTypeError, match="a non-empty text as key"):
        config.set_string("", "x")


def test_a_users_own_option() -> None:
    option = ConfigOptions.key("my.limit").int_type().default_value(3)
    assert Configuration().read(option.option) == 3
    assert Configuration.from_dict({"my.limit": "7"}).read(option.option) == 7
    assert ConfigOptions.key("x").string_type().no_default_value().default_value() is None


# -- file and command line


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("TIDEGATE_CONF_DIR", "FLINK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_nested_and_flat_yaml_keys(folder: Path) -> None:
    write(
        folder / "conf/config.yaml",
        """
execution:
  checkpointing:
    interval: 10 s
    mode: EXACTLY_ONCE
execution.checkpointing.dir: file:///tmp/x
state: {backend: {type: hashmap}}
parallelism.default: 3
pipeline:
  global-job-parameters:
    region: north
io.tmp.dirs: [/a, /b]
python: {fn-execution: {bundle.size: 1000}}
""",
    )
    settings = effective(global_configuration.load())
    assert settings["execution.checkpointing.interval"] == 10_000
    assert settings["execution.checkpointing.dir"] == "file:///tmp/x"
    assert settings["parallelism.default"] == 3
    assert settings["pipeline.global-job-parameters"] == {"region": "north"}
    assert settings["io.tmp.dirs"] == ["/a", "/b"]


def test_the_command_line_wins_over_the_file(folder: Path) -> None:
    write(folder / "conf/config.yaml", "parallelism.default: 3\nstate.checkpoints.dir: /file\n")
    global_configuration.set_dynamic_properties({"parallelism.default": "5", "execution.checkpointing.dir": "/cli"})
    settings = effective(global_configuration.load())
    assert settings["parallelism.default"] == 5
    assert settings["execution.checkpointing.dir"] == "/cli"


def test_tidegates_directory_comes_before_flinks_and_the_local_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("conf", "flink", "tidegate"):
        write(folder / name / "config.yaml", f"pipeline.name: {name}\n")
    assert global_configuration.load().to_dict() == {"pipeline.name": "conf"}
    monkeypatch.setenv("FLINK_CONF_DIR", str(folder / "flink"))
    assert global_configuration.load().to_dict() == {"pipeline.name": "flink"}
    monkeypatch.setenv("TIDEGATE_CONF_DIR", str(folder / "tidegate"))
    assert global_configuration.load().to_dict() == {"pipeline.name": "tidegate"}
    monkeypatch.setenv("TIDEGATE_CONF_DIR", str(folder / "nowhere"))
    with pytest.raises(ConfigurationError, match=r"TIDEGATE_CONF_DIR names a directory without config\.yaml"):
        global_configuration.load()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "is not readable YAML"),
        ("- a\n- b\n", "does not hold keys and values"),
        ("parallelism.default: many", "'parallelism.default' must be a whole number"),
        ("paralelism.default: 2", "did you mean 'parallelism.default'"),
    ],
)
def test_a_bad_file_is_named_in_the_error(folder: Path, text: str, message: str) -> None:
    write(folder / "conf/config.yaml", text)
    with pytest.raises(ConfigurationError, match=message) as caught:
        global_configuration.load()
    assert "conf/config.yaml" in str(caught.value.where)


def test_no_file_and_an_empty_file_are_fine(folder: Path) -> None:
    assert global_configuration.load() == Configuration()
    write(folder / "conf/config.yaml", "# nothing\n")
    assert global_configuration.load() == Configuration()
