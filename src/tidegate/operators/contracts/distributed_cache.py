"""Files that functions find by the name they were registered with, wherever they run."""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.base.errors import ProgramError

_arrived: dict[str, dict[str, str]] = {}
"""Job id -> name -> path, of what was brought to this host."""


def arrived(job_id: str, files: Mapping[str, str]) -> None:
    """The job's files are here. Without this they are where the program was started: in the same process, or on the same host."""
    _arrived[job_id] = dict(files)


class DistributedCache:
    """What ``RuntimeContext.get_distributed_cache`` gives. ``files``: name -> path where the program was started."""

    def __init__(self, job_id: str, files: Mapping[str, str]) -> None:
        self._files = {**files, **_arrived.get(job_id, {})}

    def get_file(self, name: str) -> str:
        """The path of the file or directory on this host. It may be read, and must not be changed: other subtasks read it too."""
        if name not in self._files:
            raise ProgramError(
                "A file is found by the name it was registered with",
                found=f"no cached file '{name}'",
                cure=f"one of {', '.join(sorted(self._files))}"
                if self._files
                else f'env.register_cached_file("/path", "{name}")',
            )
        return self._files[name]
