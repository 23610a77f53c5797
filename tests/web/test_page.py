"""The page in a real browser, with made jobs: what it shows, where findings lead, and what it does while nobody answers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, Literal

import msgspec
import pytest
from playwright.sync_api import Browser, expect

from tests.web import shown_data
from tests.web.browser import DESKTOP, PHONE, Visitor, visiting
from tests.web.page_server import PageServer
from tidegate.control.messages import Code, Problem
from tidegate.control.shown import Page

JOB = "orders-by-hour"
PAGES = (
    "overview",
    "checkpoints",
    "rounds",
    "graph",
    "exceptions",
    "state",
    "actions",
    "configuration",
    "logs",
    "metrics",
)
QUESTIONS = {
    "overview": "How is this job?",
    "checkpoints": "Are the checkpoints in time?",
    "rounds": "Where does the time go?",
    "graph": "Which operator is the bottleneck?",
    "exceptions": "Why did it fail?",
    "state": "What does the state hold?",
    "actions": "What shall happen?",
    "configuration": "How was it started?",
    "logs": "What does the driver say?",
    "metrics": "What do its functions measure?",
}


def test_questions_cover_every_page_that_a_finding_can_lead_to() -> None:
    assert {page.value for page in Page} <= set(QUESTIONS)


def test_first_page_lists_jobs_and_says_which_needs_attention(server: PageServer, visitor: Visitor) -> None:
    visitor.open(server.address)
    assert visitor.heading() == "Which job needs you?"
    visitor.sees("4 jobs of 8 need attention.")
    for page in server.pages.values():
        visitor.sees(page.card.name)
    titles = visitor.page.locator("main h2").all_inner_texts()
    assert titles == ["Needs attention", "Running", "Ended"]


@pytest.mark.parametrize("job", [JOB, "payments", "sessions", "backfill", "fresh", "hostile"])
def test_every_page_of_a_job_answers_its_question(server: PageServer, visitor: Visitor, job: str) -> None:
    job_id = shown_data.HOSTILE_ID if job == "hostile" else job
    visitor.open(server.address)
    visitor.page.locator(".card .title a", has_text=server.pages[job_id].card.name).first.click()
    for name in PAGES:
        visitor.page.locator(".pages").get_by_role("link", name=re.compile(f"^{name}", re.IGNORECASE)).click()
        expect(visitor.page.locator("main h1")).to_have_text(QUESTIONS[name])
        expect(visitor.page.locator(".pages [aria-current=page]")).to_contain_text(name.capitalize())
    assert visitor.page.evaluate("window.hacked") is None
    assert visitor.page.locator("#page img:not([src='/assets/icon.svg']), #page script").count() == 0


def test_finding_on_the_first_page_leads_to_the_guilty_subtask_and_key(server: PageServer, visitor: Visitor) -> None:
    visitor.open(server.address)
    visitor.page.get_by_role("link", name="Key 'customer-4711' takes 61 %").click()
    guilty = visitor.page.locator("tr[aria-current=true]")
    expect(guilty).to_have_count(2)
    expect(guilty.first).to_contain_text("customer-4711")
    expect(guilty.last).to_contain_text("3/8")
    expect(visitor.page.locator(".findings a[aria-current=true]")).to_contain_text("customer-4711")


@pytest.mark.parametrize(
    ("sentence", "marked"),
    [
        ("wrote 61 % of its bytes", ("5 Snapshot", "totals", "3/8 of totals")),
        ("of the rounds is user code", ("user code",)),
    ],
)
def test_finding_of_a_job_leads_to_the_guilty_step(
    server: PageServer, visitor: Visitor, sentence: str, marked: tuple[str, ...]
) -> None:
    visitor.open(server.address, f"#/jobs/{JOB}")
    visitor.page.get_by_role("link", name=sentence).click()
    rows = visitor.page.locator("main tr[aria-current=true]")
    expect(rows).to_have_count(len(marked))
    for row, text in zip(rows.all(), marked, strict=True):
        expect(row.locator("th")).to_contain_text(text)


def test_restart_loop_leads_to_the_exception_with_record_and_debug_command(
    server: PageServer, visitor: Visitor
) -> None:
    visitor.open(server.address)
    visitor.page.get_by_role("link", name="The job has restarted 12 times").click()
    guilty = visitor.page.locator("article[aria-current=true]")
    for text in ("KeyError", "customer-4711", "line 12, in rate", "12 times", "currency='XAU'"):
        expect(guilty).to_contain_text(text)
    guilty.get_by_role("button", name="Copy").click()
    expect(guilty.get_by_role("button", name="Copied")).to_be_visible()
    assert (
        visitor.page.evaluate("navigator.clipboard.readText()")
        == "tidegate debug s3://checkpoints/orders/5f21/failed-round --record 17"
    )


def test_checkpoint_strip_is_walked_with_arrow_keys(server: PageServer, visitor: Visitor) -> None:
    visitor.open(server.address, f"#/jobs/{JOB}/checkpoints/1100")
    chosen = visitor.page.locator(".strip a[aria-current=true]")
    expect(chosen).to_have_attribute("aria-label", re.compile("^Checkpoint 1100: "))
    chosen.focus()
    visitor.page.keyboard.press("ArrowRight")
    expect(chosen).to_have_attribute("aria-label", re.compile("^Checkpoint 1101: "))
    expect(visitor.page.get_by_role("heading", name="Checkpoint 1101")).to_be_visible()
    assert visitor.page.locator(".strip a[tabindex='0']").count() == 1


def test_unknown_job_checkpoint_and_page_get_a_sentence(server: PageServer, visitor: Visitor) -> None:
    visitor.open(server.address, "#/jobs/nothing")
    visitor.sees("There is no job 'nothing'.")
    visitor.open(server.address, f"#/jobs/{JOB}/checkpoints/7")
    visitor.sees("The job shows no checkpoint 7")
    visitor.open(server.address, f"#/jobs/{JOB}/nonsense")
    visitor.sees("There is no page “nonsense”.")


# -- live ------------------------------------------------------------------------------------------------------------------


def test_update_changes_figures_and_keeps_the_elements(server: PageServer, visitor: Visitor) -> None:
    visitor.open(server.address)
    visitor.page.locator(".card", has_text="Orders by hour").evaluate("card => { card.seen = true }")
    page = server.pages[JOB]
    card = msgspec.structs.replace(page.card, records_per_second=12.0, name="Orders by the hour", attention=None)
    server.pages[JOB] = msgspec.structs.replace(page, card=card)
    renamed = visitor.page.locator(".card", has_text="Orders by the hour")
    expect(renamed).to_contain_text("12/s")
    visitor.sees("3 jobs of 8 need attention.")


def test_bar_of_a_round_stays_the_same_element_while_rounds_come(server: PageServer, visitor: Visitor) -> None:
    visitor.open(server.address, f"#/jobs/{JOB}/rounds")
    last = server.pages[JOB].details.rounds[-1].round
    bar = visitor.page.locator(f".strip a[aria-label^='Round {last}:']")
    bar.evaluate("bar => { bar.seen = true }")
    expect(visitor.page.locator(f".strip a[aria-label^='Round {last + 2}:']")).to_be_attached()
    assert bar.evaluate("bar => bar.seen === true")


def test_rounds_say_their_largest_part_what_took_longer_beside_them_and_their_levels(
    server: PageServer, visitor: Visitor
) -> None:
    shown = server.pages[JOB]
    slow = tuple(replace(r, parts={**r.parts, "store": 3.0}) for r in shown.details.rounds)
    server.pages[JOB] = msgspec.structs.replace(shown, details=msgspec.structs.replace(shown.details, rounds=slow))
    visitor.open(server.address, f"#/jobs/{JOB}/rounds")
    answer = visitor.page.locator("main .answer")
    share = sum(r.parts["user"] for r in slow) / sum(r.seconds for r in slow)
    expect(answer).to_contain_text(f"{share * 100:.0f} % of it is user code.")
    expect(answer).to_contain_text("Beside the rounds, store took longer")
    levels = visitor.page.get_by_role("region", name="Levels of the round").locator("tbody tr")
    expect(levels).to_have_count(4)
    expect(levels.nth(2)).to_contain_text(re.compile(r"^3\s*totals.*\d ms\s*\d+ %$"))


def test_server_that_is_away_is_said_with_the_age_and_found_again(server: PageServer, visitor: Visitor) -> None:
    visitor.open(server.address, f"#/jobs/{JOB}")
    expect(visitor.page.locator(".live")).to_have_text("live")
    server.stop()
    visitor.sees("The server does not answer. Shown is what it said at")
    visitor.sees("48.2 k/s")
    server.start()
    expect(visitor.page.locator(".live")).to_have_text("live")
    expect(visitor.page.locator(".silence")).to_have_count(0)


def test_driver_that_does_not_answer_is_said_with_the_age(server: PageServer, visitor: Visitor) -> None:
    page = server.pages[JOB]
    server.pages[JOB] = msgspec.structs.replace(page, answers=False)
    visitor.open(server.address, f"#/jobs/{JOB}/graph")
    expect(visitor.page.locator(".silence")).to_contain_text(
        re.compile(r"The driver does not answer. The figures are those of \d\d:\d\d:\d\d, \d+ s ago")
    )


def end(server: PageServer) -> None:
    page = server.pages[JOB]
    now = page.card.as_of_ms
    ended = msgspec.structs.replace(page.card, state="FINISHED", life="ended", ended_ms=now)
    details = msgspec.structs.replace(page.details, state="FINISHED", ended_ms=now)
    server.pages[JOB] = msgspec.structs.replace(page, card=ended, details=details, answers=False)


def test_job_that_ends_while_it_is_looked_at_keeps_its_last_figures(server: PageServer, visitor: Visitor) -> None:
    visitor.open(server.address, f"#/jobs/{JOB}")
    visitor.sees("It is running and reads")
    end(server)
    visitor.sees("The job has ended. Shown is its history on storage")
    visitor.page.get_by_role("link", name="Actions").click()
    visitor.sees("The job has ended, so it takes no commands.")


# -- actions ---------------------------------------------------------------------------------------------------------------

_ACTIONS: list[tuple[str, dict[str, str], str, dict[str, Any]]] = [
    ("Take a checkpoint", {}, "checkpoints", {}),
    ("Take a savepoint", {"Directory of the savepoint": "/sp"}, "savepoints", {"target": "/sp"}),
    ("Stop", {}, "stop", {"drain": False}),
    ("Drain", {"Directory of the savepoint": "/sp"}, "stop", {"drain": True, "target": "/sp"}),
    ("Rescale", {"Parallelism": "16"}, "rescale", {"parallelism": 16}),
    ("Cancel", {"Take a savepoint first": "yes"}, "cancel", {"savepoint": True}),
]


@pytest.mark.parametrize(("title", "fields", "command", "body"), _ACTIONS, ids=[title for title, *_ in _ACTIONS])
def test_action_says_what_will_happen_then_acts_and_shows_the_result(
    server: PageServer, visitor: Visitor, title: str, fields: dict[str, str], command: str, body: dict[str, Any]
) -> None:
    visitor.open(server.address, f"#/jobs/{JOB}/actions")
    form = visitor.page.get_by_role("form", name=title, exact=True)
    for label, value in fields.items():
        field = form.get_by_label(label)
        field.check() if value == "yes" else field.fill(value)
    form.get_by_role("button", name="What will happen?").click()
    expect(form).to_contain_text("The job carries out: ")
    assert server.posted == []
    form.get_by_role("button", name=title, exact=True).click()
    expect(form).to_contain_text("succeeded in")
    assert server.posted == [(command, body)]
    expect(visitor.page.get_by_role("region", name="Operations")).to_contain_text(command)


def test_result_of_a_stop_is_shown_after_the_job_has_ended(server: PageServer, visitor: Visitor) -> None:
    visitor.open(server.address, f"#/jobs/{JOB}/actions")
    form = visitor.page.get_by_role("form", name="Stop", exact=True)
    form.get_by_role("button", name="What will happen?").click()
    form.get_by_role("button", name="Stop", exact=True).click()
    expect(form.locator(".command")).to_contain_text("savepoint-")
    end(server)
    visitor.sees("The job has ended, so it takes no commands.")
    expect(form.locator(".command")).to_contain_text("savepoint-")
    expect(visitor.page.get_by_role("form")).to_have_count(1)
    form.get_by_role("button", name="Back").click()
    expect(form).to_have_count(0)


def test_second_person_who_stops_the_job_gets_the_refusal(server: PageServer, visitor: Visitor) -> None:
    server.refuse = Problem(Code.REFUSED, "The job is stopping already, since 3 s ago.")
    visitor.open(server.address, f"#/jobs/{JOB}/actions")
    form = visitor.page.get_by_role("form", name="Stop", exact=True)
    form.get_by_role("button", name="What will happen?").click()
    form.get_by_role("button", name="Stop", exact=True).click()
    expect(form.get_by_role("alert")).to_have_text("The job is stopping already, since 3 s ago.")


def test_snapshot_is_disposed_of_after_a_second_click(server: PageServer, visitor: Visitor) -> None:
    visitor.open(server.address, f"#/jobs/{JOB}/actions")
    visitor.page.get_by_role("button", name="Dispose of checkpoint 1197").click()
    visitor.sees("nobody can bring it back")
    assert server.posted == []
    visitor.page.get_by_role("button", name="Delete it for good").click()
    visitor.sees("s3://checkpoints/orders-by-hour/chk-1197 is gone.")
    assert server.posted == [
        ("snapshots/dispose", json.dumps({"path": f"s3://checkpoints/{JOB}/chk-1197"}, separators=(",", ":")))
    ]


def test_program_is_uploaded_and_run_with_its_parameters(server: PageServer, visitor: Visitor) -> None:
    visitor.open(server.address)
    visitor.page.get_by_role("link", name="Submit").click()
    visitor.page.get_by_label("Program").set_input_files(
        {"name": "job.py", "mimeType": "text/x-python", "buffer": b"print(1)"}
    )
    visitor.page.get_by_role("button", name="Upload").click()
    visitor.sees("job.py is here now.")
    visitor.page.get_by_text("orders.py").click()
    visitor.page.get_by_label("Parallelism").fill("4")
    visitor.page.get_by_label("Arguments").fill('--from "17 May" --quick')
    visitor.page.get_by_label("Configuration").fill("a.b: 5 s\nc = x")
    visitor.page.get_by_role("button", name="Run").click()
    visitor.sees("orders.py runs as payments.")
    visitor.page.get_by_role("link", name="payments").click()
    expect(visitor.page.locator("main h1")).to_have_text(QUESTIONS["overview"])
    assert server.posted[0] == ("programs", "print(1)")
    path, body = server.posted[1]
    assert path == "programs/ab12cd34/run"
    assert json.loads(body) == {
        "parallelism": 4,
        "arguments": ["--from", "17 May", "--quick"],
        "configuration": {"a.b": "5 s", "c": "x"},
    }


def test_program_that_does_not_start_shows_why(server: PageServer, visitor: Visitor) -> None:
    server.fail = Problem(Code.FAILED, "The program did not start. found: NameError: no_such_name")
    visitor.open(server.address, "#/programs")
    visitor.page.get_by_text("orders.py").click()
    visitor.page.get_by_role("button", name="Run").click()
    expect(visitor.page.get_by_role("alert")).to_contain_text("NameError: no_such_name")
    expect(visitor.page.locator("main [role=status]")).to_have_count(0)


def test_metrics_of_two_subtasks_are_plotted_apart(server: PageServer, visitor: Visitor) -> None:
    visitor.open(server.address, f"#/jobs/{JOB}/metrics")
    for subtask, value in (("subtask=0", "0.2"), ("subtask=1", "0.7")):
        row = visitor.page.locator("main tbody tr", has_text=subtask)
        expect(row).to_contain_text(value)
        row.get_by_role("link").click()
        expect(visitor.page.locator(".plot figcaption", has_text=subtask)).to_contain_text(value)
    expect(visitor.page.locator(".plot")).to_have_count(2)
    visitor.page.locator("main tbody tr", has_text="subtask=0").get_by_role("link").click()
    expect(visitor.page.locator(".plot figcaption")).to_contain_text("subtask=1")


def test_log_continues_where_a_lost_connection_ended(server: PageServer, visitor: Visitor) -> None:
    server.cuts_log = True
    visitor.open(server.address, f"#/jobs/{JOB}/logs")
    read = visitor.page.get_by_role("region", name="Log of the driver").locator("div", has_text="read from")
    expect(read.nth(2)).to_be_visible()
    places = [int(text.rpartition(" ")[2]) for text in read.all_inner_texts()]
    assert places == sorted(set(places)), "each part is shown once"


# -- state -----------------------------------------------------------------------------------------------------------------


def test_state_browser_shows_entries_finds_a_key_and_compares(server: PageServer, visitor: Visitor) -> None:
    visitor.open(server.address, f"#/jobs/{JOB}/state")
    visitor.page.locator("main table a", has_text="totals").first.click()
    visitor.sees("'customer-4700'")
    visitor.page.get_by_label("Key", exact=True).fill("customer-4711")
    visitor.page.get_by_role("button", name="Find").click()
    expect(visitor.page.get_by_role("region", name="Entries").locator("tbody tr")).to_have_count(1)
    visitor.page.get_by_label("Compare with an earlier one").select_option(index=1)
    visitor.sees("1 added, 1 removed, 1 changed.")
    assert visitor.page.evaluate("window.hacked") is None


# -- for everybody ---------------------------------------------------------------------------------------------------------


def _routes() -> list[str]:
    own = [f"#/jobs/{JOB}/{name}" for name in PAGES]
    more = [
        f"#/jobs/{JOB}/graph?operator=4&subtask=2&key=customer-4711",
        "#/jobs/payments/exceptions?operator=3&subtask=3",
        "#/jobs/wide/graph",
    ]
    return ["", "#/programs", "#/jobs/nothing", "#/jobs/fresh/overview", *own, *more]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation_on_any_page(
    browser: Browser, server: PageServer, axe: str, scheme: Literal["light", "dark"]
) -> None:
    found = []
    with visiting(browser, DESKTOP, scheme) as visitor:
        for route in _routes():
            visitor.open(server.address, route)
            visitor.heading()
            expect(visitor.page.locator("[role=status]", has_text="Reading")).to_have_count(0)
            visitor.page.evaluate(axe)
            result = visitor.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
            found += [
                f"{route}: {violation['id']}: {violation['nodes'][0]['html'][:200]}"
                for violation in result["violations"]
            ]
    assert "\n".join(found) == ""


def test_phone_shows_every_page_without_scrolling_sideways(browser: Browser, server: PageServer) -> None:
    too_wide: dict[str, int] = {}
    hostile = shown_data.encoded(shown_data.HOSTILE_ID)
    with visiting(browser, PHONE) as visitor:
        for route in [
            *_routes(),
            f"#/jobs/{hostile}/exceptions",
            f"#/jobs/{hostile}/overview",
        ]:
            visitor.open(server.address, route)
            visitor.heading()
            over = visitor.page.evaluate("document.documentElement.scrollWidth - innerWidth")
            if over > 0:
                too_wide[route] = over
    assert too_wide == {}


def test_keyboard_reaches_a_finding_and_focus_is_visible(server: PageServer, visitor: Visitor) -> None:
    visitor.open(server.address)
    visitor.heading()
    seen = []
    for _ in range(12):
        visitor.page.keyboard.press("Tab")
        focused = visitor.page.evaluate(
            "({text: document.activeElement.innerText, outline: getComputedStyle(document.activeElement).outlineStyle})"
        )
        assert focused["outline"] != "none", focused
        seen.append(focused["text"])
    assert seen[0] == "Skip to the content"
    assert any("restarted 12 times" in text for text in seen)
    visitor.page.keyboard.press("Shift+Tab")
    visitor.page.get_by_role("link", name="The job has restarted").focus()
    visitor.page.keyboard.press("Enter")
    expect(visitor.page.locator("main h1")).to_have_text("Why did it fail?")


def test_theme_is_switched_and_remembered(server: PageServer, visitor: Visitor) -> None:
    visitor.open(server.address)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = visitor.page.evaluate(ground)
    switch = visitor.page.get_by_role("button", name="Theme")
    switch.click()
    assert visitor.page.evaluate(ground) == light
    switch.click()
    dark = visitor.page.evaluate(ground)
    assert dark != light
    visitor.page.reload()
    visitor.heading()
    assert visitor.page.evaluate(ground) == dark


def test_graph_of_200_operators_fits_its_frame_and_finds_one(server: PageServer, visitor: Visitor) -> None:
    visitor.open(server.address, "#/jobs/wide/graph")
    nodes = visitor.page.locator(".node")
    expect(nodes).to_have_count(200)
    inside = """() => { const f = document.querySelector('.picture .canvas').getBoundingClientRect();
        return [...document.querySelectorAll('.node .box')].every(n => { const b = n.getBoundingClientRect();
        return b.left >= f.left - 1 && b.right <= f.right + 1 && b.top >= f.top - 1 && b.bottom <= f.bottom + 1 }) }"""
    assert visitor.page.evaluate(inside)
    visitor.page.get_by_label("Find").fill("step 137")
    visitor.page.keyboard.press("Enter")
    expect(visitor.page.get_by_role("complementary", name="Operator step 137")).to_be_visible()
    expect(visitor.page.locator(".node[aria-current=true] .name")).to_have_text("step 137")


def test_128_subtasks_and_1000_checkpoints_are_shown(server: PageServer, visitor: Visitor) -> None:
    visitor.open(server.address, "#/jobs/large/checkpoints")
    expect(visitor.page.locator(".strip a")).to_have_count(200)
    visitor.open(server.address, "#/jobs/large/graph?operator=4&subtask=2")
    expect(visitor.page.locator("tr[aria-current=true]")).to_contain_text("3/128")
    expect(visitor.page.locator(".side .strip a")).to_have_count(128)
