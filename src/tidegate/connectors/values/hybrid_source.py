"""One source after the other, for example the history from files and then new records from Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tidegate.base.arguments import made_by, wrong
from tidegate.base.errors import ProgramError, RestoreError
from tidegate.base.plain_text import count
from tidegate.operators.contracts.batch import Given
from tidegate.operators.contracts.source import (
    Boundedness,
    Lag,
    Source,
    SourceContext,
    SourcePlan,
    SplitEnumerator,
    SplitInterval,
    SplitReader,
)


@made_by("HybridSource.builder(first), then add_source(...) and build()", tuple)
class HybridSource(Source):
    """Read a bounded source to its end, then the next source. The last source may be unbounded.

    A source begins when its turn comes, and then decides itself where it starts. The guarantee is that of the weakest source. Made
    by ``HybridSource.builder(first)``.
    """

    def __init__(self, sources: tuple[Source, ...]) -> None:
        self.sources = sources
        self.boundedness = sources[-1].boundedness
        weakest = next((source for source in sources if not source.can_replay), sources[-1])
        self.can_replay, self.to_raise = weakest.can_replay, weakest.to_raise
        self.can_stop = all(source.can_stop for source in sources)
        self.initial_limit = min(source.initial_limit for source in sources)
        self.maximum_limit = min((s.maximum_limit for s in sources if s.maximum_limit is not None), default=None)
        self.emits_tagged = any(source.emits_tagged for source in sources)
        self.gives_time = any(source.gives_time for source in sources)
        self.splits_in_turn = all(source.splits_in_turn for source in sources)

    @staticmethod
    def builder(first_source: Source) -> HybridSourceBuilder:
        """Begin with a source that is read first."""
        return HybridSourceBuilder(first_source)

    def create_enumerator(self, parallelism: int, restored: Any | None) -> SplitEnumerator:
        return _HybridEnumerator(self.sources, None, parallelism, restored)

    def create_enumerator_in(self, context: SourceContext, parallelism: int, restored: Any | None) -> SplitEnumerator:
        return _HybridEnumerator(self.sources, context, parallelism, restored)

    def create_reader(self, subtask: int) -> SplitReader:
        return _HybridReader([source.create_reader(subtask) for source in self.sources])


class HybridSourceBuilder:
    """Collect sources in the order in which they are read."""

    def __init__(self, first_source: Source) -> None:
        self._sources: tuple[Source, ...] = (_expected("builder", first_source),)

    def add_source(self, source: Source) -> HybridSourceBuilder:
        """Add the source that is read after the others. The sources before it must be bounded."""
        last = self._sources[-1]
        if last.boundedness is not Boundedness.BOUNDED:
            raise ProgramError(
                "A source after an unbounded source is never read",
                where="HybridSource.add_source",
                found=f"{type(source).__name__} after an unbounded {type(last).__name__}",
                cure="make the unbounded source bounded, or add it last",
            )
        self._sources = (*self._sources, _expected("add_source", source))
        return self

    def build(self) -> HybridSource:
        """Return the source. It does not contain sources that are added later."""
        return HybridSource(self._sources)


def _expected(method: str, source: Any) -> Source:
    if not isinstance(source, Source):
        raise wrong(f"HybridSource.{method}", "a source", source, "pass for example a FileSource or a KafkaSource")
    return source


class _HybridEnumerator(SplitEnumerator):
    """Plan one source after the other.

    A position is the number of a source and the source's own position; None means its beginning. The names of splits begin with
    the number, because splits of two sources may have the same name.
    """

    def __init__(
        self, sources: tuple[Source, ...], context: SourceContext | None, parallelism: int, restored: Any | None
    ) -> None:
        self._sources, self._context, self._parallelism = sources, context, parallelism
        self._number: int
        self._number, position = restored or (0, None)
        if self._number >= len(sources):
            raise RestoreError(
                "A hybrid source lacks the source that it was reading, and cannot continue",
                where="HybridSource",
                found=f"{count(len(sources), 'source')}, and source {self._number + 1} was being read",
                cure="keep the former sources in their order, and add new sources after them",
            )
        self._current = self._create(position)
        self._is_read = False
        """The current source is planned to its end. The next source is made with the next plan: the round may be discarded."""
        self._held: frozenset[str] = frozenset()

    def _create(self, position: Any) -> SplitEnumerator:
        source = self._sources[self._number]
        if self._context is None:
            return source.create_enumerator(self._parallelism, position)
        own = replace(self._context, directory=f"{self._context.directory}/{self._number}")
        return source.create_enumerator_in(own, self._parallelism, position)

    def plan(self, limit: int, now_ms: int) -> SourcePlan:
        if self._is_read:
            self._current.close()
            self._number, self._is_read = self._number + 1, False
            self._current = self._create(None)
            self.hold(self._held)
        plan = self._current.plan(limit, now_ms)
        intervals = [replace(interval, split=f"{self._number}:{interval.split}") for interval in plan.intervals]
        if plan.finished and self._number + 1 < len(self._sources):
            self._is_read = True
            return SourcePlan(intervals, backlog=True)
        return replace(plan, intervals=intervals)

    def snapshot(self) -> Any:
        return [self._number + 1, None] if self._is_read else [self._number, self._current.snapshot()]

    def rewind(self, position: Any) -> bool:
        number, of_source = position
        if number != self._number or of_source is None or not self._current.rewind(of_source):
            return False
        self._is_read = False
        return True

    @property
    def behind(self) -> int | None:
        return self._current.behind

    @property
    def lag(self) -> Lag | None:
        return self._current.lag

    @property
    def awaited(self) -> frozenset[int]:
        """Between two sources every subtask is awaited."""
        return frozenset(range(self._parallelism)) if self._is_read else self._current.awaited

    def checkpoint_complete(self, position: Any) -> None:
        number, of_source = position
        if number == self._number and of_source is not None:
            self._current.checkpoint_complete(of_source)

    @property
    def can_hold(self) -> bool:  # type: ignore[override]
        return self._current.can_hold

    def hold(self, splits: frozenset[str]) -> None:
        self._held, own = splits, f"{self._number}:"
        self._current.hold(frozenset(split[len(own) :] for split in splits if split.startswith(own)))

    def close(self) -> None:
        self._current.close()


class _HybridReader(SplitReader):
    def __init__(self, readers: list[SplitReader]) -> None:
        self._readers = readers
        self.interleaves = all(reader.interleaves for reader in readers)

    def read(self, interval: SplitInterval) -> Iterator[Given]:
        number, _, split = interval.split.partition(":")
        return self._readers[int(number)].read(replace(interval, split=split))

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
