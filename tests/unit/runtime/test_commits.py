"""Step 8: order, retries, the lease."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.base.clock import ManualClock
from tidegate.base.errors import CommitError, FencedError, RetryableCommitError
from tidegate.operators.contracts.sink import Committer, CommitterContext, Publication, Sink, SinkWriter, WriterContext
from tidegate.operators.contracts.specs import SinkNode, SinkSpec
from tidegate.runtime.commits import SinkCommitters


class Recording(Committer):
    """A committer whose outside system is down for the first ``down`` calls."""

    def __init__(self, down: int = 0) -> None:
        self.calls: list[tuple[str, list[Any]]] = []
        self.down = down

    def commit(self, committables: list[Any]) -> None:
        self.calls.append(("commit", committables))
        if len(self.calls) <= self.down:
            raise RetryableCommitError("the database is down")

    def recover(self, committables: list[Any]) -> None:
        self.calls.append(("recover", committables))


class SinkWith(Sink):
    def __init__(self, committer: Recording, publication: Publication = Publication.CHECKPOINT) -> None:
        self.committer, self.publication = committer, publication

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        raise AssertionError("no writer on the driver")

    def create_committer(self, context: CommitterContext) -> Committer:
        return self.committer


def committers(*sinks: Sink, check: Any = lambda: None, clock: ManualClock | None = None) -> SinkCommitters:
    operators = [SinkNode(n, f"sink{n}", None, f"h{n}", SinkSpec(s), 1, 128, None) for n, s in enumerate(sinks)]
    return SinkCommitters(
        operators,
        "job",
        "/root",
        check_lease=check,
        clock=clock or ManualClock(),
        attempts=4,
        backoff_ms=100,
    )


def test_a_commit_is_retried_with_growing_pauses_until_it_succeeds() -> None:
    committer, clock = Recording(down=3), ManualClock()
    before = clock.now_ms()
    committers(SinkWith(committer), clock=clock).commit({0: ["a", "b"]})
    assert committer.calls == [("commit", ["a", "b"])] * 4
    assert clock.now_ms() - before == 100 + 200 + 400


def test_a_commit_that_never_succeeds_fails_loudly_and_names_the_sink() -> None:
    with pytest.raises(
        CommitError, match=r"could not commit the output[\s\S]*'sink0'[\s\S]*4 attempts[\s\S]*database is down"
    ):
        committers(SinkWith(Recording(down=9))).commit({0: ["a"]})


def test_nothing_is_committed_without_the_lease() -> None:
    committer = Recording()

    def fenced() -> None:
        raise FencedError("lost")

    with pytest.raises(FencedError):
        committers(SinkWith(committer), check=fenced).commit({0: ["a"]})
    assert committer.calls == []


def test_a_restore_recovers_instead_of_committing() -> None:
    committer = Recording()
    committers(SinkWith(committer)).commit({0: ["a"]}, recovering=True)
    assert committer.calls == [("recover", ["a"])]


@pytest.mark.parametrize(
    ("publication", "checkpointing", "waits"),
    [
        (Publication.CHECKPOINT, True, True),
        (Publication.CHECKPOINT, False, True),
        (Publication.CHECKPOINT_OR_ROUND, True, True),
        (Publication.CHECKPOINT_OR_ROUND, False, False),
        (Publication.ROUND, True, False),
    ],
)
def test_when_a_sink_publishes(publication: Publication, checkpointing: bool, waits: bool) -> None:
    sinks = committers(SinkWith(Recording(), publication))
    assert sinks.waits_for_checkpoint(0, checkpointing) is waits
