"""Checkpoint storage on S3: exclusive publication by conditional put, whatever the size."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.object_storage import s3
from tests.servers.storage_contract import StorageContract
from tidegate.base.files import Files

pytestmark = pytest.mark.slow


class TestS3(StorageContract):
    @pytest.fixture(scope="class")
    def storage(self) -> Iterator[str]:
        for needed in ("moto", "s3fs"):
            pytest.importorskip(needed, reason="make s3 installs it")
        with s3() as address:
            yield address

    @pytest.mark.parametrize("size", [10, 6 << 20])
    def test_the_condition_of_the_put_refuses_a_second_one(self, files: Files, size: int) -> None:
        """Not a look before it: between that and the put another publisher may come."""
        files.publish("claim", b"1" * size)
        with pytest.raises(FileExistsError):
            files._system._create_exclusively(files.location("claim"), b"2" * size)  # type: ignore[union-attr]
        assert files.read_bytes("claim") == b"1" * size
