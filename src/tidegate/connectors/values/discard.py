"""A sink that drops everything: benchmarks, and streams run for their side outputs."""

from __future__ import annotations

from typing import Any

from tidegate.operators.contracts.sink import Prepared, Sink, SinkGuarantee, SinkWriter, WriterContext


class DiscardingSink(Sink):
    guarantee = SinkGuarantee.TWO_PHASE_COMMIT
    reads_records = False

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return _DiscardingWriter()


class _DiscardingWriter(SinkWriter):
    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        return

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        return Prepared()
