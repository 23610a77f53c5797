"""``tidegate web``: the page of all jobs; ``tidegate top``: the same on the terminal."""

from __future__ import annotations

import select
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.base.errors import ConfigurationError
from tidegate.cli.outcome import Verbose, command, say

if TYPE_CHECKING:
    from tidegate.control.web.server import PageServer

_LOOK_S = 1.0


@command
def web(
    port: Annotated[
        int | None,
        typer.Option("-p", "--port", min=0, max=65535, help="The port; 8081 or the next free one if not given."),
    ] = None,
    bind: Annotated[
        str, typer.Option("--bind", metavar="HOST", help="Listen at this address; beyond loopback with a secret only.")
    ] = "127.0.0.1",
    name: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="HOST", help="A name that browsers call this server by, for example a proxy's."),
    ] = None,
    password_file: Annotated[
        str | None, typer.Option("--password-file", metavar="FILE", help="A file with the password for people.")
    ] = None,
    token_file: Annotated[
        str | None, typer.Option("--token-file", metavar="FILE", help="A file with the token for programs.")
    ] = None,
    cert: Annotated[str | None, typer.Option("--cert", metavar="FILE", help="The certificate for TLS, PEM.")] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="FILE", help="Its key, PEM.")] = None,
    allow_submit: Annotated[
        bool, typer.Option("--allow-submit", help="People who log in may upload programs and run them as you.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Show all your jobs on a page: running, ended, failed and died ones. Prints an address that logs you in once."""
    from tidegate.control.registry_jobs import RegistryJobs
    from tidegate.control.web.login import read_secret
    from tidegate.control.web.programs import Programs
    from tidegate.control.web.restarts import Restarts
    from tidegate.control.web.server import DEFAULT_PORT, NEXT_PORTS, PageServer, Tls

    if (cert is None) != (key is None):
        raise ConfigurationError(
            "TLS needs a certificate and its key", found="only one of them", cure="give --cert FILE and --key FILE"
        )
    programs = Programs()
    server = PageServer(
        RegistryJobs(),
        server="installation",
        host=bind,
        ports=range(DEFAULT_PORT, DEFAULT_PORT + NEXT_PORTS) if port is None else (port,),
        names=name or (),
        password=None if password_file is None else read_secret(password_file, "--password-file"),
        token=None if token_file is None else read_secret(token_file, "--token-file"),
        tls=None if cert is None or key is None else Tls(cert, key),
        programs=programs if allow_submit else None,
        restarts=Restarts(programs),
        code_used=lambda: say(_address(server)),
    )
    say(f"the page of your jobs; Ctrl-C ends it{', Enter gives a new address' if sys.stdin.isatty() else ''}", err=True)
    say(_address(server))
    try:
        while server.is_open:
            _new_address_on_enter(server)
    finally:
        server.close()


@command
def top(
    every: Annotated[float, typer.Option("--every", min=0.2, help="Ask the drivers so often, in seconds.")] = 1.0,
    verbose: Verbose = False,
) -> None:
    """Show your jobs, their rates and checkpoints on the terminal, live. Enter opens a job, Escape goes back, q ends."""
    from tidegate.base.imports import library

    library("textual", "tidegate top", "top")
    from tidegate.cli.top import TopApp
    from tidegate.control.registry_jobs import RegistryJobs

    TopApp(RegistryJobs(), every).run()


def _address(server: PageServer) -> str:
    return server.login_address()


def _new_address_on_enter(server: PageServer) -> None:
    if not sys.stdin.isatty():
        return time.sleep(_LOOK_S)
    ready, _, _ = select.select([sys.stdin], [], [], _LOOK_S)
    if ready:
        if not sys.stdin.readline():
            return time.sleep(_LOOK_S)
        say(_address(server))
    return None
