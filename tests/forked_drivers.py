"""Drivers that are forked from a process which has all modules at hand: a start costs milliseconds."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from tidegate.base import faults
from tidegate.testing import kill_hook


def start_drivers(main: Callable[[Any], None]) -> None:
    """Fork a driver for each line of standard input, and print its exit code. A line has what ``main`` gets, the file of the
    driver's output, and changes of its environment."""
    for line in sys.stdin:
        given, log, environment = json.loads(line)
        child = os.fork()
        if child == 0:
            _become_driver(main, given, log, environment)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _become_driver(main: Callable[[Any], None], given: Any, log: str, environment: dict[str, str]) -> NoReturn:
    os.environ.update(environment)
    stream = os.open(log, os.O_WRONLY | os.O_CREAT)
    for number in (1, 2):
        os.dup2(stream, number)
    faults.install(kill_hook.hook)
    code = 1
    try:
        main(given)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
