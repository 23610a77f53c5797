"""The registry of configuration options: every key Tidegate knows, its older spellings, type, default and meaning."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidegate.base.errors import ConfigurationError
from tidegate.common.option_types import (
    BOOL,
    DURATION,
    FLOAT,
    INT,
    LIST,
    MAP,
    MEMORY,
    PATHS,
    PORTS,
    TEXT,
    OptionType,
    choice,
)

Check = Callable[[Any], str | None]
"""Returns the rule that a parsed value breaks, or None."""


@dataclass(frozen=True)
class Option:
    """One configuration key. ``default`` is a parsed value (durations in ms); None means not set.

    ``note``: this version accepts the option without effect, and warns once if it is set. ``inert``: the values without effect;
    None: all values.
    """

    key: str
    type: OptionType
    default: Any
    doc: str
    aliases: tuple[str, ...] = ()
    check: Check | None = None
    note: str | None = None
    inert: Callable[[Any], bool] | None = None

    def parse(self, raw: Any, spelled: str | None = None) -> Any:
        """Return the typed value, or raise ConfigurationError. ``spelled``: the key as the user wrote it."""
        key = spelled or self.key
        try:
            value = self.type.parse(raw)
        except ValueError as error:
            raise ConfigurationError(
                f"'{key}' must be {self.type.name}",
                found=f"{raw!r} ({error})",
                cure=f"for example {key}: {self.type.example}",
            ) from None
        broken = self.check(value) if self.check else None
        if broken:
            raise ConfigurationError(f"'{key}' {broken}", found=repr(raw), cure=self.doc)
        return value


REGISTRY: dict[str, Option] = {}
"""Canonical key -> option."""


def _option(
    key: str,
    type_: OptionType,
    default: Any,
    doc: str,
    *aliases: str,
    check: Check | None = None,
    note: str | None = None,
    inert: Callable[[Any], bool] | None = None,
) -> Option:
    option = Option(key, type_, default, doc, aliases, check, note, inert)
    REGISTRY[key] = option
    return option


def _at_least(least: int, unit: str = "") -> Check:
    text = f"must be at least {least:,}{unit}"
    return lambda value: text if value < least else None


def _between(least: int, most: int) -> Check:
    return lambda value: None if least <= value <= most else f"must lie between {least:,} and {most:,}"


def _collector(value: str) -> str | None:
    fits = re.fullmatch(r"https?://[^\s/@]+(/\S*)?", value)
    return None if fits else "must be an address such as http://127.0.0.1:4318, without a user or a password"


def _job_id(value: str) -> str | None:
    fits = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", value)
    return None if fits else "must be 1 to 64 letters, digits, '_', '.' or '-', because it names a directory"


# -- program and execution --------------------------------------------------------------------------

PARALLELISM = _option(
    "parallelism.default", INT, None, "Subtasks of operators that set none themselves.", check=_between(1, 1 << 15)
)
MAX_PARALLELISM = _option(
    "pipeline.max-parallelism",
    INT,
    None,
    "Number of key groups, the upper limit of rescaling.",
    check=_between(1, 1 << 15),
)
JOB_NAME = _option("pipeline.name", TEXT, None, "Name of the job.", "pipeline.job-name")
CHAINING = _option(
    "pipeline.operator-chaining.enabled", BOOL, True, "Chain operators into one loop.", "pipeline.operator-chaining"
)
CHAINING_MIXED_MAX = _option(
    "pipeline.operator-chaining.chain-operators-with-different-max-parallelism",
    BOOL,
    True,
    "Whether operators of different maximum parallelism may be chained.",
    note="false runs as true",
    inert=lambda value: not value,
)
AUTO_WATERMARK_INTERVAL = _option(
    "pipeline.auto-watermark-interval",
    DURATION,
    200,
    "How often watermark generators emit while no record comes; with records, they emit after every batch. 0: only on_event emits.",
)
METRICS_PORT = _option(
    "metrics.reporter.prom.port",
    PORTS,
    None,
    "Port of the loopback address where Prometheus reads the job's metrics (/metrics), or a range: its first free port.",
)
METRICS_TOKEN_FILE = _option(
    "metrics.reporter.prom.token-file",
    TEXT,
    None,
    "A file with a token that each request at metrics.reporter.prom.port must carry (Authorization: Bearer TOKEN).",
)
OTEL_METRICS = _option(
    "metrics.reporter.otel.exporter.endpoint",
    TEXT,
    None,
    "Address of an OpenTelemetry collector (OTLP over HTTP) that gets the metrics: http://HOST:4318. Needs tidegate[otel]. "
    "OTEL_EXPORTER_OTLP_ENDPOINT in the driver's environment does the same.",
    check=_collector,
)
OTEL_PROTOCOL = _option(
    "metrics.reporter.otel.exporter.protocol",
    choice(["HTTP"], {"http/protobuf": "HTTP"}),
    "HTTP",
    "The protocol for metrics. There is no gRPC: collectors take HTTP at port 4318.",
)
OTEL_INTERVAL = _option(
    "metrics.reporter.otel.interval", DURATION, 10_000, "How often metrics are sent.", check=_at_least(100, " ms")
)
OTEL_TRACES = _option(
    "traces.reporter.otel.exporter.endpoint",
    TEXT,
    None,
    "Address of an OpenTelemetry collector that gets each checkpoint as a trace, with its steps and subtasks as spans.",
    check=_collector,
)
OTEL_TRACES_PROTOCOL = _option(
    "traces.reporter.otel.exporter.protocol",
    choice(["HTTP"], {"http/protobuf": "HTTP"}),
    "HTTP",
    "The protocol for traces, as for metrics.",
)
OTEL_ROUNDS = _option("traces.reporter.otel.rounds", BOOL, False, "Rounds are traces too, with where their time went.")
OTEL_SERVICE = _option(
    "metrics.reporter.otel.service.name",
    TEXT,
    None,
    "service.name in OpenTelemetry. Not set: OTEL_SERVICE_NAME, or tidegate.",
)
OBJECT_REUSE = _option(
    "pipeline.object-reuse", BOOL, False, "Never copy records: the program promises not to change them."
)
AUTO_UIDS = _option("pipeline.auto-generate-uids", BOOL, True, "false: every operator must have a uid of its own.")
JOB_PARAMETERS = _option("pipeline.global-job-parameters", MAP, {}, "Read by RuntimeContext.get_job_parameter.")
RUNTIME_MODE = _option(
    "execution.runtime-mode",
    choice(["STREAMING", "BATCH", "AUTOMATIC"]),
    "STREAMING",
    "BATCH: rolling aggregates emit the last result only; needs bounded sources.",
)
BUFFER_TIMEOUT = _option(
    "execution.buffer-timeout.interval",
    DURATION,
    100,
    "The longest time a record waits for a round.",
    "execution.buffer-timeout",
)
BUFFER_TIMEOUT_ENABLED = _option(
    "execution.buffer-timeout.enabled", BOOL, True, "false: rounds are as large as the target time allows."
)
TARGET = _option(
    "execution.target",
    TEXT,
    "spark",
    "Name of the executor (entry point group tidegate.executors): spark, or test (in this process, for tests only).",
)
TMP_DIRS = _option("io.tmp.dirs", LIST, None, "Where local temporary files go; the system's directory if not set.")
LATENCY_INTERVAL = _option(
    "metrics.latency.interval", DURATION, 0, "Latency markers.", note="there are no latency markers"
)
CANCEL_INTERVAL = _option(
    "task.cancellation.interval", DURATION, 30_000, "Pause between two attempts to cancel.", note="Spark cancels tasks"
)
CANCEL_TIMEOUT = _option(
    "task.cancellation.timeout", DURATION, 180_000, "When cancelling gives up.", note="Spark cancels tasks"
)

# -- checkpoints ------------------------------------------------------------------------------------

CHECKPOINT_INTERVAL = _option(
    "execution.checkpointing.interval",
    DURATION,
    None,
    "Time between two checkpoints; not set: no checkpoints. At least 10 ms.",
    check=_at_least(10, " ms"),
)
CHECKPOINT_MODE = _option(
    "execution.checkpointing.mode",
    choice(["EXACTLY_ONCE", "AT_LEAST_ONCE"]),
    "EXACTLY_ONCE",
    "EXACTLY_ONCE: output waits for its checkpoint. AT_LEAST_ONCE: output is committed with its round, so a failure repeats "
    "the output after the latest checkpoint.",
    "execution.checkpointing.consistency-mode",
)
CHECKPOINT_TIMEOUT = _option(
    "execution.checkpointing.timeout",
    DURATION,
    600_000,
    "A checkpoint that takes longer is aborted. At least 10 ms.",
    check=_at_least(10, " ms"),
)
CHECKPOINT_MIN_PAUSE = _option(
    "execution.checkpointing.min-pause",
    DURATION,
    0,
    "Least time from the end of a checkpoint to the next trigger.",
)
CHECKPOINT_CONCURRENT = _option(
    "execution.checkpointing.max-concurrent-checkpoints",
    INT,
    1,
    "Most concurrent checkpoints; a minimum pause makes it 1.",
    check=_at_least(1),
)
CHECKPOINT_TOLERABLE = _option(
    "execution.checkpointing.tolerable-failed-checkpoints",
    INT,
    0,
    "Failed checkpoints in a row before the job fails.",
    check=_at_least(0),
)
CHECKPOINT_RETAINED = _option(
    "execution.checkpointing.num-retained",
    INT,
    1,
    "Completed checkpoints to keep.",
    "state.checkpoints.num-retained",
    check=_at_least(1),
)
CHECKPOINT_RETENTION = _option(
    "execution.checkpointing.externalized-checkpoint-retention",
    choice(["NO_EXTERNALIZED_CHECKPOINTS", "DELETE_ON_CANCELLATION", "RETAIN_ON_CANCELLATION"]),
    "NO_EXTERNALIZED_CHECKPOINTS",
    "Whether checkpoints stay when the job is cancelled.",
)
CHECKPOINT_DIR = _option(
    "execution.checkpointing.dir",
    TEXT,
    None,
    "Directory for checkpoints: any fsspec address.",
    "state.checkpoints.dir",
)
SAVEPOINT_DIR = _option(
    "execution.checkpointing.savepoint-dir",
    TEXT,
    None,
    "Directory for savepoints that name no other.",
    "state.savepoints.dir",
    "savepoints.state.backend.fs.dir",
)
SAVEPOINT_THREADS = _option(
    "tidegate.savepoint.transfer-threads",
    INT,
    4,
    "State files that are copied into a savepoint at once.",
    check=_at_least(1),
)
CHECKPOINT_STORAGE = _option(
    "execution.checkpointing.storage",
    choice(["filesystem", "jobmanager"], {"file-system": "filesystem", "job-manager": "jobmanager"}),
    "filesystem",
    "Where checkpoints are kept. jobmanager: in the memory of the driver's host, unless there is a directory, and only as much as "
    "tidegate.checkpoint.max-state-size; they end with the driver, unless the job was interrupted or another job restores them.",
    "state.checkpoint-storage",
)
CHECKPOINT_AFTER_FINISH = _option(
    "execution.checkpointing.checkpoints-after-tasks-finish",
    BOOL,
    True,
    "Checkpoints continue after a source has ended, and a final checkpoint commits the last output. false, as Flink before 1.15: "
    "no checkpoint is taken after a source has ended, and output after the last checkpoint is never committed.",
    "execution.checkpointing.checkpoints-after-tasks-finish.enabled",
)
UNALIGNED = _option(
    "execution.checkpointing.unaligned.enabled",
    BOOL,
    False,
    "A checkpoint does not wait for the records before it: it stores the records that subtasks have received and not processed. "
    "Needs EXACTLY_ONCE and one concurrent checkpoint.",
    "execution.checkpointing.unaligned",
)
FORCE_UNALIGNED = _option(
    "execution.checkpointing.unaligned.forced",
    BOOL,
    False,
    "With unaligned checkpoints: also records of forward, rescale and custom connections may be in flight. Such a checkpoint "
    "restores with the same parallelism only. Broadcast records are never in flight.",
)
ALIGNED_TIMEOUT = _option(
    "execution.checkpointing.aligned-checkpoint-timeout",
    DURATION,
    0,
    "With unaligned checkpoints: how long a due checkpoint waits for the records before it, until it becomes unaligned. "
    "0: it is unaligned from the start.",
    "execution.checkpointing.alignment-timeout",
    check=_at_least(0),
)
IGNORED_IN_FLIGHT = _option(
    "execution.checkpointing.recover-without-channel-state.checkpoint-id",
    INT,
    -1,
    "If the checkpoint with this id is restored, its records in flight are dropped. -1: no checkpoint.",
)
INCREMENTAL = _option(
    "execution.checkpointing.incremental",
    BOOL,
    True,
    "A checkpoint stores only changes and shares files with earlier checkpoints. false: each checkpoint stores the whole state in "
    "its own files.",
    "state.backend.incremental",
)
CHANGELOG = _option(
    "state.changelog.enabled",
    BOOL,
    False,
    "Checkpoints are a base and the changes of every round since; the base is rewritten at its own interval.",
    "state.backend.changelog.enabled",
)
MATERIALIZE_INTERVAL = _option(
    "state.changelog.periodic-materialize.interval",
    DURATION,
    600_000,
    "With the changelog: how often the state becomes a new base, and older changes are deleted. 0: never; small files are "
    "merged in any case.",
    "state.backend.changelog.periodic-materialize.interval",
)
COMPRESSION = _option(
    "execution.checkpointing.snapshot-compression",
    BOOL,
    False,
    "Compress files of keyed and operator state (zlib): smaller files, more CPU time. Both kinds of files can be read with "
    "either setting.",
)
RECOVERY_PATH = _option(
    "execution.state-recovery.path",
    TEXT,
    None,
    "Checkpoint or savepoint to start from.",
    "execution.savepoint.path",
)
RECOVERY_IGNORE_UNCLAIMED = _option(
    "execution.state-recovery.ignore-unclaimed-state",
    BOOL,
    False,
    "Start although the snapshot contains state of operators that the program no longer has.",
    "execution.savepoint.ignore-unclaimed-state",
)
RECOVERY_CLAIM = _option(
    "execution.state-recovery.claim-mode",
    choice(["NO_CLAIM", "CLAIM"]),
    "NO_CLAIM",
    "Whether the job owns the snapshot that it starts from. CLAIM deletes it when the job's own checkpoints have replaced it, "
    "NO_CLAIM never touches it. With either, the job does not need the snapshot after its first checkpoint.",
    "execution.savepoint-restore-mode",
)
STATE_BACKEND = _option(
    "state.backend.type", choice(["hashmap", "rocksdb"]), "hashmap", "Where running state lives.", "state.backend"
)

# -- the rocksdb backend ----------------------------------------------------------------------------

ROCKSDB_DIR = _option(
    "state.backend.rocksdb.localdir",
    PATHS,
    None,
    "Where the rocksdb backend stores its files; subtasks are distributed over several directories, separated by commas. "
    "tidegate.state.local-dir, io.tmp.dirs or the system's directory for temporary files if not set.",
)
ROCKSDB_MANAGED = _option(
    "state.backend.rocksdb.memory.managed",
    BOOL,
    True,
    "All stores of a worker share memory.fixed-per-slot. false: each has block.cache-size and its own write buffers.",
)
ROCKSDB_MEMORY = _option(
    "state.backend.rocksdb.memory.fixed-per-slot",
    MEMORY,
    128 << 20,
    "Memory for block cache and write buffers of all stores of a worker.",
    check=_at_least(1 << 20, " bytes"),
)
ROCKSDB_WRITE_BUFFER_RATIO = _option(
    "state.backend.rocksdb.memory.write-buffer-ratio",
    FLOAT,
    0.5,
    "The share of that memory which write buffers may take.",
    check=lambda value: None if 0 < value < 1 else "must lie between 0 and 1, both excluded",
)
ROCKSDB_PARTITIONED_INDEX = _option(
    "state.backend.rocksdb.memory.partitioned-index-filters",
    BOOL,
    False,
    "Indexes and filters in parts, of which the cache holds only those in use: for caches too small for all of them.",
)
ROCKSDB_CACHE_SIZE = _option(
    "state.backend.rocksdb.block.cache-size",
    MEMORY,
    8 << 20,
    "The block cache of each store, without managed memory.",
    check=_at_least(64 << 10, " bytes"),
)
ROCKSDB_BLOCK_SIZE = _option(
    "state.backend.rocksdb.block.blocksize",
    MEMORY,
    4 << 10,
    "Bytes that are read, and unpacked, together.",
    check=_between(512, 64 << 20),
)
ROCKSDB_WRITE_BUFFER_SIZE = _option(
    "state.backend.rocksdb.writebuffer.size",
    MEMORY,
    64 << 20,
    "Size of a write buffer in memory, after which a file is written.",
    check=_at_least(64 << 10, " bytes"),
)
ROCKSDB_WRITE_BUFFER_COUNT = _option(
    "state.backend.rocksdb.writebuffer.count",
    INT,
    2,
    "Write buffers of a store, those being written to files included.",
    check=_between(2, 64),
)
ROCKSDB_BUFFERS_TO_MERGE = _option(
    "state.backend.rocksdb.writebuffer.number-to-merge",
    INT,
    1,
    "Number of full write buffers that become one file; less than writebuffer.count.",
    check=_between(1, 64),
)
ROCKSDB_METADATA_BLOCK_SIZE = _option(
    "state.backend.rocksdb.block.metadata-blocksize",
    MEMORY,
    4 << 10,
    "Size of the parts of indexes and filters, with memory.partitioned-index-filters.",
    check=_between(512, 64 << 20),
)
ROCKSDB_BLOOM_FILTER = _option(
    "state.backend.rocksdb.use-bloom-filter",
    BOOL,
    True,
    "Add filters to files, so that lookups of missing keys are fast.",
)
ROCKSDB_BLOOM_BITS = _option(
    "state.backend.rocksdb.bloom-filter.bits-per-key",
    FLOAT,
    10.0,
    "Size of that filter.",
    check=lambda value: None if 1 <= value <= 100 else "must lie between 1 and 100",
)
ROCKSDB_COMPACTION_STYLE = _option(
    "state.backend.rocksdb.compaction.style",
    choice(["LEVEL", "UNIVERSAL"]),
    "UNIVERSAL",
    "How files are merged. Stores write a small file for each round that reads them: UNIVERSAL merges those with the least work, "
    "LEVEL needs less space.",
)
ROCKSDB_TARGET_FILE_SIZE = _option(
    "state.backend.rocksdb.compaction.level.target-file-size-base",
    MEMORY,
    64 << 20,
    "Size of the files of the first level.",
    check=_at_least(64 << 10, " bytes"),
)
ROCKSDB_LEVEL_BASE = _option(
    "state.backend.rocksdb.compaction.level.max-size-level-base",
    MEMORY,
    256 << 20,
    "Size of the first level.",
    check=_at_least(64 << 10, " bytes"),
)
ROCKSDB_DYNAMIC_LEVELS = _option(
    "state.backend.rocksdb.compaction.level.use-dynamic-size",
    BOOL,
    False,
    "Size levels by the last one, so that outdated entries take less space. For LEVEL.",
)
ROCKSDB_COMPRESSION = _option(
    "state.backend.rocksdb.compression.per.level",
    choice(
        ["NO_COMPRESSION", "SNAPPY_COMPRESSION", "LZ4_COMPRESSION", "ZSTD_COMPRESSION"],
    ),
    "SNAPPY_COMPRESSION",
    "Compression of blocks, the same on all levels.",
)
ROCKSDB_THREADS = _option(
    "state.backend.rocksdb.thread.num",
    INT,
    2,
    "Threads that write and merge files in the background.",
    check=_between(1, 256),
)
TRANSFER_THREADS = _option(
    "state.backend.rocksdb.checkpoint.transfer.thread.num",
    INT,
    4,
    "State files that a checkpoint stores at once, with any backend, if checkpoints store them (tidegate.state.upload).",
    check=_between(1, 256),
)
ROCKSDB_PREDEFINED = _option(
    "state.backend.rocksdb.predefined-options",
    choice(["DEFAULT", "SPINNING_DISK_OPTIMIZED", "SPINNING_DISK_OPTIMIZED_HIGH_MEM", "FLASH_SSD_OPTIMIZED"]),
    "DEFAULT",
    "Settings for a kind of disk. Single keys that are set take precedence.",
)
ROCKSDB_OPEN_FILES = _option(
    "state.backend.rocksdb.files.open",
    INT,
    -1,
    "Files a store has open at once; -1: all.",
    check=lambda value: None if value == -1 or value >= 16 else "must be -1 or at least 16",
)

# -- restarts ---------------------------------------------------------------------------------------

RESTART_TYPE = _option(
    "restart-strategy.type",
    choice(
        ["none", "fixed-delay", "failure-rate", "exponential-delay"],
        {
            "off": "none",
            "disable": "none",
            "fixeddelay": "fixed-delay",
            "failurerate": "failure-rate",
            "exponentialdelay": "exponential-delay",
        },
    ),
    None,
    "What happens after a failure. Not set: exponential-delay with checkpoints, none without.",
    "restart-strategy",
)
FIXED_ATTEMPTS = _option("restart-strategy.fixed-delay.attempts", INT, 1, "Restarts.", check=_at_least(0))
FIXED_DELAY = _option("restart-strategy.fixed-delay.delay", DURATION, 1_000, "Pause before a restart.")
RATE_FAILURES = _option(
    "restart-strategy.failure-rate.max-failures-per-interval",
    INT,
    1,
    "Failures in the interval.",
    check=_at_least(0),
)
RATE_INTERVAL = _option("restart-strategy.failure-rate.failure-rate-interval", DURATION, 60_000, "The interval.")
RATE_DELAY = _option("restart-strategy.failure-rate.delay", DURATION, 1_000, "Pause before a restart.")
EXPONENTIAL_INITIAL = _option(
    "restart-strategy.exponential-delay.initial-backoff", DURATION, 1_000, "First pause.", check=_at_least(1, " ms")
)
EXPONENTIAL_MAX = _option("restart-strategy.exponential-delay.max-backoff", DURATION, 60_000, "Longest pause.")
EXPONENTIAL_MULTIPLIER = _option(
    "restart-strategy.exponential-delay.backoff-multiplier",
    FLOAT,
    1.5,
    "Growth of the pause.",
    check=lambda value: "must be at least 1" if value < 1 else None,
)
EXPONENTIAL_RESET = _option(
    "restart-strategy.exponential-delay.reset-backoff-threshold",
    DURATION,
    3_600_000,
    "Time without a failure after which the pause is reset.",
)
EXPONENTIAL_JITTER = _option(
    "restart-strategy.exponential-delay.jitter-factor",
    FLOAT,
    0.1,
    "Random share of the pause, between 0 and 1.",
    check=lambda value: None if 0 <= value <= 1 else "must lie between 0 and 1",
)
EXPONENTIAL_ATTEMPTS = _option(
    "restart-strategy.exponential-delay.attempts-before-reset-backoff",
    INT,
    (1 << 31) - 1,
    "Restarts before the job fails.",
    check=_at_least(0),
)
SAME_FAILURE_LIMIT = _option(
    "tidegate.restart.same-failure-limit",
    INT,
    None,
    "The job fails when the same failure of user code has occurred this often without a completed checkpoint in between: the same "
    "operator, line, record and error. Outages of other systems do not count. Not set: 3, or one more than the failures that a "
    "configured restart strategy tolerates. 0: no limit.",
)
RESTART_COVERS_START = _option(
    "tidegate.restart.covers-start",
    BOOL,
    False,
    "The restart strategy also covers the start of the job: while a broker, a database or storage does not answer, the start is "
    "retried. Off: the start fails at once. `tidegate run --supervise` sets it when it restarts a driver.",
)

# -- Tidegate's own ---------------------------------------------------------------------------------

JOB_ID = _option(
    "tidegate.job-id",
    TEXT,
    None,
    "A fixed job id: a restarted program with this id resumes the latest completed checkpoint of its directory.",
    check=_job_id,
)
START_ANEW = _option(
    "tidegate.start-anew",
    BOOL,
    False,
    "Let a cancelled job, whose checkpoints are deleted, start with empty state although its output exists. "
    "It never skips an existing checkpoint.",
)
RESTORE_PREVIOUS = _option(
    "tidegate.restore-previous",
    BOOL,
    False,
    "If the latest checkpoint is damaged at the start of the job, continue from the previous one. All its files are read first. "
    "Refused if output of the damaged checkpoint was or may have been committed.",
)
SIGNING_KEY_FILE = _option(
    "tidegate.checkpoint.signing-key-file",
    TEXT,
    None,
    "A file with a secret of at least 32 bytes, readable by its owner only. The driver signs every checkpoint and savepoint with "
    "it, and restores only snapshots with its signature.",
)
ACCEPT_UNSIGNED = _option(
    "tidegate.checkpoint.accept-unsigned",
    BOOL,
    False,
    "Restore a snapshot that has no signature though tidegate.checkpoint.signing-key-file is set: for the first start with a key.",
)
ALLOW_PICKLE = _option(
    "tidegate.state.allow-pickle",
    BOOL,
    True,
    "Whether keys and state may be pickled. With false a state without a declared type is refused, and a snapshot is never "
    "unpickled (tidegate run --no-pickle).",
)
REQUIRE = _option(
    "tidegate.require-guarantee",
    choice(["exactly-once", "at-least-once", "at-most-once"]),
    None,
    "Refuse a job with a weaker guarantee for its output before it starts, with the reason (tidegate run --require).",
)
ROUND_TARGET = _option(
    "tidegate.round.target-time", DURATION, 1_000, "How long a round should take.", check=_at_least(10, " ms")
)
ROUND_MAX_RECORDS = _option(
    "tidegate.round.max-records",
    INT,
    None,
    "Most units (records, bytes) a source reads a round.",
    check=_at_least(1),
)
CHUNK_RECORDS = _option("tidegate.chunk.records", INT, 4096, "Records in one shuffle row.", check=_at_least(1))
INLINE_FUNCTIONS = _option(
    "tidegate.functions.inline",
    BOOL,
    True,
    "Write small functions into the generated loops instead of calling them.",
)
FAST_JSON = _option(
    "tidegate.json.fast",
    BOOL,
    True,
    "Answer json.loads and json.dumps of user functions by faster code where the result is the same.",
)
JSON_FIELDS = _option(
    "tidegate.json.only-used-fields",
    BOOL,
    True,
    "Where json.loads is answered by faster code, decode only the fields that the functions use, if nothing else sees the value.",
)
HEAVY_KEYS = _option(
    "tidegate.metrics.heavy-keys",
    choice(["show", "hide", "off"]),
    "show",
    "Whether the heaviest keys of keyed operators are looked for, in a few keys of each chunk. hide: pages and metrics show a hash "
    "instead of the key, for keys that are secrets or personal data.",
)
TYPES_FROM_ANNOTATIONS = _option(
    "tidegate.types.from-annotations",
    BOOL,
    False,
    "Take the type of a function's results, where the program declares none, from the function's return annotation. The annotation "
    "then counts as a declaration: wrong values are refused, and state and printed records have the form of the type.",
)
SESSIONS_IN_MEMORY = _option(
    "tidegate.windows.sessions-in-memory",
    BOOL,
    True,
    "Merge event-time session windows in memory, and write them to state once in a round. The stored form is the same.",
)
LOCAL_DIR = _option(
    "tidegate.state.local-dir",
    TEXT,
    None,
    "Directory of the local stores; io.tmp.dirs if not set.",
    "state.backend.local-dir",
)
UPLOAD = _option(
    "tidegate.state.upload",
    choice(["auto", "with-round", "behind"]),
    "auto",
    "When state files are stored. with-round: the round waits for storage. behind: later, with the checkpoint, from the directory "
    "of local stores; this needs tasks and driver on one host (a local master). auto: behind if that holds and storage is "
    "remote (s3, hdfs ...), else with-round.",
)
MAP_SIZE = _option(
    "tidegate.state.map-size", MEMORY, 64 << 30, "Largest size of one local store.", check=_at_least(1 << 20, " bytes")
)
CACHE_SIZE = _option(
    "tidegate.state.cache-size",
    MEMORY,
    256 << 20,
    "About how much memory the cached state of a keyed operator may take in each subtask; recently used entries stay.",
    check=_at_least(0, " bytes"),
)
MAX_STATE_SIZE = _option(
    "tidegate.checkpoint.max-state-size",
    MEMORY,
    5 << 20,
    "Most state a subtask of an operator may have if execution.checkpointing.storage is jobmanager.",
    check=_at_least(1, " bytes"),
)
FILE_PERMISSIONS = _option(
    "tidegate.checkpoint.file-permissions",
    choice(["owner", "group"]),
    "owner",
    "Who may read checkpoints, savepoints, history and failed rounds on a local or mounted file system. owner: the user alone. "
    "group: the group of the directory too, which executors that run as another user need.",
)
LEASE_TIMEOUT = _option(
    "tidegate.checkpoint.lease-timeout",
    DURATION,
    30_000,
    "Time without a heartbeat after which another attempt may take the job's directory.",
    check=_at_least(100, " ms"),
)
COMMIT_ATTEMPTS = _option(
    "tidegate.commit.max-attempts", INT, 10, "Attempts of a sink's commit before the job fails.", check=_at_least(1)
)
COMMIT_BACKOFF = _option("tidegate.commit.backoff", DURATION, 100, "First pause between two attempts of a commit.")

CONTROL_ENABLED = _option(
    "tidegate.control.enabled",
    BOOL,
    True,
    "The driver registers its jobs in TIDEGATE_HOME and takes commands for them (tidegate list, cancel ...), on loopback only.",
)
CONTROL_DIRS = _option(
    "tidegate.control.allowed-dirs",
    LIST,
    None,
    "Commands may name only these directories and their subdirectories for savepoints, and the configured one. Not set: any "
    "directory that the user of the job may write to.",
)
CONTROL_STORAGE = _option(
    "tidegate.control.in-checkpoint-dir",
    choice(["auto", "always", "never"]),
    "auto",
    "Whether the driver also takes commands as files in the job's directory, for commands from other hosts: auto on remote storage "
    "and for drivers in containers of a cluster. It reads one small file a second.",
)

WEB_ENABLED = _option(
    "tidegate.web.enabled",
    BOOL,
    False,
    "The driver shows its jobs on a page (tidegate run --web, create_local_environment_with_web_ui). tidegate web shows all jobs.",
)
REST_PORT = _option(
    "rest.port",
    INT,
    8081,
    "Port of the driver's page, if rest.bind-port is not set. 0: any free port.",
    check=_at_least(0),
)
REST_BIND_PORT = _option("rest.bind-port", PORTS, None, "Port of the driver's page, or a range: its first free port.")
REST_BIND_ADDRESS = _option(
    "rest.bind-address",
    TEXT,
    "127.0.0.1",
    "Address at which the driver's page listens. One beyond loopback needs tidegate.web.password-file or .token-file.",
)
WEB_PASSWORD_FILE = _option(
    "tidegate.web.password-file", TEXT, None, "A file with a password for the driver's page, readable by you alone."
)
WEB_TOKEN_FILE = _option(
    "tidegate.web.token-file",
    TEXT,
    None,
    "A file with a token for programs that ask the driver's page (Authorization: Bearer TOKEN), readable by you alone.",
)

SPARK_LOG_LEVEL = _option(
    "tidegate.spark.log-level",
    choice(["ERROR", "WARN", "INFO", "DEBUG", "OFF"]),
    "ERROR",
    "Log level of a Spark session that Tidegate creates.",
)

WORKER_LOG_LEVEL = _option(
    "tidegate.worker.log-level",
    choice(["DEBUG", "INFO", "WARNING", "ERROR", "OFF"], {"WARN": "WARNING"}),
    "INFO",
    "Log lines of functions in Spark's workers from this level on go to the worker's stderr, with job, operators and subtask.",
)

# -- dependencies of a program in the workers ----------------------------------------------------

PYTHON_FILES = _option(
    "python.files",
    TEXT,
    None,
    "Python files, packages, directories, zip, whl and egg files that functions import; separated by commas.",
)
PYTHON_ARCHIVES = _option(
    "python.archives",
    TEXT,
    None,
    "Zip files that are unpacked where functions run, into `name` of `path#name`, else the file's name; separated by commas.",
)
PYTHON_REQUIREMENTS = _option(
    "python.requirements",
    TEXT,
    None,
    "A requirements file that pip installs once a host, or `file#directory` with a directory of packages to install from.",
)
PYTHON_EXECUTABLE = _option(
    "python.executable",
    TEXT,
    None,
    "The Python of Spark's workers, for example one in an archive: `env.zip/bin/python`. Only used if Tidegate starts Spark.",
)
CACHED_FILES = _option(
    "pipeline.cached-files",
    LIST,
    None,
    "Files that functions find by name: `name:a,path:/x;name:b,path:/y,executable:true`.",
)

JARS = _option(
    "pipeline.jars",
    LIST,
    None,
    "Jars of a PyFlink program. Accepted without effect, since no Java code runs; a notice names the built-in replacement.",
)
CLASSPATHS = _option("pipeline.classpaths", LIST, None, "As pipeline.jars.")

SPELLINGS: dict[str, Option] = {
    spelling: option for option in REGISTRY.values() for spelling in (option.key, *option.aliases)
}
"""Every spelling, old and new -> option."""
