"""``tidegate state``: the content of a checkpoint or savepoint, its rows, and the difference between two."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tidegate.cli.outcome import Json, Verbose, command

SHOW = "show"


class _ShowsByDefault(TyperGroup):
    """``tidegate state PATH`` is ``tidegate state show PATH``."""

    default = SHOW

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = [self.default, *args]
        return super().parse_args(ctx, args)


NoPickle = Annotated[bool, typer.Option("--no-pickle", help="Load no pickles: show their bytes.")]
SigningKeyFile = Annotated[
    str | None, typer.Option("--signing-key-file", metavar="FILE", help="Refuse a snapshot that this key did not sign.")
]

app = typer.Typer(
    cls=_ShowsByDefault,
    no_args_is_help=True,
    help="Look into a checkpoint or savepoint: tidegate state PATH, tidegate state diff BEFORE NOW.",
)


@app.command(SHOW, hidden=True)
@command
def show(
    path: Annotated[str, typer.Argument(help="A checkpoint or savepoint, its _metadata, or the directory of a job.")],
    operator: Annotated[str | None, typer.Option("-o", "--operator", help="Its uid, uid hash or name.")] = None,
    state: Annotated[str | None, typer.Option("-s", "--state", help="Show the rows of this state.")] = None,
    timers: Annotated[bool, typer.Option("--timers", help="Show the operator's timers.")] = False,
    expired: Annotated[bool, typer.Option("--expired", help="Also rows whose time to live has expired.")] = False,
    limit: Annotated[int | None, typer.Option("-n", "--limit", min=0, help="Show this many rows at most.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Rows as CSV.")] = False,
    parquet: Annotated[str | None, typer.Option("--parquet", metavar="FILE", help="Rows into a Parquet file.")] = None,
    count: Annotated[bool, typer.Option(help="Count entries and bytes of each state: reads all files.")] = True,
    no_pickle: NoPickle = False,
    signing_key_file: SigningKeyFile = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show operators and states of a snapshot with their sizes; with --operator and --state, the rows of one state."""
    from tidegate.cli import state_views  # other commands do not need it

    reader = state_views.open_snapshot(path, signing_key_file, allow_pickle=not no_pickle)
    if state is not None or timers:
        return state_views.show_rows(
            reader, operator, state, expired=expired, limit=limit, csv=csv, json=json, parquet=parquet
        )
    state_views.show_overview(reader, operator, rows_asked=csv or parquet is not None, count=count, json=json)


@app.command("diff")
@command
def diff(
    before: Annotated[str, typer.Argument(help="A checkpoint or savepoint.")],
    now: Annotated[str, typer.Argument(help="A later one.")],
    examples: Annotated[int, typer.Option("--examples", min=0, help="Show this many rows of each kind of change.")] = 3,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if anything differs.")] = False,
    no_pickle: NoPickle = False,
    signing_key_file: SigningKeyFile = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show the difference between two snapshots: keys added, removed and changed in each state, with examples."""
    from tidegate.cli import state_views

    sides = [state_views.open_snapshot(path, signing_key_file, allow_pickle=not no_pickle) for path in (before, now)]
    state_views.show_difference(*sides, examples=examples, exit_code=exit_code, json=json)
