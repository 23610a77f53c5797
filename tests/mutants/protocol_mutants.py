"""Mutants of the protocol: each breaks one rule of it in the real code, as a small patch, and the simulation has to find out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """``old`` stands in the file once, and is replaced by ``new``. ``cases``: which simulated cases show it soonest; the others
    follow."""

    name: str
    file: str
    old: str
    new: str
    cases: str = "random"


MUTANTS = [
    Mutant(
        "acknowledge before durable",
        "base/files.py",
        """        with _storage_errors("write", full, self.purpose):
            faults.point("storage.write", path=full, size=len(data))
            self._system.create(full, data)
""",
        """        with contextlib.suppress(OSError):
            faults.point("storage.write", path=full, size=len(data))
            self._system.create(full, data)
""",
        "errors",
    ),
    Mutant(
        "acknowledge a snapshot that failed",
        "operators/flow/round.py",
        '            self.ack.declined = f"snapshot of {place}: {type(error).__name__}: {error}"',
        "            pass",
        "errors",
    ),
    Mutant(
        "accept a round that was declined",
        "runtime/attempt.py",
        "        declined = next((ack for ack in acks if ack.declined is not None), None)",
        "        declined: Ack | None = None",
        "errors",
    ),
    Mutant(
        "commit before metadata",
        "runtime/steps.py",
        """        try:
            completed = self.completed.add(cut.metadata)
""",
        """        yield from self._committers.commit_by_sink(cut.unconfirmed(self._confirmed))
        try:
            completed = self.completed.add(cut.metadata)
""",
        "crashes",
    ),
    Mutant(
        "skip the commit after a restore",
        "runtime/restoring.py",
        "        committers.commit(progress.committables, recovering=True)\n",
        "",
        "crashes",
    ),
    Mutant(
        "skip the abort after a restore",
        "runtime/restoring.py",
        "        committers.abort_lingering(progress.committables, progress.writer_states())\n",
        "",
        "crashes",
    ),
    Mutant(
        "forget prepared output when a checkpoint was not stored",
        "runtime/checkpoints.py",
        """        self._lane_seconds = seconds
        self._unsaved = True
        if checkpoint.ending""",
        """        self._lane_seconds = seconds
        if checkpoint.cut is not None:
            self._confirmed.update({sink: len(items) for sink, items in checkpoint.cut.committables.items()})
            self.steps._confirmed.update({sink: len(items) for sink, items in checkpoint.cut.committables.items()})
        if checkpoint.ending""",
        "errors",
    ),
    Mutant(
        "leave prepared output out of the checkpoint",
        "runtime/progress.py",
        "            committables=list(map(_pack, self.committables.get(o.id, ()))),",
        "            committables=[],",
        "crashes",
    ),
    Mutant(
        "forget later output when a checkpoint is committed",
        "runtime/progress.py",
        "        rest = {sink: self.committables.get(sink, ())[len(tuple(items)) :] for sink, items in confirmed.items()}",
        "        rest = {sink: () for sink, items in confirmed.items()}",
        "concurrent",
    ),
    Mutant(
        "drop the timers' and windows' state of a snapshot",
        "runtime/progress.py",
        "                snapshots[place] = snapshot\n",
        "                snapshots[place] = self.snapshots.get(place, snapshot)\n",
    ),
    Mutant(
        "reuse a checkpoint id",
        "checkpoint/lease.py",
        "    last = highest_id(files, claim.token)\n",
        "    last = max(0, highest_id(files, claim.token) - 1)\n",
        "crashes",
    ),
    Mutant(
        "delete files that a kept checkpoint refers to",
        "checkpoint/completed.py",
        "        return candidates.difference(in_use, *self._references.values())",
        "        return candidates.difference(in_use)",
        "merges",
    ),
    Mutant(
        "delete files that the running state refers to",
        "checkpoint/completed.py",
        "        return candidates.difference(in_use, *self._references.values())",
        "        return candidates.difference(*self._references.values())",
        "merges",
    ),
    Mutant(
        "delete files of a checkpoint that waits to be stored",
        "runtime/checkpoints.py",
        "        needed = progress.paths() | self.paths()",
        "        needed = progress.paths()",
        "held",
    ),
    Mutant(
        "sweep files that the restored checkpoint refers to",
        "checkpoint/completed.py",
        "        for point in (*self._protected, *self._retained):\n            self._load(point)\n",
        "        pass\n",
        "crashes",
    ),
    Mutant(
        "delete files before the metadata that refers to them",
        "checkpoint/completed.py",
        "                self._files.delete(metadata_path(number))\n",
        "                for path in sorted(self._references.get(number, set())):\n"
        "                    self._files.delete(path)\n"
        "                self._files.delete(metadata_path(number))\n",
        "crashes",
    ),
    Mutant(
        "never delete what is subsumed",
        "checkpoint/completed.py",
        "            self._delete_files(self._unreferenced(self._candidates, in_use))\n",
        "",
    ),
    Mutant(
        "choose the latest checkpoint by listing",
        "checkpoint/locate.py",
        "    latest = retained[-1] if retained else restored.point\n",
        "    latest = (all_completed(files) or [restored.point])[-1]\n",
        "paused",
    ),
    Mutant(
        "restore the checkpoint before the latest",
        "checkpoint/locate.py",
        "    latest = retained[-1] if retained else restored.point\n",
        "    latest = retained[0] if retained else restored.point\n",
        "crashes",
    ),
    Mutant(
        "ignore the lease",
        "checkpoint/lease.py",
        "        newer = claim_path(self.token + 1)\n",
        "        return\n",
        "paused",
    ),
    Mutant(
        "claim without being exclusive",
        "checkpoint/lease.py",
        "            files.publish(claim_path(claim.token), encode(claim))\n",
        "            files.replace(claim_path(claim.token), encode(claim))\n",
        "paused",
    ),
    Mutant(
        "take an unknown outcome for a success",
        "checkpoint/completed.py",
        "                return self._files.read_if_exists(path) == content\n",
        "                return True\n",
        "errors",
    ),
    Mutant(
        "show metadata before all of it is there",
        "base/_local_files.py",
        "        temporary = self._write_temporary(path, data)\n        with _removed_on_error(temporary):\n"
        '            faults.point("storage.publish.before-link"',
        "        self._write_new(path, data[: len(data) // 2])\n"
        '        faults.point("storage.publish.before-link", path=path, temporary="")\n'
        "        os.unlink(path)\n"
        "        temporary = self._write_temporary(path, data)\n        with _removed_on_error(temporary):\n"
        '            faults.point("storage.publish.before-link"',
        "publishes",
    ),
    Mutant(
        "accept acks of different attempts of a task",
        "runtime/progress.py",
        "                if tokens[sender[edge], subtask] != token:",
        "                if tokens[sender[edge], subtask] != token and not tokens:",
        "reruns",
    ),
    Mutant(
        "go on from the end of a round that was discarded",
        "runtime/attempt.py",
        "        self._planner.discard()\n        self._steps.discard(",
        "        self._steps.discard(",
        "errors",
    ),
    Mutant(
        "cut the sources one round too early",
        "runtime/planner.py",
        "        return {s.operator.id: s.enumerator.snapshot() for s in self._sources}",
        "        return {s.operator.id: s.before for s in self._sources}",
        "crashes",
    ),
    Mutant(
        "take a store that is ahead for one that is right",
        "state/materialize.py",
        "        start = tags.index(tag)\n    else:",
        "        start = tags.index(tag)\n    elif tag:\n        return\n    else:",
    ),
    Mutant(
        "keep the rest of a task that was tried again",
        "runtime/attempt.py",
        "        if any(ack.run.attempt > 0 and self._has_sink(ack) for ack in acks):",
        "        if not acks:",
        "tries",
    ),
    Mutant(
        "store a checkpoint before its rounds are published",
        "runtime/steps.py",
        "        one_lane = self.outputs is self.checkpoints\n",
        "        one_lane = True\n",
        "repeats",
    ),
    Mutant(
        "publish a transaction without writing the decision down",
        "connectors/functions/two_phase_commit.py",
        "        if self._context.publishes:\n            self._decide(committables)\n",
        "",
        "repeats",
    ),
    Mutant(
        "publish rounds of an attempt that has failed to publish one",
        "runtime/inbox.py",
        "            self._gate.broken = True\n",
        "",
        "round sinks",
    ),
    Mutant(
        "drop in-flight data",
        "operators/flow/backlog.py",
        """            left = [self._left(reader, writer, whole) for reader in self.readers if reader.waits]
            return InFlightPart(tuple(self._logs(left, writer)))
""",
        "            return None\n",
        "in flight",
    ),
    Mutant(
        "drop what was in flight before a round that keeps more",
        "operators/flow/backlog.py",
        "            return [*(log for log in left if log.turn < turn), _joined(last[0], added)]\n",
        "            return [*(log for log in left if log.turn < turn), added]\n",
        "in flight",
    ),
    Mutant(
        "process in-flight records again that are through",
        "operators/flow/backlog.py",
        "            first=self._number,\n            taken=self.taken,\n",
        "",
        "in flight",
    ),
    Mutant(
        "end a subtask while records wait for it",
        "operators/flow/feeds.py",
        "        if self._backlog.waits:\n            return EndOfInput.AHEAD\n",
        "",
        "in flight",
    ),
    Mutant(
        "end a job while records are in flight",
        "runtime/attempt.py",
        " and self.checkpoints.all_saved and not self.progress.in_flight_records\n",
        " and self.checkpoints.all_saved\n",
        "in flight",
    ),
    Mutant(
        "delete files of in-flight data",
        "state/snapshot.py",
        "        return [file for part in self.parts.values() if not isinstance(part, ListPart) for file in part.files]\n",
        "        return [f for p in self.parts.values() if isinstance(p, KeyedPart | StoredPart) for f in p.files]\n",
        "in flight",
    ),
    Mutant(
        "process new records before those in flight",
        "operators/flow/feeds.py",
        "        while (waiting := self._backlog.next()) is not None and not self._is_over:\n"
        "            yield partial(self._work_off, waiting)\n"
        "        for row in rows:\n"
        "            yield partial(self._receive, row)\n",
        "        readers, self._backlog.readers = self._backlog.readers, []\n"
        "        for row in rows:\n"
        "            yield partial(self._receive, row)\n"
        "        self._backlog.readers = readers\n"
        "        while (waiting := self._backlog.next()) is not None and not self._is_over:\n"
        "            yield partial(self._work_off, waiting)\n",
        "in flight",
    ),
    Mutant(
        "read on in a split before its records in flight",
        "operators/flow/feeds.py",
        "        reader = self._backlog.of(current.split)\n"
        "        if reader is not None:\n"
        "            self._work_off(current.split, reader)\n"
        "        elif (batch := self._read(current)) is None:\n",
        "        batch = self._read(current)\n"
        "        reader = self._backlog.of(current.split) if batch is None else None\n"
        "        if reader is not None:\n"
        "            self._work_off(current.split, reader)\n"
        "        elif batch is None:\n",
        "in flight",
    ),
    Mutant(
        "give in-flight records to every subtask behind a rescale",
        "state/in_flight.py",
        "                    clipped = log.clipped or common != log.groups\n",
        "                    clipped = False\n",
        "in flight",
    ),
]
