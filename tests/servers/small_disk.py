"""A disk of a few megabytes that can be filled and emptied: where the tests may mount one (as root), a file system in memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.servers.server import Server

_BLOCK = 1 << 16


class SmallDisk:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ballast = directory / "ballast"

    def fill(self, leave: int = 0) -> None:
        """So many bytes are free after it."""
        with self._ballast.open("wb") as ballast:
            while (free := self._free() - leave) > 0:
                ballast.write(bytes(min(free, _BLOCK)))
                ballast.flush()
        assert self._free() <= leave, "the disk is not full"

    def _free(self) -> int:
        found = os.statvfs(self.directory)
        return found.f_bavail * found.f_frsize

    def make_room(self) -> None:
        self._ballast.unlink()

    def holds(self, server: Server) -> Server:
        """Before its first start."""
        shutil.rmtree(server.directory)
        server.directory = self.directory / server.name
        server.directory.mkdir()
        return server


@contextmanager
def small_disk(mib: int) -> Iterator[SmallDisk]:
    directory = Path(tempfile.mkdtemp(prefix="tidegate-disk-"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=755", "tmpfs", str(directory)]
    ended = subprocess.run(mount, capture_output=True, text=True)
    if ended.returncode != 0:
        directory.rmdir()
        pytest.skip(f"a full disk needs one that can be mounted: {' '.join(mount)}: {ended.stderr.strip()}")
    try:
        yield SmallDisk(directory)
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)
        directory.rmdir()
