"""A subtask on real files and a real local store, driven round by round."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidegate.base.files import Files
from tidegate.base.hashing import new_token
from tidegate.state.backend import KeyedBackend
from tidegate.state.key_groups import group_of
from tidegate.state.refs import KeyGroupRange, StateFile
from tidegate.state.stores import opener

MAX_PARALLELISM = 16


class Subtask:
    """One subtask with the driver's part: it keeps the accepted list and hands it to each round."""

    def __init__(
        self, directory: Path, groups: KeyGroupRange, files: list[StateFile] | None = None, **options: Any
    ) -> None:
        self.directory = directory
        self.groups = groups
        self.files = Files(str(directory / "storage"))
        self.accepted = list(files or [])
        self.replaced: list[str] = []
        self.options = options
        self.local = str(directory / f"local-{groups.first}-{groups.last}")
        self.backend = self.new_backend()

    def new_backend(self, local: str | None = None) -> KeyedBackend:
        """As another Python worker, on the same local store unless another is named."""
        return KeyedBackend(
            operator="op",
            operator_name="totals",
            groups=self.groups,
            max_parallelism=MAX_PARALLELISM,
            local_path=local or self.local,
            files=self.files,
            **{"key_type": None, "open_store": opener(), **self.options},
        )

    def begin(self) -> KeyedBackend:
        self.backend.begin(self.accepted, self.replaced)
        return self.backend

    def compact(self, run: tuple[int, int]) -> None:
        """A merge, accepted."""
        files = self.accepted
        merged = self.backend.compact(files, run, f"shared/{new_token()}")
        self.replaced += [file.path for file in files[run[0] : run[1]]]
        self.accepted = [*files[: run[0]], merged, *files[run[1] :]]

    def finish(self, *, accept: bool = True, version: str | None = None) -> StateFile | None:
        token = new_token()
        written = self.backend.write_segment(version or token, f"shared/{token}")
        self.backend.end()
        if written is not None and accept:
            self.accepted.append(written)
        return written

    def round(self, work: Callable[[KeyedBackend], Any]) -> Any:
        """A whole round, accepted."""
        result = work(self.begin())
        self.finish()
        return result

    def owns(self, key: Any) -> bool:
        return group_of(self.backend.identity(key), MAX_PARALLELISM) in self.groups
