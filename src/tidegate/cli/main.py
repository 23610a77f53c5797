"""The command line: run and explain programs, show jobs, send commands to them."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from contextlib import nullcontext, suppress
from enum import Enum
from typing import Annotated, Any

import typer
from typer.completion import completion_init, get_completion_script  # type: ignore[attr-defined]
from typer.core import TyperCommand

import tidegate
from tidegate.base.errors import ConfigurationError
from tidegate.base.plain_text import PlainFormatter, plain_line
from tidegate.base.process import heed_sigterm
from tidegate.cli import background, certify, commands, debug, jobs, kafka, state, web_page
from tidegate.cli.background import MOST_RESTARTS, Supervisor
from tidegate.cli.flink_options import instead_of, understood
from tidegate.cli.outcome import (
    ExitCode,
    Json,
    Verbose,
    command,
    ends_quietly,
    outcomes_at_the_end,
    print_json,
    say,
)
from tidegate.cli.script import refuse_missing, run_script, spark_ahead
from tidegate.common.configuration import PASSED_ON
from tidegate.common.global_configuration import set_dynamic_properties, tell_file
from tidegate.common.option_types import BOOL
from tidegate.common.options import (
    ALLOW_PICKLE,
    PARALLELISM,
    RECOVERY_CLAIM,
    RECOVERY_IGNORE_UNCLAIMED,
    RECOVERY_PATH,
    REGISTRY,
    REQUIRE,
    REST_BIND_PORT,
    RESTORE_PREVIOUS,
    SPELLINGS,
    WEB_ENABLED,
)

app = typer.Typer(
    name="tidegate",
    help="Run DataStream programs on Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # they show local variables, and so secrets
)

app.add_typer(kafka.dev, name="dev")
app.add_typer(state.app, name="state")
app.add_typer(kafka.app, name="kafka")

_COMPLETE = "_TIDEGATE_COMPLETE"


class Shell(Enum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


Define = Annotated[list[str] | None, typer.Option("-D", metavar="KEY=VALUE", help="A configuration key.")]
Parallelism = Annotated[int | None, typer.Option("-p", "--parallelism", help="Default parallelism.")]
PyFlink = Annotated[bool, typer.Option("--pyflink", help="A PyFlink program: its imports of pyflink mean Tidegate.")]
Script = Annotated[str, typer.Argument(help="The program, a Python file.")]
Arguments = Annotated[list[str] | None, typer.Argument(help="Arguments of the program.")]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"tidegate {tidegate.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Run DataStream programs on Spark."""


class _RunCommand(TyperCommand):
    """``--web=PORT`` is ``--web --web-port=PORT``: an option of the library has a value always or never."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        split: list[str] = []
        for index, arg in enumerate(args):
            if arg == "--":
                split += args[index:]
                break
            split += ["--web", f"--web-port={arg[6:]}"] if arg.startswith("--web=") else [arg]
        return super().parse_args(ctx, split)


@app.command(cls=_RunCommand, context_settings={"allow_interspersed_args": False})
@command
def run(
    script: Script,
    arguments: Arguments = None,
    define: Define = None,
    parallelism: Parallelism = None,
    from_savepoint: Annotated[
        str | None, typer.Option("-s", "--fromSavepoint", help="Start from this checkpoint or savepoint.")
    ] = None,
    allow_non_restored_state: Annotated[
        bool, typer.Option("-n", "--allow-non-restored-state", "--allowNonRestoredState", help="Skip unknown state.")
    ] = False,
    claim_mode: Annotated[str | None, typer.Option("--claim-mode", help="no_claim or claim.")] = None,
    restore_previous: Annotated[
        bool, typer.Option("--restore-previous", help="Skip a damaged checkpoint whose output is not committed.")
    ] = False,
    no_pickle: Annotated[
        bool, typer.Option("--no-pickle", help="Refuse pickled keys and state, in the snapshot and in the program.")
    ] = False,
    master: Annotated[str | None, typer.Option("--master", help="Spark master, for example local[4].")] = None,
    deploy_mode: Annotated[
        str | None, typer.Option("--deploy-mode", help="client: the driver runs here; cluster: in a container (YARN).")
    ] = None,
    entry: Annotated[
        str | None, typer.Option("-c", "--entry", metavar="FUNCTION", help="Call this function of the file.")
    ] = None,
    pyflink: PyFlink = False,
    detached: Annotated[
        bool,
        typer.Option("-d", "--detached", help="Run in the background: print the job's id when it runs, and return."),
    ] = False,
    supervise: Annotated[
        bool, typer.Option("--supervise", help="Start a dead driver again, from the latest checkpoint.")
    ] = False,
    max_restarts: Annotated[
        int, typer.Option("--max-restarts", min=0, help="With --supervise: this many restarts in a row.")
    ] = MOST_RESTARTS,
    require: Annotated[
        str | None,
        typer.Option("--require", metavar="GUARANTEE", help="Refuse a job with a weaker guarantee: exactly-once ..."),
    ] = None,
    web: Annotated[bool, typer.Option("--web", help="Show the job on a page; --web=PORT at this port.")] = False,
    web_port: Annotated[int | None, typer.Option("--web-port", min=0, max=65535, hidden=True)] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run a program. Options stand before the file; settings in the program win over them."""
    properties = parse_definitions(define or [])
    shorthands = {
        PARALLELISM.key: parallelism,
        RECOVERY_PATH.key: from_savepoint,
        RECOVERY_IGNORE_UNCLAIMED.key: True if allow_non_restored_state else None,
        RECOVERY_CLAIM.key: claim_mode,
        RESTORE_PREVIOUS.key: True if restore_previous else None,
        ALLOW_PICKLE.key: False if no_pickle else None,
        REQUIRE.key: require,
        "spark.master": master,
        WEB_ENABLED.key: True if web else None,
        REST_BIND_PORT.key: web_port,
    }
    properties |= {key: value for key, value in shorthands.items() if value is not None}
    if deploy_mode is not None and _runs_there(deploy_mode, properties, script, supervise=supervise):
        from tidegate.cli.cluster import run_there  # pyspark: other commands do not need it

        return run_there(
            script,
            arguments or [],
            properties,
            detached=detached,
            json=json,
            pyflink=pyflink,
            entry=entry,
            verbose=verbose,
        )
    if detached or supervise:
        options = [
            f"-D{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in properties.items()
        ]
        options += (
            ["--pyflink"] * pyflink
            + ["-v"] * verbose
            + ["--json"] * (json and not detached)
            + (["-c", entry] if entry is not None else [])
        )
        options += ["--", script, *(arguments or [])]
        if detached:
            options[:0] = ["--supervise", f"--max-restarts={max_restarts}"] if supervise else []
            return background.start(options, json=json)
        sys.exit(Supervisor(options, max_restarts).run())
    set_dynamic_properties(properties)
    _prepare_output()
    with outcomes_at_the_end() if json else nullcontext():
        run_script(script, arguments or [], pyflink=pyflink, entry=entry, around=spark_ahead())


def _runs_there(deploy_mode: str, properties: dict[str, object], script: str, *, supervise: bool) -> bool:
    """Check --deploy-mode, and return whether the driver runs on the cluster."""
    from tidegate.spark.submission import check

    if deploy_mode != "client":
        check(str(properties.get("spark.master") or ""), deploy_mode)
        refuse_missing(script)
    if deploy_mode == "cluster" and supervise:
        raise ConfigurationError(
            "The cluster starts a dead driver again, not a process on this host",
            found="--supervise with --deploy-mode cluster",
            cure="omit --supervise; -Dspark.yarn.maxAppAttempts=N sets how often",
        )
    return deploy_mode == "cluster"


def _prepare_output() -> None:
    """Say which configuration file is used, and print log lines without escape sequences if the program sets up no logging."""
    with suppress(ConfigurationError):  # the program raises it itself
        tell_file(lambda text: say(text, err=True))
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(PlainFormatter("%(message)s"))


@app.command(context_settings={"allow_interspersed_args": False})
@command
def explain(
    script: Script,
    arguments: Arguments = None,
    define: Define = None,
    parallelism: Parallelism = None,
    pyflink: PyFlink = False,
    svg: Annotated[
        str | None,
        typer.Option("--svg", metavar="FILE", help="Draw the graph into this file; - is the standard output."),
    ] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show the graph of a program and how each function runs: called, inlined, on columns, and why not. No job is started:
    the program runs up to its first execute()."""
    properties = parse_definitions(define or []) | ({PARALLELISM.key: parallelism} if parallelism is not None else {})
    explain_program(script, arguments or [], properties, pyflink=pyflink, json=json, svg=svg)


def explain_program(
    script: str,
    arguments: list[str],
    properties: dict[str, object],
    *,
    pyflink: bool,
    json: bool,
    svg: str | None = None,
) -> None:
    """Run the program up to its first execute() and print what it would do, or draw its graph."""
    from tidegate.cli.explain import built, draw, explained, facts

    program = built(script, arguments, properties, asks="explain", pyflink=pyflink)
    if svg is not None:
        return draw(program, svg)
    if json:
        return print_json(facts(program))
    for line in explained(program):
        say(plain_line(line))


@app.command()
@command
def init(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The directory of the project; its last part is the name.")
    ],
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Make a project: a job, its test, a configuration, a Makefile. Refuses a directory that is not empty."""
    from tidegate.cli.init import make

    made = make(name)
    if json:
        return print_json({"directory": str(made.directory), "files": made.files})
    say("\n".join(f"made {made.directory / file}" for file in made.files))
    say(f"next: cd {name} && pip install -r requirements.txt && make test")


@app.command()
@command
def doctor(define: Define = None, json: Json = False, verbose: Verbose = False) -> None:
    """Check whether jobs can run on this machine, with this configuration, and say how to cure what is wrong. The exit code is 1
    if something is."""
    from tidegate.cli.doctor import show

    set_dynamic_properties(parse_definitions(define or []))
    sys.exit(show(json=json))


@kafka.dev.command("session")
@command
def dev_session(verbose: Verbose = False) -> None:
    """Keep Spark warm for programs that are being written: tidegate dev run FILE runs them here. Ends with Ctrl-C."""
    from tidegate.cli.dev_session import serve

    serve()


@kafka.dev.command("run", context_settings={"allow_interspersed_args": False})
@command
def dev_run(
    script: Script,
    arguments: Arguments = None,
    define: Define = None,
    parallelism: Parallelism = None,
    master: Annotated[str | None, typer.Option("--master", help="Spark master, for example local[4].")] = None,
    pyflink: PyFlink = False,
    verbose: Verbose = False,
) -> None:
    """Run a program in the session of tidegate dev session: from the second run on, Spark and its workers are there already."""
    from tidegate.cli.dev_session import Request, run_in_session

    shorthands = {PARALLELISM.key: parallelism, "spark.master": master}
    given = parse_definitions(define or []) | {key: value for key, value in shorthands.items() if value is not None}
    properties = {key: str(value) for key, value in given.items()}
    sys.exit(run_in_session(Request(script, arguments or [], properties, pyflink, os.getcwd(), dict(os.environ))))


app.command("list")(jobs.list_jobs)
app.command()(jobs.info)
app.command()(jobs.checkpoints)
app.command()(commands.checkpoint)
app.command()(commands.savepoint)
app.command()(commands.stop)
app.command()(commands.cancel)
app.command()(commands.logs)
app.command()(commands.wait)
app.command()(debug.debug)
app.command()(web_page.web)
app.command()(web_page.top)
app.command(context_settings={"allow_interspersed_args": False})(certify.certify)


@app.command()
def completion(shell: Annotated[Shell, typer.Argument(help="The shell.")]) -> None:
    """Print the completion script of a shell: eval "$(tidegate completion bash)"."""
    typer.echo(get_completion_script(prog_name="tidegate", complete_var=_COMPLETE, shell=shell.value))


@app.command()
def options(json: Json = False) -> None:
    """List all configuration keys with their defaults."""
    if json:
        every = REGISTRY.values()
        return print_json(
            [{"key": o.key, "also": o.aliases, "type": o.type.name, "default": o.default, "doc": o.doc} for o in every]
        )
    for option in REGISTRY.values():
        spellings = f" (also {', '.join(option.aliases)})" if option.aliases else ""
        default = "not set" if option.default is None else option.default
        note = f" Note: {option.note}." if option.note else ""
        typer.echo(f"{option.key}{spellings}\n    {option.doc} {option.type.name}; default: {default}.{note}")


def parse_definitions(definitions: list[str]) -> dict[str, object]:
    """Parse ``key=value`` texts. The key of a switch alone means true, as in Flink."""
    properties: dict[str, object] = {}
    for definition in definitions:
        key, separator, value = definition.partition("=")
        if not key.strip() or not (separator or _is_switch(key.strip())):
            raise ConfigurationError(
                "-D needs KEY=VALUE", found=repr(definition), cure="write for example -D parallelism.default=2"
            )
        properties[key.strip()] = value.strip() if separator else "true"
    return properties


def _is_switch(key: str) -> bool:
    option = SPELLINGS.get(key)
    return key.startswith(PASSED_ON) or (option is not None and option.type is BOOL)


def main() -> None:
    """The entry point ``tidegate``."""
    heed_sigterm()
    if _COMPLETE in os.environ:
        completion_init()
    elif (words := understood(sys.argv[1:])) is not None:
        say(f"run as: {shlex.join(['tidegate', *words])}", err=True)
        sys.argv[1:] = words
    elif (answer := instead_of(sys.argv[1:])) is not None:
        say(answer, err=True)
        sys.exit(ExitCode.USAGE)
    with ends_quietly():
        app(prog_name="tidegate")


if __name__ == "__main__":
    main()
