"""The page of all jobs: what it shows of running, ended and died jobs, and what it lets people do."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.control.drivers import Driver
from tests.unit.control.web.browser import Browser
from tests.waiting import eventually
from tidegate.base.hashing import flink_job_id
from tidegate.control.registry_jobs import RegistryJobs
from tidegate.control.web.programs import Programs
from tidegate.control.web.restarts import Restarts
from tidegate.control.web.server import PageServer

Start = Callable[..., Driver]


@pytest.fixture
def browser(home: Path) -> Iterator[Browser]:
    server = PageServer(RegistryJobs(), server="installation", restarts=Restarts(Programs()))
    yield Browser(server).log_in()
    server.close()


def first(events: Iterator[tuple[str, Any]], fits: Callable[[Any], bool]) -> Any:
    return next(data for _, data in events if fits(data))


def test_running_job_is_listed_and_shown_by_both_ids(driver: Start, browser: Browser) -> None:
    driver("one").running()
    [card] = browser.page("/jobs")
    assert (card["job_id"], card["flink_id"], card["life"]) == ("one", flink_job_id("one"), "live")
    for id in ("one", flink_job_id("one"), flink_job_id("one").upper()):
        page = browser.page(f"/jobs/{id}")
        assert page["answers"] is True and page["details"]["job_id"] == "one"
    assert [o["uid"] for o in page["details"]["operators"]] == ["numbers", "totals", "out"]


def test_events_come_at_once_and_after_changes(driver: Start, browser: Browser) -> None:
    driver("one").running()
    jobs = browser.events("/events")
    assert next(jobs)[0] == "jobs"
    events = browser.events("/jobs/one/events")
    kind, page = next(events)
    assert kind == "job"
    rounds = page["details"]["totals"]["rounds"]
    first(events, lambda later: later["details"]["totals"]["rounds"] > rounds)
    assert next(browser.events("/jobs/nobody/events"))[0] == "gone"


def test_figures_of_one_name_differ_by_their_labels(driver: Start, browser: Browser) -> None:
    driver("one").running()

    def heavy() -> list[dict[str, Any]]:
        return [each for each in browser.page("/jobs/one/metrics") if each["name"] == "tidegate_heavy_key_share"]

    assert {each["labels"]["rank"] for each in eventually(heavy, "a round was measured")} == {"1", "2", "3"}
    every = browser.page("/jobs/one/metrics")
    assert len({(each["operator"], each["name"], *sorted(each["labels"].items())) for each in every}) == len(every)


def test_actions_are_carried_out_by_the_driver(driver: Start, browser: Browser, tmp_path: Path) -> None:
    one = driver("one").running()
    taken = browser.done("one", "/checkpoints")
    page = browser.page(f"/jobs/one/checkpoints/{taken['result']}")
    assert page["view"]["status"] == "completed"
    assert {"Triggered", "Stored"} <= {note["what"] for note in page["story"]}
    number = browser.page("/jobs/one")["details"]["rounds"][-1]["round"]
    assert browser.page(f"/jobs/one/rounds/{number}/story")
    will = browser.page(f"/jobs/one/will?action=stop&drain=true&target={tmp_path}/sp")
    assert will["allowed"] and any("windows" in sentence for sentence in will["sentences"])
    done = browser.done("one", "/stop", {"target": f"{tmp_path}/sp", "drain": False})
    assert done["status"] == "succeeded" and done["result"].startswith(f"{tmp_path}/sp/savepoint-")
    one.process.wait()
    card = eventually(lambda: next(c for c in browser.page("/jobs") if c["life"] == "ended"))
    assert card["state"] == "FINISHED"
    assert not browser.page("/jobs/one/will?action=cancel")["allowed"]


def test_state_browser_shows_entries_and_the_difference_of_two(driver: Start, browser: Browser, tmp_path: Path) -> None:
    driver("one").running()
    paths = [browser.done("one", "/savepoints", {"target": f"{tmp_path}/sp"})["result"] for _ in range(2)]
    assert {each["path"] for each in browser.page("/jobs/one/snapshots")} >= set(paths)
    operators = browser.page(f"/snapshots/operators?path={paths[0]}")
    totals = next(o for o in operators if o["uid"] == "totals")
    [state] = [s for s in totals["states"] if s["kind"] != "timers"]
    assert state["entries"] == 3
    place = f"operator=totals&state={state['name']}"
    entries = browser.page(f"/snapshots/entries?path={paths[0]}&{place}&limit=2")
    rest = browser.page(f"/snapshots/entries?path={paths[0]}&{place}&limit=2&after={entries['next']}")
    assert sorted(e["key"] for e in [*entries["entries"], *rest["entries"]]) == ["0", "1", "2"]
    one = browser.page(f"/snapshots/entries?path={paths[0]}&{place}&key=1")
    assert [e["key"] for e in one["entries"]] == ["1"]
    change = browser.page(f"/snapshots/difference?before={paths[0]}&after={paths[1]}&{place}")
    assert (change["added"], change["removed"]) == (0, 0)
    assert len(change["entries"]) == change["changed"]
    status, _ = browser.ask("POST", "/tidegate/page/snapshots/dispose", {"path": paths[0]})
    assert status == 200 and not Path(paths[0], "_metadata").exists()
    status, problem = browser.ask("GET", f"/tidegate/page/snapshots/operators?path={paths[0]}")
    assert status == 404 and paths[0] in problem["message"]


@pytest.mark.parametrize("how", ["elsewhere", "foreign", "foreign metadata", "open to all", "linked"])
def test_snapshot_that_others_could_have_written_is_not_opened(
    driver: Start, browser: Browser, tmp_path: Path, how: str
) -> None:
    """A link to the page may name any path, and a snapshot runs code of its writer."""
    if how.startswith("foreign") and os.geteuid():
        pytest.skip("only root can give files away")
    driver("one", **{"execution.checkpointing.savepoint-dir": f"{tmp_path}/sp"}).running()
    own = browser.done("one", "/savepoints", {})["result"].removeprefix("file://")
    theirs = tmp_path / ("other" if how in ("elsewhere", "linked") else "sp") / "theirs"
    shutil.copytree(own, theirs)
    shown = theirs
    if how == "linked":
        shown = tmp_path / "sp" / "link"
        shown.symlink_to(theirs)
    elif how == "open to all":
        theirs.chmod(0o777)
    elif how == "foreign":
        os.chown(theirs, 65534, 65534)
    elif how == "foreign metadata":
        os.chown(theirs / "_metadata", 65534, 65534)
    for path in (f"{shown}", f"file://{shown}", f"{shown}/_metadata"):
        status, problem = browser.ask("GET", f"/tidegate/page/snapshots/operators?path={path}")
        assert status == 409 and "a snapshot can run code" in problem["message"], (path, status, problem)
        status, problem = browser.ask("POST", "/tidegate/page/snapshots/dispose", {"path": path})
        assert status == 409 and (theirs / "_metadata").exists()
    assert browser.page(f"/snapshots/operators?path={own}")


def test_died_driver_is_said_so_with_what_is_known(driver: Start, browser: Browser) -> None:
    one = driver("one", **{"execution.checkpointing.interval": "50 ms"}).running()
    eventually(lambda: browser.page("/jobs/one")["card"]["last_checkpoint_id"], "a checkpoint")
    os.kill(one.process.pid, signal.SIGKILL)
    one.process.wait()
    page = browser.page("/jobs/one")
    assert (page["card"]["state"], page["card"]["life"], page["answers"]) == ("DIED", "died", False)
    assert page["details"]["checkpoints"] and page["details"]["operators"]
    status, problem = browser.ask("POST", "/tidegate/page/jobs/one/cancel", {})
    assert (status, problem["code"]) == (409, "ended") and "died" in problem["message"]


def test_stopped_driver_does_not_answer_and_is_shown_with_its_age(driver: Start, browser: Browser) -> None:
    one = driver("one").running()
    before = browser.page("/jobs/one")
    assert before["answers"]
    os.kill(one.process.pid, signal.SIGSTOP)
    try:
        page = eventually(lambda: (p := browser.page("/jobs/one"))["answers"] is False and p)
        assert page["card"]["as_of_ms"] >= before["card"]["as_of_ms"]
        assert page["details"]["operators"] == before["details"]["operators"] or page["details"]["operators"]
    finally:
        os.kill(one.process.pid, signal.SIGCONT)
    assert eventually(lambda: browser.page("/jobs/one")["answers"])


MISSING = (
    ("GET", "/jobs/nobody", 404),
    ("GET", "/jobs/one/checkpoints/99", 404),
    ("GET", "/jobs/one/checkpoints/x", 404),
    ("GET", "/jobs/one/operations/x", 404),
    ("GET", "/jobs/one/operations/x?wait=99", 400),
    ("GET", "/jobs/one/will?action=explode", 400),
    ("GET", "/jobs/one/log", 404),
    ("GET", "/snapshots/operators?path=/etc", 409),
    ("GET", "/snapshots/operators?path=relative", 409),
    ("GET", "/snapshots/operators", 409),
    ("POST", "/jobs/nobody/stop", 404),
    ("POST", "/jobs/one/rescale", 400),
    ("POST", "/programs?name=a.py", 403),
    ("GET", "/programs", 403),
)


def test_what_does_not_exist_is_answered_and_changes_nothing(driver: Start, browser: Browser) -> None:
    driver("one").running()
    for method, path, status in MISSING:
        answered, problem = browser.ask(method, f"/tidegate/page{path}", {} if method == "POST" else None)
        assert (answered, set(problem)) == (status, {"code", "message"}), (path, problem)
    assert browser.page("/jobs/one")["card"]["state"] == "RUNNING"


def test_two_people_who_stop_the_same_job_both_get_a_clear_answer(
    driver: Start, browser: Browser, tmp_path: Path
) -> None:
    one = driver("one").running()
    asked = {"target": f"{tmp_path}/sp"}
    answers = [browser.ask("POST", "/tidegate/page/jobs/one/stop", asked) for _ in range(2)]
    one.process.wait()
    eventually(lambda: browser.page("/jobs/one")["card"]["life"] == "ended")
    operations = {o["id"]: o for o in browser.page("/jobs/one/operations")}
    results = [operations[body["id"]]["status"] if code == 202 else body["code"] for code, body in answers]
    assert results[0] == "succeeded" and results[1] in ("failed", "ended", "refused"), operations
    late, problem = browser.ask("POST", "/tidegate/page/jobs/one/stop", asked)
    assert (late, problem["code"]) == (409, "ended") and "FINISHED" in problem["message"]
    assert len(list((tmp_path / "sp").iterdir())) == 1, "one savepoint was written"


def test_job_that_ends_while_it_is_looked_at_stays_shown_from_storage(
    driver: Start, browser: Browser, home: Path
) -> None:
    one = driver("one", count="300", **{"execution.checkpointing.interval": "50 ms"})
    one.running()
    events = browser.events("/jobs/one/events")
    page = first(events, lambda page: page["card"]["life"] == "ended")
    assert (page["card"]["state"], page["answers"]) == ("FINISHED", True)
    one.process.wait()
    fresh = PageServer(RegistryJobs(), server="installation")  # it has never asked the driver
    try:
        shown = Browser(fresh).log_in().page("/jobs/one")
        assert shown["details"]["totals"]["records"] == 300
        assert [o["uid"] for o in shown["details"]["operators"]] == ["numbers", "totals", "out"]
        assert shown["details"]["rounds"] and shown["details"]["checkpoints"] and shown["details"]["configuration"]
        number = shown["details"]["checkpoints"][-1]["checkpoint_id"]
        assert Browser(fresh).log_in().page(f"/jobs/one/checkpoints/{number}")["story"]
    finally:
        fresh.close()
