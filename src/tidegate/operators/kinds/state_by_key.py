"""State and timers of a keyed operator in one subtask, from snapshot to snapshot."""

from __future__ import annotations

from tidegate.base.errors import StorageError
from tidegate.graph.plan import Operator
from tidegate.operators.contracts.operator import OperatorRound, Site
from tidegate.state.backend import KeyedBackend
from tidegate.state.key_groups import range_for
from tidegate.state.local_dir import store_path
from tidegate.state.refs import StateFile
from tidegate.state.snapshot import KeyedPart, OperatorSnapshot, merged_schemas
from tidegate.state.stores import opener


class StateByKey:
    """Owns the backend. In every round: ``restore``, ``begin``, ``part`` (step 5), ``end``. ``windows``: see ``KeyedPart``."""

    windows = ""

    def __init__(self, operator: Operator, site: Site) -> None:
        assert operator.keyed is not None
        self._operator, self._index, settings = operator, site.index, site.settings
        self._groups = range_for(site.index, operator.parallelism, operator.max_parallelism)
        self.backend = KeyedBackend(
            operator=operator.uid_hash,
            operator_name=operator.name,
            groups=self._groups,
            max_parallelism=operator.max_parallelism,
            key_type=operator.keyed.key_type,
            local_path=store_path(
                settings.store_root(operator.uid_hash, site.index), settings.local_name, operator.uid_hash, site.index
            ),
            files=settings.state_files(),
            open_store=opener(settings.state_backend, settings.stores),
            cache_bytes=settings.cache_bytes,
            compressed=settings.compressed,
        )

    def restore(self, snapshot: OperatorSnapshot, round: OperatorRound) -> None:
        """Functions may ask for their states from now on: they must be declared as they are stored."""
        self._before = snapshot.keyed or KeyedPart(self._groups)
        self._round, self._files = round, list(self._before.files)
        self.backend.stored = list(self._before.schemas)

    def begin(self) -> str | None:
        """Open the round on exactly the accepted files, and merge some of them if the plan says so. Returns why that makes the
        snapshot useless, if it does."""
        plan, operator_id = self._round.plan, self._operator.id
        self.backend.begin(self._files, plan.replaced.get(operator_id, ()))
        self.backend.context.time = self._round.now_ms()
        run = plan.compact.get(operator_id)
        return None if run is None else self._merge(run)

    def _merge(self, run: tuple[int, int]) -> str | None:
        try:
            merged: StateFile = self.backend.compact(list(self._files), run, self._path("base"))
        except StorageError as error:
            if self._round.plan.whole or any(file.root for file in self._files):
                # files of another job's directory may not get into a checkpoint of this one
                place = f"'{self._operator.name}' ({self._index + 1}/{self._operator.parallelism})"
                return f"snapshot of {place}: {type(error).__name__}: {error}"
            return None  # the old files are as good; a later round tries again
        self._files[run[0] : run[1]] = [merged]
        return None

    def part(self) -> KeyedPart:
        """Step 5: the changes of the round become a segment file, behind all others."""
        segment = self.backend.write_segment(self._round.context.version, self._path("seg"))
        files = (*self._files, segment) if segment is not None else tuple(self._files)
        schemas = merged_schemas([self._before.schemas, self.backend.schemas()])
        return KeyedPart(self._before.groups, files, schemas, self.backend.key_schema, self.windows)

    def end(self, *, failed: bool) -> None:
        self.backend.end(failed=failed)

    def _path(self, ending: str) -> str:
        """Unique for every attempt: a zombie can never write over the file of another one."""
        name = f"{self._operator.uid_hash[:12]}-{self._index}-{self._round.context.round}-{self._round.token}"
        return f"shared/{name}.{ending}"
