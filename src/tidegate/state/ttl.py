"""Time to live: when an entry of a state expires, and what a read of an expired entry returns."""

from __future__ import annotations

from enum import Enum
from typing import Any

from tidegate.base.arguments import expect_int
from tidegate.base.errors import ProgramError
from tidegate.common.time import Duration, Time, millis_of


def ttl_millis(ttl: Any) -> int:
    """Return the milliseconds of a Time, Duration, timedelta, an object with their methods, or a number of milliseconds."""
    if isinstance(ttl, int) and not isinstance(ttl, bool):
        return ttl
    for method in ("to_milliseconds", "to_millis"):
        if hasattr(ttl, method):
            return int(getattr(ttl, method)())
    return millis_of("StateTtlConfig", ttl)


class StateTtlConfig:
    """Configuration of time to live; made with ``StateTtlConfig.new_builder(Time.seconds(1))...build()``."""

    class UpdateType(Enum):
        """Which access renews the time to live of an entry."""

        Disabled = 0
        OnCreateAndWrite = 1
        OnReadAndWrite = 2

    class StateVisibility(Enum):
        """Whether an expired entry may still be returned once, until it is cleaned up."""

        ReturnExpiredIfNotCleanedUp = 0
        NeverReturnExpired = 1

    class TtlTimeCharacteristic(Enum):
        """Which clock counts."""

        ProcessingTime = 0

    def __init__(
        self,
        update_type: StateTtlConfig.UpdateType,
        state_visibility: StateTtlConfig.StateVisibility,
        ttl_time_characteristic: StateTtlConfig.TtlTimeCharacteristic,
        ttl: Any,
        cleanup_strategies: StateTtlConfig.CleanupStrategies,
    ) -> None:
        self.ttl_ms = ttl_millis(ttl)
        if self.ttl_ms <= 0:
            raise ProgramError(
                "The time to live is not positive.", found=f"{self.ttl_ms} ms", cure="use Time.seconds(1)"
            )
        self._update_type = update_type
        self._state_visibility = state_visibility
        self._ttl_time_characteristic = ttl_time_characteristic
        self._ttl = ttl
        self._cleanup_strategies = cleanup_strategies

    @staticmethod
    def new_builder(ttl: Any) -> StateTtlConfig.Builder:
        """Return a builder; entries expire after ``ttl``."""
        return StateTtlConfig.Builder(ttl)

    def get_update_type(self) -> StateTtlConfig.UpdateType:
        """Return which access renews the time to live."""
        return self._update_type

    def get_state_visibility(self) -> StateTtlConfig.StateVisibility:
        """Return whether an expired entry may still be read while it is there."""
        return self._state_visibility

    def get_ttl(self) -> Any:
        """Return how long an entry lives."""
        return self._ttl

    def get_ttl_time_characteristic(self) -> StateTtlConfig.TtlTimeCharacteristic:
        """Which clock counts."""
        return self._ttl_time_characteristic

    def is_enabled(self) -> bool:
        """Return whether entries expire at all."""
        return self._update_type is not StateTtlConfig.UpdateType.Disabled

    def get_cleanup_strategies(self) -> StateTtlConfig.CleanupStrategies:
        """Return how expired entries are removed."""
        return self._cleanup_strategies

    @property
    def updates_on_read(self) -> bool:
        """Whether a read renews the time to live."""
        return self._update_type is StateTtlConfig.UpdateType.OnReadAndWrite

    @property
    def returns_expired(self) -> bool:
        """Whether an expired entry may still be read while it is there."""
        return self._state_visibility is StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp

    def __repr__(self) -> str:
        return (
            f"StateTtlConfig<update_type={self._update_type} state_visibility={self._state_visibility} "
            f"ttl_time_characteristic={self._ttl_time_characteristic} ttl={self._ttl}>"
        )

    class Builder:
        """Collects the settings; every method but ``build`` returns the builder."""

        def __init__(self, ttl: Any) -> None:
            self._ttl = ttl
            self._update_type = StateTtlConfig.UpdateType.OnCreateAndWrite
            self._state_visibility = StateTtlConfig.StateVisibility.NeverReturnExpired
            self._ttl_time_characteristic = StateTtlConfig.TtlTimeCharacteristic.ProcessingTime
            self._in_background = True
            self._strategies: dict[Any, Any] = {}

        def set_update_type(self, update_type: StateTtlConfig.UpdateType) -> StateTtlConfig.Builder:
            """Set which access renews the time to live."""
            self._update_type = update_type
            return self

        def update_ttl_on_create_and_write(self) -> StateTtlConfig.Builder:
            """Renew the time to live with each write: the default."""
            return self.set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)

        def update_ttl_on_read_and_write(self) -> StateTtlConfig.Builder:
            """Renew the time to live with each read too."""
            return self.set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)

        def set_state_visibility(self, state_visibility: StateTtlConfig.StateVisibility) -> StateTtlConfig.Builder:
            """Set whether an expired entry may still be read until it is removed."""
            self._state_visibility = state_visibility
            return self

        def return_expired_if_not_cleaned_up(self) -> StateTtlConfig.Builder:
            """Let an expired entry be read until it is removed."""
            return self.set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)

        def never_return_expired(self) -> StateTtlConfig.Builder:
            """Never return an expired entry: the default."""
            return self.set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)

        def set_ttl_time_characteristic(
            self, ttl_time_characteristic: StateTtlConfig.TtlTimeCharacteristic
        ) -> StateTtlConfig.Builder:
            """Set the clock; there is only processing time."""
            self._ttl_time_characteristic = ttl_time_characteristic
            return self

        def use_processing_time(self) -> StateTtlConfig.Builder:
            """Use processing time: the only choice."""
            return self.set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.ProcessingTime)

        def cleanup_full_snapshot(self) -> StateTtlConfig.Builder:
            """Drop expired entries from full snapshots. Tidegate always does when it writes a base."""
            kinds = StateTtlConfig.CleanupStrategies
            self._strategies[kinds.Strategies.FULL_STATE_SCAN_SNAPSHOT] = kinds.EmptyCleanupStrategy.EMPTY_STRATEGY
            return self

        def cleanup_incrementally(
            self, cleanup_size: int, run_cleanup_for_every_record: bool
        ) -> StateTtlConfig.Builder:
            """Accept the setting. Tidegate removes expired entries on access and when it writes a base."""
            kinds = StateTtlConfig.CleanupStrategies
            self._strategies[kinds.Strategies.INCREMENTAL_CLEANUP] = kinds.IncrementalCleanupStrategy(
                cleanup_size, run_cleanup_for_every_record
            )
            return self

        def cleanup_in_rocksdb_compact_filter(
            self, query_time_after_num_entries: int, periodic_compaction_time: Any = None
        ) -> StateTtlConfig.Builder:
            """Accept the setting. Tidegate removes expired entries on access and when it writes a base."""
            kinds = StateTtlConfig.CleanupStrategies
            self._strategies[kinds.Strategies.ROCKSDB_COMPACTION_FILTER] = kinds.RocksdbCompactFilterCleanupStrategy(
                query_time_after_num_entries, periodic_compaction_time
            )
            return self

        def disable_cleanup_in_background(self) -> StateTtlConfig.Builder:
            """Remove expired entries only on access."""
            self._in_background = False
            return self

        def set_ttl(self, ttl: Any) -> StateTtlConfig.Builder:
            """Set the time to live."""
            self._ttl = ttl
            return self

        def build(self) -> StateTtlConfig:
            """Return the configuration."""
            return StateTtlConfig(
                self._update_type,
                self._state_visibility,
                self._ttl_time_characteristic,
                self._ttl,
                StateTtlConfig.CleanupStrategies(self._strategies, self._in_background),
            )

    class CleanupStrategies:
        """When expired entries are removed without an access."""

        class Strategies(Enum):
            """The kinds of cleanup."""

            FULL_STATE_SCAN_SNAPSHOT = 0
            INCREMENTAL_CLEANUP = 1
            ROCKSDB_COMPACTION_FILTER = 2

        class CleanupStrategy:
            """Root of the strategies."""

        class EmptyCleanupStrategy(CleanupStrategy, Enum):
            """A strategy without settings."""

            EMPTY_STRATEGY = 0

        class IncrementalCleanupStrategy(CleanupStrategy):
            """Check some entries at each access to state."""

            def __init__(self, cleanup_size: int, run_cleanup_for_every_record: bool) -> None:
                self._cleanup_size = expect_int("cleanup_incrementally", cleanup_size, "for example 5")
                self._for_every_record = run_cleanup_for_every_record

            def get_cleanup_size(self) -> int:
                """Return how many entries are checked."""
                return self._cleanup_size

            def run_cleanup_for_every_record(self) -> bool:
                """Return whether each record triggers a check too."""
                return self._for_every_record

        class RocksdbCompactFilterCleanupStrategy(CleanupStrategy):
            """Check entries when files are merged."""

            def __init__(self, query_time_after_num_entries: int, periodic_compaction_time: Any = None) -> None:
                self._entries = expect_int("cleanup_in_rocksdb_compact_filter", query_time_after_num_entries, "1000")
                self._period = Duration.of_days(30) if periodic_compaction_time is None else periodic_compaction_time

            def get_query_time_after_num_entries(self) -> int:
                """Return after how many entries the clock is read again."""
                return self._entries

            def get_periodic_compaction_time(self) -> Duration | Time:
                """Return after how long a file is merged in any case."""
                period: Duration | Time = self._period
                return period

        def __init__(self, strategies: dict[Any, Any], is_cleanup_in_background: bool) -> None:
            self._strategies = dict(strategies)
            self._in_background = is_cleanup_in_background

        def is_cleanup_in_background(self) -> bool:
            """Return whether expired entries are removed without an access."""
            return self._in_background

        def in_full_snapshot(self) -> bool:
            """Return whether expired entries are left out of full snapshots."""
            return self.Strategies.FULL_STATE_SCAN_SNAPSHOT in self._strategies

        def get_incremental_cleanup_strategy(self) -> Any:
            """Return the strategy that is set, else the default of background cleanup, else None."""
            default = self.IncrementalCleanupStrategy(5, False) if self._in_background else None
            return self._strategies.get(self.Strategies.INCREMENTAL_CLEANUP, default)

        def get_rocksdb_compact_filter_cleanup_strategy(self) -> Any:
            """Return the strategy that is set, else the default of background cleanup, else None."""
            default = self.RocksdbCompactFilterCleanupStrategy(1000) if self._in_background else None
            return self._strategies.get(self.Strategies.ROCKSDB_COMPACTION_FILTER, default)
