"""The command line: run a program, explain it, show what can be configured."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import tidegate
from tidegate.cli import dev
from tidegate.cli import explain as explaining
from tidegate.common import global_configuration, pyflink_imports
from tidegate.common.configuration import effective
from tidegate.common.errors import ConfigurationError, ProgramError, TidegateError
from tidegate.common.flink_keys import PASSED_ON
from tidegate.common.global_configuration import set_dynamic_properties
from tidegate.common.option_types import BOOL
from tidegate.common.options import (
    PARALLELISM,
    RECOVERY_CLAIM,
    RECOVERY_IGNORE_UNCLAIMED,
    RECOVERY_PATH,
    REGISTRY,
    SPELLINGS,
    TARGET,
)
from tidegate.common.portable_errors import RemoteTraceback, trace
from tidegate.datastream.executor import register_executor
from tidegate.spark.launch import forget_ahead
from tidegate.spark.session import start_ahead

app = typer.Typer(
    name="tidegate",
    help="Run DataStream programs on Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # they show local variables, and with them secrets
)

app.add_typer(dev.app, name="dev")

INTERRUPTED = 130


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


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    script: Annotated[str, typer.Argument(help="The program, a Python file.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="What follows goes to the program.")] = None,
    define: Annotated[list[str] | None, typer.Option("-D", metavar="KEY=VALUE", help="A configuration key.")] = None,
    parallelism: Annotated[int | None, typer.Option("-p", "--parallelism", help="Default parallelism.")] = None,
    from_savepoint: Annotated[
        str | None, typer.Option("-s", "--fromSavepoint", help="Start from this checkpoint or savepoint.")
    ] = None,
    allow_non_restored_state: Annotated[
        bool, typer.Option("-n", "--allow-non-restored-state", "--allowNonRestoredState", help="Skip unknown state.")
    ] = False,
    claim_mode: Annotated[str | None, typer.Option("--claim-mode", help="no_claim or claim.")] = None,
    master: Annotated[str | None, typer.Option("--master", help="Spark master, for example local[4].")] = None,
    pyflink: Annotated[
        bool, typer.Option("--pyflink", help="A PyFlink program: its imports of pyflink mean Tidegate.")
    ] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show stack traces of failures.")] = False,
) -> None:
    """Run a program. Options stand before the file; what the program sets itself wins over them."""
    try:
        properties = parse_definitions(define or [])
        shorthands = {
            PARALLELISM.key: parallelism,
            RECOVERY_PATH.key: from_savepoint,
            RECOVERY_IGNORE_UNCLAIMED.key: True if allow_non_restored_state else None,
            RECOVERY_CLAIM.key: claim_mode,
            "spark.master": master,
        }
        properties |= {key: value for key, value in shorthands.items() if value is not None}
        set_dynamic_properties(properties)
        _run_script(script, arguments or [], pyflink, ahead=_start_spark)
    except KeyboardInterrupt as interrupted:
        typer.echo(str(interrupted) or "interrupted", err=True)
        sys.exit(INTERRUPTED)
    except Exception as error:
        _fail(error, verbose)
    finally:
        forget_ahead()


@app.command(context_settings={"allow_interspersed_args": False})
def explain(
    script: Annotated[str, typer.Argument(help="The program, a Python file.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="What follows goes to the program.")] = None,
    define: Annotated[list[str] | None, typer.Option("-D", metavar="KEY=VALUE", help="A configuration key.")] = None,
    parallelism: Annotated[int | None, typer.Option("-p", "--parallelism", help="Default parallelism.")] = None,
    pyflink: Annotated[
        bool, typer.Option("--pyflink", help="A PyFlink program: its imports of pyflink mean Tidegate.")
    ] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show stack traces of failures.")] = False,
) -> None:
    """Show the graph of a program and how each function runs: called, inlined, on columns, and why not. Starts nothing:
    the program runs up to its first execute()."""
    try:
        properties = {**parse_definitions(define or []), TARGET.key: explaining.TARGET}
        set_dynamic_properties(properties | ({PARALLELISM.key: parallelism} if parallelism is not None else {}))
        register_executor(explaining.TARGET, explaining.ExplainingExecutor)
        _run_script(script, arguments or [], pyflink)
        raise ProgramError("explain needs a program that comes to execute()", where=script, found="it ended before")
    except explaining.Built as built:
        for line in explaining.explained(built.program):
            typer.echo(line)
    except Exception as error:
        _fail(error, verbose)


@app.command()
def options() -> None:
    """List all configuration keys with their defaults."""
    for option in REGISTRY.values():
        spellings = f" (also {', '.join(option.aliases)})" if option.aliases else ""
        default = "not set" if option.default is None else option.default
        note = f" Note: {option.note}." if option.note else ""
        typer.echo(f"{option.key}{spellings}\n    {option.doc} {option.type.name}; default: {default}.{note}")


def parse_definitions(definitions: list[str]) -> dict[str, object]:
    """``key=value`` texts; the key of a switch alone means true, as in Flink."""
    properties: dict[str, object] = {}
    for definition in definitions:
        key, separator, value = definition.partition("=")
        if not key.strip() or not (separator or _is_switch(key.strip())):
            raise ConfigurationError("-D takes KEY=VALUE", found=repr(definition), cure="-D parallelism.default=2")
        properties[key.strip()] = value.strip() if separator else "true"
    return properties


def _is_switch(key: str) -> bool:
    option = SPELLINGS.get(key)
    return key.startswith(PASSED_ON) or (option is not None and option.type is BOOL)


def _run_script(script: str, arguments: list[str], pyflink: bool, ahead: Callable[[], None] = lambda: None) -> None:
    path = Path(script)
    if not path.is_file():
        raise ConfigurationError("run takes a Python file", found=f"no file {script}", cure="check the path")
    if pyflink and pyflink_imports.install():
        typer.echo("apache-flink is installed here too; with --pyflink it is not used", err=True)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    ahead()
    runpy.run_path(os.path.abspath(script), run_name="__main__")


def _start_spark() -> None:
    """While the program is read and built. A wrong configuration is for the program to meet."""
    with contextlib.suppress(TidegateError):
        configuration = effective(global_configuration.load())
        if configuration[TARGET.key] == TARGET.default:
            start_ahead(configuration)


def _fail(error: Exception, verbose: bool) -> NoReturn:
    """Of an error of ours the message, and what it was caused by; of any other the traceback of the user's code. The whole stack
    only when asked for."""
    if verbose:
        traceback.print_exception(error)
    elif isinstance(error, TidegateError):
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        _tell_causes(error)
    else:
        typer.echo(trace(error), err=True, nl=False)
    sys.exit(1)


def _tell_causes(error: BaseException) -> None:
    """Those that say something new: a failed job has the message of why in its own."""
    told, cause = str(error), error.__cause__
    while cause is not None and not isinstance(cause, RemoteTraceback):
        text = str(cause)
        if text not in told or not isinstance(cause, TidegateError):
            typer.echo(f"caused by {type(cause).__name__}" + (f": {text}" if text else ""), err=True)
        cause = cause.__cause__


def main() -> None:
    """The entry point ``tidegate``."""
    app()


if __name__ == "__main__":
    main()
