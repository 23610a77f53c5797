"""The round in which user code failed, kept beside the checkpoints: a round is a function of its plan, its state files and its
source intervals, so it can be run again (``replay.py``).

Only the latest failure is kept, and it goes with the job. It is no part of the protocol: nothing depends on whether it is there.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tidegate.common import secrets
from tidegate.common.errors import NewerFormatError, SnapshotError
from tidegate.common.files import Files, corrupt
from tidegate.operators.level import JobSpec
from tidegate.operators.rows import Ack
from tidegate.runtime.engine import RoundPlan

log = logging.getLogger(__name__)

PATH = "failed-round"
VERSION = 1
_MAGIC = b"TGROUND"


@dataclass(frozen=True)
class StoppedClock:
    """Processing time stands still while a round is looked at."""

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

    @staticmethod
    def of(job_name: str, job_id: str, spec: JobSpec, plan: RoundPlan, acks: Sequence[Ack]) -> FailedRound | None:
        """None: no user code failed."""
        failed = [ack for ack in sorted(acks, key=lambda ack: (ack.chain, ack.subtask)) if ack.error is not None]
        if not failed:
            return None
        first = failed[0]
        still = replace(spec, settings=replace(spec.settings, now_ms=StoppedClock(plan.context.now_ms)))
        modules = tuple(dict.fromkeys(path or os.getcwd() for path in sys.path))
        return FailedRound(
            job_name, job_id, still, plan, first.chain, first.subtask, str(first.error), spec.settings.root, modules
        )

    def keep(self, files: Files) -> None:
        """Not if the program holds a password (of a connector): the file would show it."""
        content = pickle.dumps(self, 5)
        if secrets.are_in(content):
            log.warning("the round that failed is not kept to be run again: the program holds a password")
            return files.delete(PATH)
        files.replace(PATH, _MAGIC + bytes([VERSION]) + content)

    @staticmethod
    def read(files: Files) -> FailedRound:
        content = files.read_if_exists(PATH)
        if content is None:
            raise SnapshotError(
                "A round that failed in user code leaves its plan in the job's directory.",
                where=files.root,
                found=f"no {PATH} in it",
                cure="give the directory of a job that has failed (execution.checkpointing.dir, then the job's id), or a "
                "checkpoint with --program FILE",
            )
        head = content[: len(_MAGIC) + 1]
        if head[:-1] != _MAGIC:
            raise corrupt(files.location(PATH), f"a file beginning with {_MAGIC!r}", repr(head))
        if head[-1] != VERSION:
            raise NewerFormatError(
                "A failed round must be of a version this Tidegate reads.",
                where=files.location(PATH),
                found=f"version {head[-1]}; this Tidegate reads {VERSION}",
                cure="use the version of Tidegate that ran the job",
            )
        kept: FailedRound = pickle.loads(content[len(head) :])
        return kept

    def missing_files(self) -> list[str]:
        """State files that the round needs and that are gone."""
        own = Files(self.root)
        files = {
            (file.root, file.path)
            for level in self.plan.tasks
            for task in level
            for snapshot in task.snapshots.values()
            for file in snapshot.files()
        }
        return sorted(
            (Files(root) if root else own).location(path)
            for root, path in files
            if not (Files(root) if root else own).exists(path)
        )
