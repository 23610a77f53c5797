"""``tidegate certify``: a user's job in the simulator, on its own sample input."""

from __future__ import annotations

import json as json_text
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from tidegate.base.plain_text import plain_line
from tidegate.cli.outcome import ExitCode, Json, Verbose, command, print_json, say

_CHILD = "tidegate.testing.certify.child"


@command
def certify(
    script: Annotated[str, typer.Argument(help="The program, a Python file.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the program.")] = None,
    sample: Annotated[
        list[str] | None,
        typer.Option(
            "--input", metavar="SOURCE=FILE", help="A recorded sample for a source: a record a line, or .jsonl."
        ),
    ] = None,
    schedules: Annotated[int, typer.Option("--schedules", min=1, help="How many schedules to run.")] = 200,
    seconds: Annotated[int, typer.Option("--time", min=1, metavar="SECONDS", help="Stop after this time.")] = 300,
    seed: Annotated[int, typer.Option("--seed", help="Another seed gives other schedules.")] = 1,
    define: Annotated[list[str] | None, typer.Option("-D", metavar="KEY=VALUE", help="A configuration key.")] = None,
    parallelism: Annotated[int | None, typer.Option("-p", "--parallelism", help="Default parallelism.")] = None,
    pyflink: Annotated[bool, typer.Option("--pyflink", help="A PyFlink program.")] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run a program's functions in a simulator: killed at every fault point, rescaled, reordered, in one round and in many. Report
    code that gives another result then. Sinks are replaced by recorders, and no other system is touched. Exit code 1: findings."""
    from tidegate.cli.main import parse_definitions
    from tidegate.testing.certify.findings import Report
    from tidegate.testing.certify.prepared import inputs_of

    properties: dict[str, Any] = dict(parse_definitions(define or []))
    if parallelism is not None:
        properties["parallelism.default"] = parallelism
    asked: dict[str, Any] = {
        "script": script,
        "arguments": arguments or [],
        "properties": properties,
        "inputs": inputs_of(sample or []),
        "schedules": schedules,
        "seconds": seconds,
        "seed": seed,
        "pyflink": pyflink,
        "alone": True,
        "other": None,
    }
    bar = _Progress(shown=not json)
    with tempfile.TemporaryDirectory(prefix="tidegate-certify-") as home:
        for told in _child(asked, "2", home):
            if told["event"] == "failed":
                _end_with(told, json=json)
            if told["event"] == "outcome":
                asked["other"] = told["outcome"]
        report = None
        for told in _child({**asked, "alone": False}, "1", home):
            if told["event"] == "failed":
                bar.end()
                _end_with(told, json=json)
            elif told["event"] == "progress":
                bar.show(told)
            else:
                report = Report.of(told["report"])
        bar.end()
    if report is None:
        _end_with({"text": "The program has ended the process", "kind": "", "code": int(ExitCode.FAILED)}, json=json)
        return
    if json:
        print_json(report.facts())
    else:
        for line in report.lines():
            say(plain_line(line))
    if not report.certified:
        sys.exit(ExitCode.FAILED)


def _child(asked: dict[str, Any], hashes: str, home: str) -> Iterator[dict[str, Any]]:
    """Run a process with other hashes, and yield what it reports."""
    reading, writing = os.pipe()
    environment = {**os.environ, "PYTHONHASHSEED": hashes, "TZ": "UTC", "TIDEGATE_HOME": home}
    text = json_text.dumps({**asked, "fd": writing})
    process = subprocess.Popen(
        [sys.executable, "-m", _CHILD, text], env=environment, pass_fds=[writing], stdin=subprocess.DEVNULL
    )
    os.close(writing)
    try:
        with os.fdopen(reading) as lines:
            for line in lines:
                yield json_text.loads(line)
    finally:
        process.kill()
        process.wait()


def _end_with(told: dict[str, Any], *, json: bool) -> None:
    text = f"{told['kind']}: {told['text']}" if told["kind"] else told["text"]
    if json:
        text = json_text.dumps({"error": told["kind"], "message": told["text"], "exit_code": told["code"]})
    say(text, err=True)
    sys.exit(told["code"])


class _Progress:
    """A line on a terminal that changes; otherwise a line for each tenth."""

    def __init__(self, *, shown: bool) -> None:
        self._shown, self._live, self._last = shown, sys.stderr.isatty(), -1

    def show(self, told: dict[str, Any]) -> None:
        tenth = 10 * told["done"] // max(1, told["of"])
        text = f"{told['what']}: {told['done']} of {told['of']}"
        if not self._shown:
            return
        if self._live:
            sys.stderr.write(f"\r{text:<60}")
            sys.stderr.flush()
        elif tenth != self._last and told["what"] == "schedules":
            say(text, err=True)
        self._last = tenth

    def end(self) -> None:
        if self._shown and self._live and self._last >= 0:
            sys.stderr.write("\r" + " " * 60 + "\r")
