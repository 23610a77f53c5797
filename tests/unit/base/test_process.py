"""Logs of libraries: their INFO lines are not a user's business."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tidegate.base import process
from tidegate.base.process import LIBRARIES, quiet_libraries


@pytest.fixture
def levels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process in which nothing has set any."""
    before = {name: logging.getLogger(name).level for name in LIBRARIES}
    monkeypatch.setattr(process, "_ours", set())
    for name in LIBRARIES:
        logging.getLogger(name).setLevel(logging.NOTSET)
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


@pytest.mark.parametrize("name", ["aiobotocore.credentials", "botocore.credentials", "py4j.clientserver", "s3fs"])
def test_info_lines_are_silent_below_a_root_logger_of_info_and_warnings_are_not(
    levels: None, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    logging.getLogger(name).info("before")
    quiet_libraries()
    logging.getLogger(name).info("Found credentials in environment variables.")
    logging.getLogger(name).warning("the bucket is gone")
    assert [record.message for record in caplog.records] == ["before", "the bucket is gone"]


def test_a_level_that_the_program_has_set_stays(levels: None) -> None:
    logging.getLogger("botocore").setLevel(logging.DEBUG)
    quiet_libraries()
    assert logging.getLogger("botocore").level == logging.DEBUG
    assert logging.getLogger("aiobotocore").level == logging.WARNING


def test_a_worker_that_logs_errors_only_hears_no_warnings_of_them_and_a_later_job_may(levels: None) -> None:
    quiet_libraries(logging.ERROR)
    assert logging.getLogger("s3fs").level == logging.ERROR
    quiet_libraries(logging.INFO)
    assert logging.getLogger("s3fs").level == logging.WARNING
