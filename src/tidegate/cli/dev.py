"""Servers for development on this machine: ``tidegate dev kafka start|stop|status``."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.base.errors import TidegateError
from tidegate.cli.outcome import say
from tidegate.connectors.kafka.dev_broker import DEFAULT_PORT, DevBroker, home

app = typer.Typer(help="Servers for development, on loopback only.", no_args_is_help=True)
kafka = typer.Typer(help="A Kafka broker of one node.", no_args_is_help=True)
app.add_typer(kafka, name="kafka")

Port = Annotated[int, typer.Option("--port", help="Where it listens on 127.0.0.1.")]
NOT_RUNNING = 3


def _broker(port: int) -> DevBroker:
    return DevBroker(home() / "dev" / f"kafka-{port}", port)


@kafka.command()
def start(port: Port = DEFAULT_PORT) -> None:
    """Start it; its jars are fetched the first time. Topics are kept over a stop."""
    broker = _broker(port)
    if broker.pid is not None:
        say(f"Kafka runs on {broker.bootstrap_servers} (process {broker.pid})")
        return
    try:
        broker.start(lambda step: say(f"  {step}", err=True))
    except TidegateError as error:
        say(str(error), err=True)
        raise typer.Exit(1) from None
    say(f"Kafka runs on {broker.bootstrap_servers} (process {broker.pid})")


@kafka.command()
def stop(
    port: Port = DEFAULT_PORT,
    delete: Annotated[bool, typer.Option("--delete", help="Forget its topics too.")] = False,
) -> None:
    """Stop it, in order."""
    broker = _broker(port)
    if broker.pid is None:
        say(f"no Kafka of ours runs on {broker.bootstrap_servers}")
    else:
        broker.stop()
        say("stopped")
    if delete:
        broker.delete()


@kafka.command()
def status(port: Port = DEFAULT_PORT) -> None:
    """Whether it runs; exit code 3 if it does not."""
    broker = _broker(port)
    if broker.pid is None:
        say(f"no Kafka of ours runs on {broker.bootstrap_servers}")
        raise typer.Exit(NOT_RUNNING)
    say(f"Kafka runs on {broker.bootstrap_servers} (process {broker.pid}), its log: {broker.directory}/server.log")
