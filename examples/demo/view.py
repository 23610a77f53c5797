"""How the demo looks: a live picture for a terminal, plain lines for anything else."""

from __future__ import annotations

from audit import Audit
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from story import DETAIL, STEPS, Story

WHY = (
    "A barrier cuts the stream once, through every operator: source positions, totals, open windows and output files of a "
    "checkpoint all hold the same orders. A restart takes all of them back together. Parts of different moments would "
    "lose orders or count them twice, and the audit at the end would see it."
)
LEGEND = "killed before 7 is done: back to the checkpoint before; later: it is finished at the restart"
_BARS = "▁▂▃▄▅▆▇█"
_STATUS = {"running": "bold green", "killed": "bold red", "finished": "bold green"}


def picture(story: Story, width: int) -> RenderableType:
    left = 40 if width >= 80 else width
    columns = Table.grid(expand=True)
    columns.add_column(width=left)
    columns.add_column(ratio=1)
    columns.add_row(
        Panel(figures(story, left - 4), title="job", title_align="left", height=12),
        Panel(events(story, 10), title="what happens", title_align="left", height=12),
    )
    return Group(
        Text.assemble(
            (" Tidegate ", "bold reverse"), "  orders by customer, exactly-once files, two kills in mid-checkpoint"
        ),
        columns,
        Panel(protocol(story), title="the nine steps of a checkpoint", title_align="left"),
        Text(WHY, style="dim"),
    )


def figures(story: Story, width: int) -> RenderableType:
    reader = story.reader
    rows = [
        ("attempt", Text.assemble(f"{story.attempt}   ", (status(story), _STATUS.get(story.status, "yellow")))),
        ("rounds", f"{story.rounds:,}"),
        ("checkpoints", f"{story.checkpoints} complete, latest {story.checkpoint}"),
        ("state", f"{story.state_bytes / 1e6:.1f} MB"),
        ("committed", f"{reader.orders:,} orders"),
        ("files", f"{reader.files} visible, {reader.hidden} hidden"),
        ("kills", Text(str(len(story.kills)), style="red" if story.kills else "")),
    ]
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    for name, value in rows:
        table.add_row(name, value)
    return Group(table, sparkline(story, width), ProgressBar(story.orders, reader.orders, width=width))


def status(story: Story) -> str:
    """While it starts, with the seconds so far: a start takes a while and should not look stuck."""
    return f"{story.status}, {story.seconds - story.attempt_began:.0f} s" if story.is_starting else story.status


def sparkline(story: Story, width: int) -> Text:
    pace = story.throughput(width - 12, every=2)
    top = max([*pace, 1])
    bars = "".join(_BARS[min(7, n * 8 // (top + 1))] if n else "·" for n in pace)
    latest = next((n for n in reversed(pace) if n), 0) if story.status == "running" else 0
    return Text.assemble((bars, "cyan"), f"  {latest:,}/s")


def events(story: Story, lines: int) -> Text:
    latest = [event for event in story.events if event[2] != DETAIL][-lines:]
    return Text("\n", no_wrap=True, overflow="ellipsis").join(
        Text.assemble((f"{seconds:5.1f} ", "dim"), (text, style)) for seconds, text, style in latest
    )


def protocol(story: Story) -> Text:
    """The steps, the one reached last, and where the latest kill struck."""
    text = Text()
    for number, name in enumerate(STEPS, 1):
        reached = number == story.step and story.killed_after is None
        text.append(f"{number} {name}", style="bold green" if reached else "")
        text.append(" ✗ " if number == story.killed_after else " ", style="bold red")
    killed = story.killed_after is not None
    text.append(f"\n✗ {story.explanation}" if killed else f"\n{LEGEND}", style="red" if killed else "dim")
    return text


def status_line(story: Story) -> str:
    reader = story.reader
    pace = next((n for n in reversed(story.throughput(10)) if n), 0)
    figures = f", {pace:,} orders/s" if story.status == "running" else ""
    return (
        f"{story.seconds:6.1f} s  attempt {story.attempt}: {status(story)}{figures}; "
        f"{reader.orders:,} of {story.orders:,} orders committed in {reader.files} files"
    )


def verdict(result: Audit, story: Story) -> RenderableType:
    table = Table(title="audit by an independent reader: the files against the orders' formula", title_justify="left")
    table.add_column("output")
    for name in ("must be there", "found", "lost", "doubled", "wrong"):
        table.add_column(name, justify="right")
    for finding in result.findings:
        numbers = [finding.expected, finding.found, finding.lost, finding.doubled, finding.wrong]
        table.add_row(finding.what, *[f"{n:,}" for n in numbers], style="" if finding.right else "bold red")
    lines = [
        f"records in {story.orders:,}, records out {result.findings[0].found:,}",
        f"running totals right for {result.customers - len(result.wrong_customers):,} of {result.customers:,} customers",
        f"files left over by killed attempts: {len(result.hidden)}",
        *(f"killed in {kill}" for kill in story.kills),
    ]
    good = result.passed and not story.reader.shrunk
    lines += ["output that was visible once has disappeared"] if story.reader.shrunk else []
    end = Text("PASSED: lost 0, doubled 0", style="bold green") if good else Text("FAILED", style="bold red")
    return Group(table, Text("\n".join(lines)), end)
