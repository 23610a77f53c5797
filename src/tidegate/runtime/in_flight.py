"""Records in flight of the restored checkpoint: whether they are wanted, and whether the program can take them."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from tidegate.base.counts import count
from tidegate.base.errors import RestoreError
from tidegate.checkpoint.metadata import CheckpointMetadata, OperatorState
from tidegate.graph.plan import JobGraph
from tidegate.runtime.settings import JobSettings
from tidegate.state.snapshot import IN_FLIGHT, SPLITS, ListPart, OperatorSnapshot

log = logging.getLogger(__name__)


def restored(metadata: CheckpointMetadata, where: str, settings: JobSettings) -> CheckpointMetadata:
    """Return the checkpoint as the job restores it: without its records in flight, if the user configured this."""
    if not metadata.is_unaligned:
        return metadata
    if metadata.checkpoint_id == settings.ignored_in_flight_of:
        log.warning("%s: %s in flight discarded, as configured", where, count(metadata.in_flight_records, "record"))
        return msgspec.structs.replace(metadata, operators=[_without(operator) for operator in metadata.operators])
    if settings.batch_mode:
        raise RestoreError(
            "A job in batch mode cannot restore records in flight.",
            where=where,
            found=f"{count(metadata.in_flight_records, 'record')} in flight",
            cure="restore it in streaming mode and take a savepoint, which contains no records in flight",
        )
    return metadata


def _without(operator: OperatorState) -> OperatorState:
    return msgspec.structs.replace(operator, subtasks=[_emptied(snapshot) for snapshot in operator.subtasks])


def _emptied(snapshot: OperatorSnapshot) -> OperatorSnapshot:
    """Discard the records in flight. Event time no longer waits for splits whose last records are discarded."""
    part = snapshot.in_flight
    if part is None:
        return snapshot
    ended = {log.split for log in part.logs if log.ends}
    held = snapshot.parts.get(SPLITS)
    rest = snapshot.without(IN_FLIGHT)
    if not ended or not isinstance(held, ListPart):
        return rest
    return rest.with_part(
        SPLITS, ListPart.of(held.redistribution, [row for row in held.values() if row[0] not in ended])
    )


def check_channels(graph: JobGraph, states: Mapping[str, OperatorState], where: str) -> None:
    """Raise if records in flight came from an input that the operator no longer has."""
    known = {chain.head.operator.uid_hash: {edge.name for edge in chain.inputs} for chain in graph.chains}
    names = {operator.uid_hash: operator.name for operator in graph.operators}
    for uid_hash, state in states.items():
        channels = {name for part in state.in_flight() for name in part.channels}
        if channels - known.get(uid_hash, set()):
            raise RestoreError(
                "Records in flight cannot be restored: the program has other inputs.",
                where=f"{where}, operator {names.get(uid_hash, state.name)!r}",
                found=f"{count(sum(part.records for part in state.in_flight()), 'record')} in flight, some from an input that "
                "does not exist now",
                cure="restore with the previous program and take a savepoint, which contains no records in flight; or set "
                "execution.checkpointing.recover-without-channel-state.checkpoint-id to this checkpoint's id to discard them",
            )
