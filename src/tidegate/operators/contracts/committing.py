"""Both committers of a sink as one: step 8 calls the committer, and behind it the global one."""

from __future__ import annotations

from tidegate.base import faults
from tidegate.operators.contracts.sink import Committer, CommitterContext, GlobalCommitter, Sink


def committer_of(sink: Sink, context: CommitterContext) -> Committer | None:
    """None: the sink needs no commit."""
    own, common = sink.create_committer(context), sink.create_global_committer(context)
    return own if common is None else _BothCommitters(own, common)


class _BothCommitters(Committer):
    """A crash or an error between the two is one in the middle of a commit: both are called again."""

    def __init__(self, own: Committer | None, common: GlobalCommitter) -> None:
        self._own, self._global = own, common

    def commit(self, committables: list[object]) -> None:
        if self._own is not None:
            self._own.commit(committables)
        self._commit_globally(committables)

    def recover(self, committables: list[object]) -> None:
        if self._own is not None:
            self._own.recover(committables)
        self._commit_globally(committables)

    def _commit_globally(self, committables: list[object]) -> None:
        if committables:
            faults.point("K3.global.before-commit", count=len(committables))
            self._global.commit(committables)
            faults.point("K3.global.committed", count=len(committables))

    def abort(self, committables: list[object]) -> None:
        if self._own is not None:
            self._own.abort(committables)

    def abort_lingering(self, committables: list[object], states: list[object]) -> None:
        if self._own is not None:
            self._own.abort_lingering(committables, states)

    def close(self) -> None:
        try:
            if self._own is not None:
                self._own.close()
        finally:
            self._global.close()
