"""The settings of a job for the job master, read once from its configuration. Only ``common/options.py`` has defaults."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from tidegate.base.errors import ConfigurationError
from tidegate.checkpoint.policy import CheckpointPolicy
from tidegate.common import options
from tidegate.common.option_types import ports_of
from tidegate.common.options import Option
from tidegate.operators.contracts.operator import Settings
from tidegate.runtime.planner import MergePolicy
from tidegate.state.rocksdb_options import RocksdbOptions
from tidegate.state.stores import StoreOptions


@dataclass(frozen=True)
class WebSettings:
    """The page of a driver: where it listens, and the files with its secrets."""

    address: str
    ports: range
    password_file: str | None
    token_file: str | None


@dataclass(frozen=True)
class Telemetry:
    """Where OpenTelemetry's figures go. None: where the variables of the environment say, or nowhere."""

    metrics: str | None = None
    traces: str | None = None
    interval_ms: int = options.OTEL_INTERVAL.default
    rounds: bool = False
    service: str | None = None

    @staticmethod
    def of(get: Callable[[Option], Any]) -> Telemetry:
        """Raise ConfigurationError if a collector is named, and the library is missing."""
        found = Telemetry(
            get(options.OTEL_METRICS),
            get(options.OTEL_TRACES),
            get(options.OTEL_INTERVAL),
            get(options.OTEL_ROUNDS),
            get(options.OTEL_SERVICE),
        )
        if (found.metrics or found.traces) and not _has_telemetry():
            raise ConfigurationError(
                "OpenTelemetry is not installed",
                where=options.OTEL_METRICS.key if found.metrics else options.OTEL_TRACES.key,
                found=str(found.metrics or found.traces),
                cure="run: pip install 'tidegate[otel]'",
            )
        return found


def _has_telemetry() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


@dataclass(frozen=True)
class JobSettings:
    """The settings of one job. All times are in milliseconds. None: the user has set nothing, and there is no default."""

    job_id: str | None
    parallelism: int
    max_parallelism: int | None
    checkpoints: CheckpointPolicy | None
    checkpoint_dir: str | None
    in_memory: bool
    """Checkpoints without a directory are kept in the memory of the driver's host."""
    group_access: bool
    """The group of the directory may also use checkpoints and savepoints on local disks."""
    savepoint_dir: str | None
    savepoint_threads: int
    recovery_path: str | None
    claims: bool
    """The job owns the snapshot from which it starts."""
    ignore_unclaimed_state: bool
    ignored_in_flight_of: int
    """The checkpoint whose records in flight are discarded when it is restored; below 0: none."""
    force_unaligned: bool
    start_anew: bool
    restart_covers_start: bool
    restore_previous: bool
    signing_key_file: str | None
    accept_unsigned: bool
    """A snapshot without a signature is restored even if the job has a signing key."""
    allow_pickle: bool
    """State may be pickled. Otherwise a snapshot that contains pickles is refused."""
    required_guarantee: str | None
    lease_timeout_ms: int
    commit_attempts: int
    commit_backoff_ms: int
    round_target_ms: int
    round_max_records: int | None
    poll_ms: int
    """How often to ask a source that cannot say when it has more records. A record waits at most this long for its round."""
    local_dir: str | None
    more_local_dirs: tuple[str, ...]
    state_backend: str
    stores: StoreOptions
    merges: MergePolicy
    upload: str
    """When state files are stored: ``auto``, ``with-round`` or ``behind``."""
    transfer_threads: int
    cache_bytes: int
    compressed: bool
    """State files are compressed."""
    chunk_records: int
    object_reuse: bool
    inline_functions: bool
    fast_json: bool
    json_fields: bool
    sessions_in_memory: bool
    heavy_keys: str
    batch_mode: bool
    watermark_interval_ms: int
    metrics_ports: range | None
    metrics_token_file: str | None
    telemetry: Telemetry
    control_enabled: bool
    web: WebSettings | None
    control_dirs: tuple[str, ...] | None
    control_storage: str
    """Where commands may put savepoints; None: anywhere."""
    parameters: Mapping[str, str]

    @property
    def retained(self) -> int:
        """How many checkpoints are retained."""
        return self.checkpoints.retained if self.checkpoints is not None else 1

    def of_tasks(self, job_id: str, root: str, local_root: str) -> Settings:
        """Return the settings of the tasks, as far as the configuration decides them, whatever runs the rounds."""
        return Settings(
            job_id,
            root,
            local_root,
            chunk_records=self.chunk_records,
            state_backend=self.state_backend,
            stores=self.stores,
            cache_bytes=self.cache_bytes,
            compressed=self.compressed,
            allow_pickle=self.allow_pickle,
            parameters=dict(self.parameters),
            object_reuse=self.object_reuse,
            force_unaligned=self.force_unaligned,
            inline=self.inline_functions,
            fast_json=self.fast_json,
            json_fields=self.json_fields,
            sessions_in_memory=self.sessions_in_memory,
            batch_mode=self.batch_mode,
            watermark_interval_ms=self.watermark_interval_ms,
        )

    @staticmethod
    def of(configuration: Mapping[str, Any]) -> JobSettings:
        """Read the settings from typed values (durations as milliseconds)."""

        def get(option: Option) -> Any:
            value = configuration.get(option.key)
            return option.default if value is None else value

        batch_mode = get(options.RUNTIME_MODE) == "BATCH"
        policy = None if batch_mode else CheckpointPolicy.from_configuration(configuration)
        ports, local_dirs = get(options.METRICS_PORT), _local_dirs(get)
        if policy is not None and get(options.JOB_ID) is not None and not get(options.CHECKPOINT_DIR):
            raise ConfigurationError(
                "A job with a fixed id has no directory in which its next start could find its checkpoints",
                found=f"tidegate.job-id={get(options.JOB_ID)}, and no execution.checkpointing.dir",
                cure="set execution.checkpointing.dir, or remove tidegate.job-id",
            )
        if policy is not None and policy.unaligned and not get(options.ALLOW_PICKLE):
            raise ConfigurationError(
                "Unaligned checkpoints need pickles for records in flight, and pickles are not allowed",
                found=f"execution.checkpointing.unaligned.enabled with {options.ALLOW_PICKLE.key}=false",
                cure=f"set execution.checkpointing.unaligned.enabled: false, or {options.ALLOW_PICKLE.key}: true",
            )
        maximum = get(options.MAX_PARALLELISM)
        return JobSettings(
            job_id=get(options.JOB_ID),
            parallelism=get(options.PARALLELISM) or 1,
            max_parallelism=maximum if maximum and maximum > 0 else None,
            checkpoints=policy,
            checkpoint_dir=get(options.CHECKPOINT_DIR),
            in_memory=get(options.CHECKPOINT_STORAGE) == "jobmanager",
            group_access=get(options.FILE_PERMISSIONS) == "group",
            savepoint_dir=get(options.SAVEPOINT_DIR),
            savepoint_threads=get(options.SAVEPOINT_THREADS),
            recovery_path=get(options.RECOVERY_PATH),
            claims=get(options.RECOVERY_CLAIM) == "CLAIM",
            ignore_unclaimed_state=get(options.RECOVERY_IGNORE_UNCLAIMED),
            ignored_in_flight_of=get(options.IGNORED_IN_FLIGHT),
            force_unaligned=get(options.FORCE_UNALIGNED),
            start_anew=get(options.START_ANEW),
            restart_covers_start=get(options.RESTART_COVERS_START),
            restore_previous=get(options.RESTORE_PREVIOUS),
            signing_key_file=get(options.SIGNING_KEY_FILE),
            accept_unsigned=get(options.ACCEPT_UNSIGNED),
            allow_pickle=get(options.ALLOW_PICKLE),
            required_guarantee=get(options.REQUIRE),
            lease_timeout_ms=get(options.LEASE_TIMEOUT),
            commit_attempts=get(options.COMMIT_ATTEMPTS),
            commit_backoff_ms=get(options.COMMIT_BACKOFF),
            round_target_ms=_round_target(get(options.ROUND_TARGET), policy),
            round_max_records=get(options.ROUND_MAX_RECORDS),
            poll_ms=_poll(get(options.BUFFER_TIMEOUT) if get(options.BUFFER_TIMEOUT_ENABLED) else None),
            local_dir=local_dirs[0] if local_dirs else None,
            more_local_dirs=tuple(local_dirs[1:]),
            state_backend=get(options.STATE_BACKEND),
            merges=MergePolicy.of(get),
            stores=StoreOptions(get(options.MAP_SIZE), RocksdbOptions.of(get)),
            upload=get(options.UPLOAD),
            transfer_threads=get(options.TRANSFER_THREADS),
            cache_bytes=get(options.CACHE_SIZE),
            compressed=get(options.COMPRESSION),
            chunk_records=get(options.CHUNK_RECORDS),
            object_reuse=get(options.OBJECT_REUSE),
            inline_functions=get(options.INLINE_FUNCTIONS),
            fast_json=get(options.FAST_JSON),
            json_fields=get(options.JSON_FIELDS),
            sessions_in_memory=get(options.SESSIONS_IN_MEMORY),
            heavy_keys=get(options.HEAVY_KEYS),
            batch_mode=batch_mode,
            metrics_ports=ports_of(ports) if ports else None,
            metrics_token_file=get(options.METRICS_TOKEN_FILE),
            telemetry=Telemetry.of(get),
            control_enabled=get(options.CONTROL_ENABLED),
            web=_web(get),
            control_storage=get(options.CONTROL_STORAGE),
            control_dirs=None if get(options.CONTROL_DIRS) is None else tuple(get(options.CONTROL_DIRS)),
            watermark_interval_ms=get(options.AUTO_WATERMARK_INTERVAL),
            parameters={key: str(value) for key, value in get(options.JOB_PARAMETERS).items()},
        )


def _web(get: Callable[[Option], Any]) -> WebSettings | None:
    if not get(options.WEB_ENABLED):
        return None
    ports = get(options.REST_BIND_PORT)
    port = get(options.REST_PORT)
    return WebSettings(
        address=get(options.REST_BIND_ADDRESS),
        ports=ports_of(ports) if ports else range(port, port + 1),
        password_file=get(options.WEB_PASSWORD_FILE),
        token_file=get(options.WEB_TOKEN_FILE),
    )


def _local_dirs(get: Callable[[Option], Any]) -> list[str]:
    """Return the directories for local stores; empty: any place with space. The files of RocksDB are not put into memory."""
    tmp_dirs = get(options.TMP_DIRS)
    configured: str | None = get(options.LOCAL_DIR) or (tmp_dirs[0] if tmp_dirs else None)
    if get(options.STATE_BACKEND) != "rocksdb":
        return [configured] if configured else []
    return list(get(options.ROCKSDB_DIR) or ()) or [configured or tempfile.gettempdir()]


def _round_target(target_ms: int, policy: CheckpointPolicy | None) -> int:
    """Return the target time of a round: at most the checkpoint interval, because a round carries each checkpoint."""
    return max(_LEAST_TARGET_MS, min(target_ms, policy.interval_ms)) if policy else target_ms


def _poll(timeout_ms: int | None) -> int:
    """Return the poll interval, at most the default. A longer timeout is meant for buffers, and rounds have no such buffers."""
    most: int = options.BUFFER_TIMEOUT.default
    return most if timeout_ms is None or timeout_ms < 0 else min(most, max(1, timeout_ms))


_LEAST_TARGET_MS = 100
