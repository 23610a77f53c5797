"""The round in which user code failed, stored beside the checkpoints. A round is a function of its plan, its state files and its
source intervals, so it can be run again (``replay.py``).

Only the latest failure is stored, and it is deleted with the job. It is not part of the protocol: nothing depends on it.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from tidegate.base import secrets
from tidegate.base.errors import NewerFormatError, SnapshotError
from tidegate.base.files import Files, corrupt, verified_copy
from tidegate.checkpoint.locate import locate_own, read_lineage
from tidegate.operators.flow.level import JobSpec
from tidegate.operators.flow.rows import Ack
from tidegate.runtime.engine import RoundPlan
from tidegate.state.refs import StateFile

log = logging.getLogger(__name__)

PATH, FILES = "failed-round", "failed-round.files"
MOST_COPIED = 64 << 20
"""How many bytes of state files are copied beside the plan: files that are in no checkpoint, which the next attempt sweeps."""
VERSION = 2
_MAGIC = b"TGROUND"


@dataclass(frozen=True)
class StoppedClock:
    """A clock that stands still while a round is inspected."""

    ms: int

    def __call__(self) -> int:
        return self.ms


@dataclass(frozen=True)
class FailedRound:
    """``spec``: the program as the workers had it. ``chain``, ``subtask``: the first that failed. ``root``: the directory its state
    files are in. ``modules``: where the program's modules are found."""

    job_name: str
    job_id: str
    spec: JobSpec
    plan: RoundPlan
    chain: int
    subtask: int
    message: str
    root: str
    modules: tuple[str, ...]
    copied: frozenset[str] = frozenset()
    """Paths of state files of which ``FILES`` has a copy."""

    @staticmethod
    def of(job_name: str, job_id: str, spec: JobSpec, plan: RoundPlan, acks: Sequence[Ack]) -> FailedRound | None:
        """Make the record of a failed round. None: no user code failed."""
        failed = [ack for ack in sorted(acks, key=lambda ack: (ack.chain, ack.subtask)) if ack.error is not None]
        if not failed:
            return None
        first = failed[0]
        still = replace(spec, settings=replace(spec.settings, now_ms=StoppedClock(plan.context.now_ms)))
        modules = tuple(dict.fromkeys(path or os.getcwd() for path in sys.path))
        return FailedRound(
            job_name, job_id, still, plan, first.chain, first.subtask, str(first.error), spec.settings.root, modules
        )

    def keep(self, files: Files) -> bool:
        """Store the round, unless the program holds a password (of a connector): the file would show the password. Return whether
        the round is stored."""
        forget(files)
        if secrets.are_in(pickle.dumps(self, 5)):
            log.warning("the failed round is not stored for a replay: the program holds a password")
            return False
        fresh = self._fresh(files)
        copied = fresh if sum(file.size for file in fresh) <= MOST_COPIED else []
        for file in copied:
            name = f"{FILES}/{_name(file)}"
            verified_copy(files, file.path, files, name, size=file.size, hash=file.hash)
        kept = replace(self, copied=frozenset(file.path for file in copied))
        files.replace(PATH, _MAGIC + bytes([VERSION]) + pickle.dumps(kept, 5))
        return True

    def _fresh(self, files: Files) -> list[StateFile]:
        """Return the state files of the round that are in no checkpoint: the next attempt deletes them."""
        latest = read_lineage(files).latest
        known = locate_own(files, latest).metadata.paths() if latest is not None and not latest.directory else set()
        return [file for file in self._files() if not file.root and file.path not in known]

    def _files(self) -> list[StateFile]:
        tasks = (task for level in self.plan.tasks for task in level)
        every = (file for task in tasks for snapshot in task.snapshots.values() for file in snapshot.files())
        return list({(file.root, file.path): file for file in every}.values())

    def found(self, file: StateFile) -> StateFile:
        """Return a file of the plan with its directory."""
        if file.root:
            return file
        if file.path in self.copied:
            return msgspec.structs.replace(file, root=f"{self.root}/{FILES}", path=_name(file))
        return msgspec.structs.replace(file, root=self.root)

    @staticmethod
    def read(files: Files) -> FailedRound:
        content = files.read_if_exists(PATH)
        if content is None:
            raise SnapshotError(
                "The job's directory contains no round that failed in user code.",
                where=files.root,
                found=f"no {PATH} in it",
                cure="give the directory of a failed job (execution.checkpointing.dir, then the job's id), or a "
                "checkpoint with --program FILE",
            )
        head = content[: len(_MAGIC) + 1]
        if head[:-1] != _MAGIC:
            raise corrupt(files.location(PATH), f"a file beginning with {_MAGIC!r}", repr(head))
        if head[-1] != VERSION:
            raise NewerFormatError(
                "This Tidegate cannot read the version of the failed round.",
                where=files.location(PATH),
                found=f"version {head[-1]}; this Tidegate reads {VERSION}",
                cure="use the version of Tidegate that ran the job",
            )
        kept: FailedRound = pickle.loads(content[len(head) :])
        return replace(kept, root=files.root)  # it may have been copied from where it was

    def missing_files(self) -> list[str]:
        """Return the state files that the round needs and that are missing."""
        places = [(Files(file.root), file.path) for file in map(self.found, self._files())]
        return sorted(files.location(path) for files, path in places if not files.exists(path))


def forget(files: Files) -> None:
    """Delete the record of a failed round."""
    files.delete(PATH)
    files.delete_tree(FILES)


def _name(file: StateFile) -> str:
    return file.path.rpartition("/")[2]
