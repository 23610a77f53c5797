"""``tidegate debug``: runs a failed round again, in this process, with the debugger at the user's line."""

from __future__ import annotations

import pdb
import tempfile
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.base.errors import SnapshotError
from tidegate.base.user_code import is_the_users
from tidegate.cli.jobs import job_ids
from tidegate.cli.outcome import Json, Verbose, command, print_json, say

if TYPE_CHECKING:
    from tidegate.runtime.replay import Failure


@command
def debug(
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB|PATH",
            help="A job that failed: its id or its directory; or a checkpoint.",
            autocompletion=job_ids,
        ),
    ],
    record: Annotated[bool, typer.Option("--record", help="Show record, key, state and line, and exit.")] = False,
    program: Annotated[
        str | None,
        typer.Option("--program", metavar="FILE", help="Run the rounds after a checkpoint, with this program."),
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="With --program: run this many rounds at most.")] = 100,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run the round again in which a job's code failed: in this process, without Spark and without writing to a sink. Stops in the
    debugger at the line that failed, with record, key and state as variables."""
    from tidegate.base.files import Files
    from tidegate.cli.checkpoint_list import directory_of
    from tidegate.runtime.failed_round import FailedRound  # other commands do not need the runtime
    from tidegate.runtime.replay import replay

    show: Callable[[Failure], None] = _print_json if json else _print if record else _debug
    with tempfile.TemporaryDirectory(prefix="tidegate-debug-") as directory:
        if program is not None:
            return _replay_program(program, job, directory, show, rounds)
        failed = FailedRound.read(Files(directory_of(job)))
        if not json:
            plan = failed.plan.context
            say(f"job '{failed.job_name}' ({failed.job_id}), round {plan.round}, failed with:\n{failed.message}\n")
        if not replay(failed, directory, show):
            raise SnapshotError(
                "The round did not fail again: something else than its records and state decides",
                where=f"job '{failed.job_name}', round {failed.plan.context.round}",
                found="it ran through. It had failed with: " + failed.message.replace("\n", "\n    "),
                cure="check whether the code uses the clock, random numbers or other systems; a replay does not write to sinks",
            )


def _replay_program(script: str, path: str, directory: str, stopped: Callable[[Failure], None], most: int) -> None:
    """Run the rounds after a checkpoint with the program as it is now."""
    from tidegate.base.plain_text import count
    from tidegate.cli.explain import built
    from tidegate.runtime.replay import End, replay_after

    found = replay_after(built(script, [], {}, asks="debug"), path, directory, stopped, most)
    if found.end is not End.FAILED:
        say(f"no failure in {count(found.rounds, 'round')} with {count(found.records, 'record')}: {found.end.value}")


# -- what is shown -------------------------------------------------------------------------------------------------------


def facts(failure: Failure) -> list[tuple[str, str]]:
    """Describe the failure as lines. Without a record, a timer or a window has called the function."""
    from tidegate.operators.loop.blame import reprlib_repr

    found = [("operator", failure.operator), ("subtask", failure.subtask)]
    if failure.line is not None:
        found.append(("line", failure.line))
    if failure.has_record:
        found.append(("record", reprlib_repr(failure.record)))
    if failure.has_key:
        found.append(("key", reprlib_repr(failure.key)))
        found += [(f"state {name!r}", reprlib_repr(value)) for name, value in failure.state.items()]
    text = str(failure.error)
    return [*found, ("error", type(failure.error).__name__ + (f": {text}" if text else ""))]


def _print(failure: Failure) -> None:
    for name, text in facts(failure):
        say(f"{name}: {text}")


def _print_json(failure: Failure) -> None:
    from tidegate.cli.state_views import jsonable

    print_json(
        {
            "operator": failure.operator,
            "subtask": failure.subtask,
            "line": failure.line,
            "record": jsonable(failure.record),
            "key": jsonable(failure.key),
            "state": jsonable(failure.state),
            "error": f"{type(failure.error).__name__}: {failure.error}",
        }
    )


def _debug(failure: Failure) -> None:
    _print(failure)
    say("variables: record, key, state, operator, error; q quits\n")
    debugger = Debugger(failure)
    debugger.reset()
    debugger.interaction(None, failure.error.__traceback__)


class Debugger(pdb.Pdb):
    """A post-mortem debugger at the innermost frame of user code, where the facts of the failure are variables."""

    def __init__(self, failure: Failure) -> None:
        super().__init__()
        self.prompt = "(tidegate) "
        self._known = {
            "record": failure.record,
            "key": failure.key,
            "state": failure.state,
            "operator": failure.operator,
            "error": failure.error,
        }

    def setup(self, frame: FrameType | None, tb: Any) -> Any:
        done = super().setup(frame, tb)
        users = [n for n, (one, _) in enumerate(self.stack) if is_the_users(one.f_code.co_filename)]
        if users:
            self.curindex = users[-1]
            self.curframe = self.stack[self.curindex][0]
            self.curframe_locals = self.curframe.f_locals
        variables: Any = self.curframe_locals
        for name, value in self._known.items():
            if name not in variables:  # the user's own variables win
                variables[name] = value
        return done
