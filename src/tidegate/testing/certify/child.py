"""The process in which ``tidegate certify`` runs a user's program. It reports as lines of JSON.

The command starts two of these with different hashes: the first gives its result alone, the second does everything else.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections import Counter
from typing import Any, TextIO

from tidegate.base.errors import ProgramError, TidegateError
from tidegate.cli.outcome import exit_code
from tidegate.cli.script import run_script
from tidegate.common.global_configuration import set_dynamic_properties
from tidegate.common.job_client import RunningJob
from tidegate.datastream.executor import instead_of_all
from tidegate.graph.transformation import Program
from tidegate.testing.certify import probes
from tidegate.testing.certify.certifier import Certifier
from tidegate.testing.certify.isolation import isolate
from tidegate.testing.certify.prepared import prepare


class _Loaded(BaseException):
    """The program has called ``execute``. It is no Exception, so that a program that catches exceptions does not continue."""

    def __init__(self, program: Program, names: dict[str, Any]) -> None:
        super().__init__(program.name)
        self.program, self.names = program, names


class _LoadingExecutor:
    """Hand the program over instead of running it, with the names of its file."""

    script = ""

    def execute_async(self, program: Program) -> RunningJob:
        frame = sys._getframe()
        while frame.f_back is not None and frame.f_code.co_filename != self.script:
            frame = frame.f_back
        raise _Loaded(program, dict(frame.f_globals))


def load(script: str, arguments: list[str], properties: dict[str, object], *, pyflink: bool) -> Program:
    """Run a file up to its first ``execute()``. Its classes become those of ``__main__``, so records of them can be pickled."""
    set_dynamic_properties(properties)
    _LoadingExecutor.script = os.path.abspath(script)
    try:
        with instead_of_all(_LoadingExecutor):
            run_script(script, arguments, pyflink=pyflink)
    except _Loaded as done:
        main = vars(sys.modules["__main__"])
        main.update({name: value for name, value in done.names.items() if not name.startswith("__")})
        return done.program
    raise ProgramError(
        "certify needs a program that calls execute()",
        where=script,
        found="the program ended before",
        cure="call env.execute() in the file",
    )


def main(arguments: list[str]) -> None:
    asked = json.loads(arguments[0])
    with os.fdopen(asked["fd"], "w") as told:
        report = _Reporter(told)
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - what the program prints is not the report
        logging.disable(logging.CRITICAL)
        warnings.simplefilter("ignore")
        isolated = isolate()
        try:
            with probes.stand_ins():
                _run(asked, report, isolated=isolated)
        except BaseException as error:
            report.failed(error)


class _Reporter:
    def __init__(self, told: TextIO) -> None:
        self._told = told

    def tell(self, **facts: Any) -> None:
        self._told.write(json.dumps(facts) + "\n")
        self._told.flush()

    def progress(self, done: int, of: int, what: str) -> None:
        self.tell(event="progress", done=done, of=of, what=what)

    def failed(self, error: BaseException) -> None:
        text = str(error) if isinstance(error, TidegateError) else f"The program fails: {type(error).__name__}: {error}"
        kind = type(error).__name__ if isinstance(error, TidegateError) else ""
        self.tell(event="failed", text=text, kind=kind, code=int(exit_code(error)))


def _run(asked: dict[str, Any], report: _Reporter, *, isolated: bool) -> None:
    program = load(asked["script"], asked["arguments"], asked["properties"], pyflink=asked["pyflink"])
    job = prepare(program, asked["inputs"])
    certifier = Certifier(
        job, most=asked["schedules"], seconds=asked["seconds"], seed=asked["seed"], progress=report.progress
    )
    expected = certifier.reference()
    if asked["alone"]:
        return report.tell(event="outcome", outcome=expected)
    other = asked["other"]
    done = certifier.run(None if other is None else {sink: Counter(values) for sink, values in other.items()})
    if not job.takes_checkpoints and not job.batch:
        done.notes.append("the program takes no checkpoints: certify ran it with checkpoints")
    if not isolated:
        done.notes.append("network calls of C libraries were not refused by the kernel: run certify as root for that")
    report.tell(event="report", report=done.facts())


if __name__ == "__main__":
    main(sys.argv[1:])
