"""``tidegate top``: the user's jobs on the terminal, live: what needs attention, rates, checkpoints; and one job, opened.

Texts of jobs may be those of strangers: they are shown without markup and escape sequences.
"""

from __future__ import annotations

import time
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static

from tidegate.base.errors import TidegateError
from tidegate.base.plain_text import duration, plain_line
from tidegate.control.shown import JobCard, JobPage, ShownJob, ShownJobs
from tidegate.control.web.cards import in_order, job_page

_SHOWN = 20
"""Checkpoints of an opened job."""
_COLUMNS = ("JOB", "STATE", "RECORDS/S", "LAG", "CHECKPOINT", "AGE", "RESTARTS", "NAME")
_LATEST = ("CHECKPOINT", "RESULT", "TOOK", "BYTES", "NEW BYTES")
_OPERATORS = ("ID", "OPERATOR", "SUBTASKS", "BUSY", "IN/S", "OUT/S", "STATE")


class TopApp(App[None]):
    """``every``: seconds between two looks at the drivers."""

    TITLE = "tidegate top"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "quit", "End")]

    def __init__(self, jobs: ShownJobs, every: float) -> None:
        super().__init__()
        self.jobs, self.every = jobs, every

    def on_mount(self) -> None:
        self.push_screen(JobsScreen())


class JobsScreen(Screen[None]):
    """All jobs, what needs attention first."""

    def compose(self) -> ComposeResult:
        yield Static(id="attention")
        yield DataTable[Text](id="jobs", cursor_type="row")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(DataTable).add_columns(*_COLUMNS)
        self.set_interval(_app(self).every, self.look)
        self.look()

    def look(self) -> None:
        self.run_worker(self._ask, thread=True, exclusive=True)

    def _ask(self) -> None:
        cards = in_order([page.card for job in _app(self).jobs.all() if (page := _page(job)) is not None])
        self.app.call_from_thread(self.show, cards)

    def show(self, cards: list[JobCard]) -> None:
        table = self.query_one(DataTable)
        before = table.cursor_row
        table.clear()
        for card in cards:
            table.add_row(*map(_cell, _row(card)), key=card.run)
        table.move_cursor(row=min(before, max(0, len(cards) - 1)))
        self._ids = {card.run: card.job_id for card in cards}
        urgent = [card for card in cards if card.attention is not None]
        lines = [f"{card.name}: {card.attention.sentence}" for card in urgent if card.attention is not None]
        head = f"{len(cards)} jobs, {len(urgent)} need attention" if cards else "no jobs"
        self.query_one("#attention", Static).update(Text("\n".join([head, *map(plain_line, lines[:5])])))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        job_id = self._ids.get(str(event.row_key.value))
        if job_id is not None:
            self.app.push_screen(JobScreen(job_id))


class JobScreen(Screen[None]):
    """One job: findings, operators, latest checkpoints."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "app.pop_screen", "All jobs")]

    def __init__(self, job_id: str) -> None:
        super().__init__()
        self._job_id = job_id

    def compose(self) -> ComposeResult:
        yield Static(id="about")
        yield DataTable[Text](id="operators", cursor_type="none")
        yield DataTable[Text](id="checkpoints", cursor_type="none")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#operators", DataTable).add_columns(*_OPERATORS)
        self.query_one("#checkpoints", DataTable).add_columns(*_LATEST)
        self.set_interval(_app(self).every, self.look)
        self.look()

    def look(self) -> None:
        self.run_worker(self._ask, thread=True, exclusive=True)

    def _ask(self) -> None:
        job = _app(self).jobs.get(self._job_id)
        page = None if job is None else _page(job)
        if page is not None:
            self.app.call_from_thread(self.show, page)

    def show(self, page: JobPage) -> None:
        card, details = page.card, page.details
        lines = [f"{card.name} ({card.job_id}): {card.state}, {card.guarantee or 'no guarantee known'}"]
        lines += [] if page.answers else [f"no answer; the figures are {_age(card.as_of_ms)} old"]
        lines += [f"! {finding.sentence}" for finding in page.findings]
        self.query_one("#about", Static).update(Text("\n".join(map(plain_line, lines))))
        busy: dict[int, float] = {}
        for subtask in details.subtasks:
            busy[subtask.chain] = max(busy.get(subtask.chain, 0.0), subtask.busy)
        operators = self.query_one("#operators", DataTable)
        operators.clear()
        for o in details.operators:
            rates = (o.records_in_per_second, o.records_out_per_second)
            shown = (str(o.id), o.label, str(o.parallelism), f"{busy.get(o.chain, 0.0):.0%}", *map(_rate, rates))
            operators.add_row(*map(_cell, (*shown, _number(o.state_bytes))))
        latest = self.query_one("#checkpoints", DataTable)
        latest.clear()
        for view in reversed(details.checkpoints[-_SHOWN:]):
            took = "" if view.entry is None else duration(round(view.entry.duration_ms))
            new = None if view.entry is None else view.entry.incremental
            status = view.status.value if view.message is None else f"{view.status.value}: {view.message}"
            latest.add_row(*map(_cell, (str(view.checkpoint_id), status, took, _number(view.size), _number(new))))


def _app(screen: Screen[None]) -> TopApp:
    app = screen.app
    assert isinstance(app, TopApp)
    return app


def _page(job: ShownJob) -> JobPage | None:
    try:
        return job_page(job)
    except (TidegateError, OSError):
        return None


def _row(card: JobCard) -> tuple[str, ...]:
    number = "" if card.last_checkpoint_id is None else str(card.last_checkpoint_id)
    age = "" if card.last_checkpoint_ms is None else _age(card.last_checkpoint_ms)
    job_id = card.job_id[:12]
    return (
        job_id,
        card.state,
        _rate(card.records_per_second),
        _number(card.lag),
        number,
        age,
        str(card.restarts),
        card.name,
    )


def _cell(text: str) -> Text:
    return Text(plain_line(text)[:60])


def _age(at_ms: int) -> str:
    return duration(max(0, time.time_ns() // 1_000_000 - at_ms), coarse=True)


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
