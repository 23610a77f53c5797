"""Configuration: keys and values with PyFlink's API, and their combined meaning (``effective``)."""

from __future__ import annotations

import contextlib
import difflib
import logging
from typing import Any

import yaml

from tidegate.base.arguments import wrong
from tidegate.base.errors import ConfigurationError
from tidegate.common.option_types import parse_bool, parse_float, parse_int
from tidegate.common.options import (
    ALIGNED_TIMEOUT,
    CHANGELOG,
    CHECKPOINT_AFTER_FINISH,
    CHECKPOINT_CONCURRENT,
    CHECKPOINT_INTERVAL,
    CHECKPOINT_MIN_PAUSE,
    CHECKPOINT_MODE,
    CHECKPOINT_RETAINED,
    CHECKPOINT_RETENTION,
    CHECKPOINT_TIMEOUT,
    CHECKPOINT_TOLERABLE,
    FORCE_UNALIGNED,
    MATERIALIZE_INTERVAL,
    REGISTRY,
    RESTART_TYPE,
    SPELLINGS,
    UNALIGNED,
    Option,
)

__all__ = ["Configuration", "effective", "meaning", "notice"]

log = logging.getLogger("tidegate.configuration")


class Configuration:
    """A map of keys to values.

    Any key can be stored. ``StreamExecutionEnvironment`` refuses unknown keys when it uses a configuration.
    """

    def __init__(self, other: Configuration | None = None, j_configuration: Configuration | None = None) -> None:
        """Copy ``other``. ``j_configuration``: share the values of that configuration (PyFlink programs wrap the result of
        ``get_j_env_configuration``)."""
        if j_configuration is not None:
            self._values: dict[str, Any] = j_configuration._values
        else:
            self._values = dict(other._values) if other is not None else {}

    @staticmethod
    def from_dict(map: dict[str, Any]) -> Configuration:
        """Return a configuration with these keys."""
        configuration = Configuration()
        for key, value in map.items():
            configuration._set(key, value)
        return configuration

    def get_string(self, key: str, default_value: str | None) -> str | None:
        """Return the value of the key as a text; ``default_value`` if it is not set."""
        value = self._values.get(key)
        return default_value if value is None else _text(value)

    def set_string(self, key: str, value: str) -> Configuration:
        """Set the key."""
        return self._set(key, value)

    def get_integer(self, key: str, default_value: int | None) -> int | None:
        """Return the value of the key as an int; ``default_value`` if it is not set."""
        return self._get(key, default_value, parse_int, "a whole number")  # type: ignore[no-any-return]

    def set_integer(self, key: str, value: int) -> Configuration:
        """Set the key."""
        return self._set(key, value)

    def get_boolean(self, key: str, default_value: bool | None) -> bool | None:
        """Return the value of the key as a bool; ``default_value`` if it is not set."""
        return self._get(key, default_value, parse_bool, "true or false")  # type: ignore[no-any-return]

    def set_boolean(self, key: str, value: bool) -> Configuration:
        """Set the key."""
        return self._set(key, value)

    def get_float(self, key: str, default_value: float | None) -> float | None:
        """Return the value of the key as a float; ``default_value`` if it is not set."""
        return self._get(key, default_value, parse_float, "a number")  # type: ignore[no-any-return]

    def set_float(self, key: str, value: float) -> Configuration:
        """Set the key."""
        return self._set(key, value)

    def get_bytearray(self, key: str, default_value: bytearray | None) -> bytearray | None:
        """Return the value of the key as bytes; ``default_value`` if it is not set."""
        value = self._values.get(key)
        if value is None:
            return default_value
        if not isinstance(value, bytes | bytearray):
            raise ConfigurationError(f"'{key}' must be bytes", found=repr(value), cure="use the getter of its type")
        return bytearray(value)

    def set_bytearray(self, key: str, value: bytearray) -> Configuration:
        """Set the key."""
        return self._set(key, value)

    @staticmethod
    def parse_list_value(value: str) -> list[str]:
        """Parse a YAML list (``[a, b]``, or a line ``- a`` for each) or ``a;b``. An empty text is an empty list."""
        if not value:
            return []
        with contextlib.suppress(yaml.YAMLError):
            found = yaml.safe_load(value)
            if isinstance(found, list):
                return found
        return value.split(";")

    def key_set(self) -> set[str]:
        """All keys that are set."""
        return set(self._values)

    def contains_key(self, key: str) -> bool:
        """Return whether the key is set, in this or another spelling of it."""
        return key in self._values

    def remove_config(self, key: str) -> bool:
        """Remove the key, and return whether it was set."""
        return self._values.pop(key, None) is not None

    def add_all(self, other: Configuration, prefix: str | None = None) -> Configuration:
        """Set all keys of the other configuration, each with ``prefix`` before it."""
        for key, value in other._values.items():
            self._values[(prefix or "") + key] = value
        return self

    def add_all_to_dict(self, target_dict: dict[str, Any]) -> None:
        """Put all keys with their values into the dict."""
        target_dict.update(self._values)

    def to_dict(self) -> dict[str, str]:
        """Return all keys with their values as texts."""
        return {key: _text(value) for key, value in self._values.items()}

    def read(self, option: Option) -> Any:
        """Return the typed value of an option by any of its spellings (the current one wins), or its default."""
        for spelling in (option.key, *option.aliases):
            if spelling in self._values:
                return option.parse(self._values[spelling], spelling)
        return option.default

    def write(self, option: Option, value: Any) -> None:
        """Check and set an option under its current spelling, and remove older spellings. None removes it."""
        parsed = None if value is None else option.parse(value)
        for spelling in (option.key, *option.aliases):
            self._values.pop(spelling, None)
        if parsed is not None:
            self._values[option.key] = parsed

    def overlay(self, other: Configuration) -> None:
        """Set all keys of ``other``. Every key is checked, and replaces any spelling of the option."""
        chosen: dict[str, tuple[str, Any]] = {}
        for spelled, value in other._values.items():
            option = meaning(spelled)
            key = option.key if option else spelled
            if key not in chosen or spelled == key:  # of two spellings the current one wins
                chosen[key] = (spelled, value)
        for key, (spelled, value) in chosen.items():
            option = SPELLINGS.get(key)
            if option is not None:
                self.write(option, option.parse(value, spelled))
            else:
                self._values[key] = value

    def _set(self, key: str, value: Any) -> Configuration:
        if not isinstance(key, str) or not key:
            raise wrong(
                "Configuration", "a non-empty text as key", key, 'config.set_string("parallelism.default", "2")'
            )
        if value is None:
            raise wrong("Configuration", "a value", value, f"call remove_config({key!r}) to remove a key")
        self._values[key] = value
        return self

    def _get(self, key: str, default: Any, parse: Any, wanted: str) -> Any:
        value = self._values.get(key)
        if value is None:
            return default
        try:
            return parse(value)
        except ValueError:
            raise ConfigurationError(
                f"'{key}' must be {wanted}", found=repr(value), cure="use the getter of its type, or correct the value"
            ) from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and self._values == other._values

    def __hash__(self) -> int:
        return hash(frozenset(self.to_dict().items()))

    def __str__(self) -> str:
        return "{" + ", ".join(f"{key}={value}" for key, value in self.to_dict().items()) + "}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ";".join(map(str, value))
    if isinstance(value, dict):
        return ",".join(f"{key}:{item}" for key, item in value.items())
    return str(value)


noticed: set[str] = set()


def notice(key: str, text: str) -> None:
    """Warn that a setting is accepted without effect, once in the life of the process."""
    if key not in noticed:
        noticed.add(key)
        log.warning("'%s' is accepted and has no effect: %s", key, text)


def meaning(key: str) -> Option | None:
    """Return the option of a key; None if the key belongs to Spark, or has no meaning here (then with a notice). Raise for
    unknown keys.
    """
    option = SPELLINGS.get(key)
    if option is not None:
        if option.note and option.inert is None:
            notice(key, option.note)
        return option
    if key.startswith(PASSED_ON):
        return None
    if key.startswith(WITHOUT_MEANING):
        notice(key, "Flink's key has no counterpart on Spark")
        return None
    near = difflib.get_close_matches(key, SPELLINGS, n=1, cutoff=0.6)
    raise ConfigurationError(
        "The configuration key is unknown",
        found=repr(key),
        cure=f"did you mean '{near[0]}'?" if near else "run `tidegate options` to list all keys",
    )


def effective(configuration: Configuration) -> dict[str, Any]:
    """Return every known option with its typed value under its current key, and all ``spark.*`` keys as texts.

    Durations are milliseconds, sizes bytes, choices texts in their canonical spelling, None means not set. The rules
    between options have been checked.
    """
    for key in configuration.key_set():
        option = meaning(key)
        if option is not None:
            _notice_if_idle(configuration, key, option)
    result = {key: configuration.read(option) for key, option in REGISTRY.items()}
    result |= {key: value for key, value in configuration.to_dict().items() if key.startswith(PASSED_ON)}
    if result[RESTART_TYPE.key] is None:
        result[RESTART_TYPE.key] = "none" if result[CHECKPOINT_INTERVAL.key] is None else "exponential-delay"
    if result[CHECKPOINT_MIN_PAUSE.key] > 0 and result[CHECKPOINT_CONCURRENT.key] > 1:
        notice(CHECKPOINT_CONCURRENT.key, f"'{CHECKPOINT_MIN_PAUSE.key}' leaves room for one checkpoint at a time")
        result[CHECKPOINT_CONCURRENT.key] = 1
    if result[UNALIGNED.key]:
        _check_unaligned(result)
    return result


def _notice_if_idle(configuration: Configuration, key: str, option: Option) -> None:
    value, needed = configuration.read(option), _NEEDS.get(option.key)
    if option.note and option.inert is not None and option.inert(value):
        notice(f"{key}: {configuration.get_string(key, None)}", option.note)
    if needed is not None and value != option.default and not configuration.read(needed):
        notice(key, f"it needs '{needed.key}'")


_NEEDS = {
    **{
        option.key: CHECKPOINT_INTERVAL
        for option in (
            CHECKPOINT_MODE,
            CHECKPOINT_TIMEOUT,
            CHECKPOINT_MIN_PAUSE,
            CHECKPOINT_CONCURRENT,
            CHECKPOINT_TOLERABLE,
            CHECKPOINT_RETAINED,
            CHECKPOINT_RETENTION,
            CHECKPOINT_AFTER_FINISH,
            UNALIGNED,
        )
    },
    ALIGNED_TIMEOUT.key: UNALIGNED,
    FORCE_UNALIGNED.key: UNALIGNED,
    MATERIALIZE_INTERVAL.key: CHANGELOG,
}
"""Option -> the option that it needs to have an effect."""


def _check_unaligned(result: dict[str, Any]) -> None:
    mode, concurrent = result[CHECKPOINT_MODE.key], result[CHECKPOINT_CONCURRENT.key]
    if mode != "EXACTLY_ONCE":
        raise ConfigurationError(
            "Unaligned checkpoints need exactly-once mode: at-least-once mode never waits for records, so there is nothing to gain",
            where=f"'{UNALIGNED.key}'",
            found=f"'{CHECKPOINT_MODE.key}' is {mode}",
            cure=f"set '{CHECKPOINT_MODE.key}' to EXACTLY_ONCE, or leave '{UNALIGNED.key}' out",
        )
    if concurrent != 1:
        raise ConfigurationError(
            "Unaligned checkpoints cannot be concurrent: each stores the records in flight of its own moment",
            where=f"'{UNALIGNED.key}'",
            found=f"'{CHECKPOINT_CONCURRENT.key}' is {concurrent}",
            cure=f"set '{CHECKPOINT_CONCURRENT.key}' to 1, or leave '{UNALIGNED.key}' out",
        )


PASSED_ON = "spark."
"""Keys with this prefix go to Spark as they are."""

_SERVICES = """
    akka. blob. classloader. client. cluster. compiler. env. externalResource. fs. heartbeat. high-availability
    historyserver. internal. $internal. job-event. jobmanager. jobstore. kubernetes. metrics. parallelism.adaptive
    pekko. process. python. queryable-state. resourcemanager. rest. s3. scheduler. security. slot. slotmanager.
    sql-client. sql-gateway. table. task. taskmanager. traces. web. yarn. zookeeper.
"""
_EXECUTION = """
    execution.attached execution.batch execution.job-listeners execution.shutdown-on- execution.sorted-inputs.
    execution.submit-failed- execution.checkpointing.cleaner. execution.checkpointing.create-subdir
    execution.checkpointing.data-inline- execution.checkpointing.file-merging. execution.checkpointing.local-
    execution.checkpointing.write- execution.state-recovery.from-local
    pipeline.closure-cleaner pipeline.default-kryo- pipeline.force-
    pipeline.generic-types pipeline.jobvertex- pipeline.registered- pipeline.serialization-config
    pipeline.vertex- pipeline.watermark-alignment.
"""
_STATE = """
    state.backend.async state.backend.cache. state.backend.latency-track state.backend.local-recovery
    state.backend.rocksdb. state.checkpoints.create-subdir state.latency-track. state.storage.
"""

WITHOUT_MEANING: tuple[str, ...] = tuple(f"{_SERVICES} {_EXECUTION} {_STATE}".split())
"""Prefixes of keys that are accepted, with one notice."""
