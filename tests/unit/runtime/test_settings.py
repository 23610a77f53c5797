"""What the configuration says to the job master: decided once, with the defaults of the options and no others."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from tidegate.checkpoint.lease import acquire
from tidegate.checkpoint.policy import CheckpointPolicy
from tidegate.common import options
from tidegate.common.configuration import Configuration, effective
from tidegate.common.time import Duration
from tidegate.datastream import CheckpointConfig, CheckpointingMode, ExternalizedCheckpointRetention
from tidegate.datastream.checkpoint_storage import JobManagerCheckpointStorage
from tidegate.operators.contracts.operator import Settings
from tidegate.runtime.commits import SinkCommitters
from tidegate.runtime.restart import ExponentialDelayRestart, FailureRateRestart, FixedDelayRestart
from tidegate.runtime.settings import JobSettings


def test_defaults_are_those_of_the_options() -> None:
    settings = JobSettings.of({})
    assert settings.commit_attempts == options.COMMIT_ATTEMPTS.default
    assert settings.commit_backoff_ms == options.COMMIT_BACKOFF.default
    assert settings.lease_timeout_ms == options.LEASE_TIMEOUT.default
    assert settings.round_target_ms == options.ROUND_TARGET.default
    assert settings.chunk_records == options.CHUNK_RECORDS.default
    assert settings.stores.map_size == options.MAP_SIZE.default
    assert settings.poll_ms == options.BUFFER_TIMEOUT.default
    assert settings.checkpoints is None
    assert (settings.parallelism, settings.max_parallelism, settings.job_id) == (1, None, None)


def test_what_subtasks_assume_without_a_job_are_the_same_defaults() -> None:
    of_job, of_subtask = JobSettings.of({}), Settings("job", "root", "local")
    assert of_subtask.inline == of_job.inline_functions
    shared = {field.name for field in fields(Settings)} & {field.name for field in fields(JobSettings)}
    assert {"chunk_records", "state_backend", "stores", "cache_bytes", "object_reuse"} <= shared
    for name in shared - {"job_id"}:
        assert getattr(of_subtask, name) == getattr(of_job, name), name
    source = inspect.getsource(Settings)
    assert not re.findall(r": (?:int|str) = [\d\"']", source), "a default of its own"


def test_settings_of_tasks_have_all_that_the_job_has_set() -> None:
    """Whoever runs rounds: the job, a replay or a harness. Only the job itself looks for heavy keys."""
    shared = {field.name for field in fields(Settings)} & {field.name for field in fields(JobSettings)}
    shared -= {"job_id", "heavy_keys"}
    assert {"json_fields", "fast_json", "compressed", "batch_mode", "force_unaligned"} <= shared
    given: dict[str, Any] = {name: {name: "set"} for name in shared}
    of_tasks = replace(JobSettings.of({}), inline_functions=False, **given).of_tasks("job", "root", "local")
    assert {name: getattr(of_tasks, name) for name in shared} == given
    assert not of_tasks.inline
    assert (of_tasks.job_id, of_tasks.root, of_tasks.local_root) == ("job", "root", "local")


def test_what_is_set_wins_also_when_it_is_nought_or_false() -> None:
    given: dict[str, Any] = {
        "tidegate.commit.backoff": 0,
        "tidegate.functions.inline": False,
        "tidegate.json.fast": False,
        "pipeline.object-reuse": True,
        "tidegate.round.max-records": 7,
        "execution.runtime-mode": "BATCH",
        "pipeline.global-job-parameters": {"a": 1},
    }
    settings = JobSettings.of(given)
    assert settings.commit_backoff_ms == 0
    assert (settings.inline_functions, settings.object_reuse, settings.batch_mode) == (False, True, True)
    assert settings.fast_json is False
    assert settings.round_max_records == 7
    assert settings.parameters == {"a": "1"}


@pytest.mark.parametrize(
    ("interval", "target", "expected"), [(None, 5_000, 5_000), (300, 5_000, 300), (10, 5_000, 100), (9_000, 400, 400)]
)
def test_a_round_is_not_longer_than_the_interval_between_checkpoints(
    interval: int | None, target: int, expected: int
) -> None:
    given = {"execution.checkpointing.interval": interval, "tidegate.round.target-time": target}
    assert JobSettings.of(given).round_target_ms == expected


@pytest.mark.parametrize(
    ("enabled", "interval", "expected"), [(True, 20, 20), (True, 0, 1), (True, 5_000, 100), (False, 20, 100)]
)
def test_how_often_sources_are_asked(enabled: bool, interval: int, expected: int) -> None:
    given = {"execution.buffer-timeout.enabled": enabled, "execution.buffer-timeout.interval": interval}
    assert JobSettings.of(given).poll_ms == expected


@pytest.mark.parametrize(
    ("where", "argument", "option"),
    [
        (acquire, "timeout_ms", options.LEASE_TIMEOUT),
        (CheckpointPolicy, "timeout_ms", options.CHECKPOINT_TIMEOUT),
        (CheckpointPolicy, "min_pause_ms", options.CHECKPOINT_MIN_PAUSE),
        (CheckpointPolicy, "max_concurrent", options.CHECKPOINT_CONCURRENT),
        (CheckpointPolicy, "tolerable_failures", options.CHECKPOINT_TOLERABLE),
        (CheckpointPolicy, "retained", options.CHECKPOINT_RETAINED),
        (FixedDelayRestart, "attempts", options.FIXED_ATTEMPTS),
        (FixedDelayRestart, "delay_ms", options.FIXED_DELAY),
        (FailureRateRestart, "max_failures", options.RATE_FAILURES),
        (FailureRateRestart, "interval_ms", options.RATE_INTERVAL),
        (ExponentialDelayRestart, "initial_ms", options.EXPONENTIAL_INITIAL),
        (ExponentialDelayRestart, "multiplier", options.EXPONENTIAL_MULTIPLIER),
        (ExponentialDelayRestart, "attempts", options.EXPONENTIAL_ATTEMPTS),
    ],
)
def test_no_other_place_has_a_default_of_its_own(where: Any, argument: str, option: options.Option) -> None:
    assert inspect.signature(where).parameters[argument].default == option.default
    source = inspect.getsource(inspect.getmodule(where))  # type: ignore[arg-type]
    assert f"{argument}: int = options." in source or f"{argument}: float = options." in source or "UNLIMITED" in source


def test_committers_have_no_default_at_all() -> None:
    parameters = inspect.signature(SinkCommitters).parameters
    assert parameters["attempts"].default is parameters["backoff_ms"].default is inspect.Parameter.empty


PREFIX = "execution.checkpointing."
KNOBS: list[tuple[Callable[[CheckpointConfig], object], str, str, Callable[[JobSettings], object]]] = [
    (lambda c: c.set_checkpoint_interval(777), "interval", "777 ms", lambda s: policy(s).interval_ms),
    (
        lambda c: c.set_checkpointing_mode(CheckpointingMode.AT_LEAST_ONCE),
        "mode",
        "at-least-once",
        lambda s: policy(s).at_least_once,
    ),
    (lambda c: c.set_checkpoint_timeout(5000), "timeout", "5 s", lambda s: policy(s).timeout_ms),
    (lambda c: c.set_min_pause_between_checkpoints(250), "min-pause", "250", lambda s: policy(s).min_pause_ms),
    (lambda c: c.set_max_concurrent_checkpoints(3), "max-concurrent-checkpoints", "3", lambda s: policy(s).concurrency),
    (
        lambda c: c.set_tolerable_checkpoint_failure_number(4),
        "tolerable-failed-checkpoints",
        "4",
        lambda s: policy(s).tolerable_failures,
    ),
    (
        lambda c: c.set_externalized_checkpoint_retention(ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION),
        "externalized-checkpoint-retention",
        "RETAIN_ON_CANCELLATION",
        lambda s: policy(s).retention,
    ),
    (lambda c: c.enable_unaligned_checkpoints(), "unaligned.enabled", "true", lambda s: policy(s).unaligned),
    (
        lambda c: c.set_aligned_checkpoint_timeout(Duration.of_seconds(2)),
        "aligned-checkpoint-timeout",
        "2 s",
        lambda s: policy(s).aligned_timeout_ms,
    ),
    (lambda c: c.set_force_unaligned_checkpoints(), "unaligned.forced", "true", lambda s: s.force_unaligned),
    (
        lambda c: c.set_checkpoint_id_of_ignored_in_flight_data(9),
        "recover-without-channel-state.checkpoint-id",
        "9",
        lambda s: s.ignored_in_flight_of,
    ),
    (lambda c: c.set_checkpoint_storage_dir("/some/where"), "dir", "/some/where", lambda s: s.checkpoint_dir),
    (
        lambda c: c.set_checkpoint_storage(JobManagerCheckpointStorage(max_state_size=1234)),
        "storage",
        "jobmanager",
        lambda s: s.in_memory,
    ),
]


def policy(settings: JobSettings) -> CheckpointPolicy:
    assert settings.checkpoints is not None
    return settings.checkpoints


@pytest.mark.parametrize(("method", "key", "value", "effect"), [pytest.param(*knob, id=knob[1]) for knob in KNOBS])
def test_method_key_and_older_keys_say_the_same(
    method: Callable[[CheckpointConfig], object], key: str, value: str, effect: Callable[[JobSettings], object]
) -> None:
    started = {PREFIX + "interval": "1 s"} if key != "interval" else {}

    def seen(configuration: Configuration) -> object:
        return effect(JobSettings.of(effective(configuration)))

    by_method = Configuration.from_dict(started)
    method(CheckpointConfig(by_method))
    option = options.REGISTRY[PREFIX + key]
    given = [{**started, spelled: value} for spelled in (option.key, *option.aliases)]
    assert {seen(Configuration.from_dict(keys)) for keys in given} == {seen(by_method)}
    if started:
        assert seen(by_method) != seen(Configuration.from_dict(started))
