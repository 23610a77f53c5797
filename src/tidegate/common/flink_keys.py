"""Flink's configuration keys that mean nothing on Spark, and those that belong to Spark."""

from __future__ import annotations

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
