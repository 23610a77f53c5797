"""Commands and options of Flink that Tidegate does not have, and the command to use instead."""

from __future__ import annotations

import shlex
from collections.abc import Callable

_MASTERS = {"yarn": "yarn", "kubernetes": "k8s://https://HOST:PORT", "local": "local[*]"}
_OWN_VALUES = {
    "-D",
    "-p",
    "--parallelism",
    "-s",
    "--fromSavepoint",
    "--claim-mode",
    "--master",
    "--deploy-mode",
    "--max-restarts",
    "-c",
    "--entry",
    "--require",
}
"""Options of ``run`` that take a value."""
_RUNS = ("run", "run-application", "explain")
_JOBS = ("list", "info", "checkpoints", "checkpoint", "savepoint", "stop", "cancel")


def _master(value: str) -> list[str]:
    """Translate the value of ``-t yarn-application``, ``-m yarn-cluster``, ``-m host:8081``."""
    return ["--master", _MASTERS.get(value.partition("-")[0], "spark://HOST:7077")]


def _define(key: str) -> Callable[[str], list[str]]:
    return lambda value: [f"-D{key}={value}"]


def _nothing(value: str) -> list[str]:
    return []


def _key(argument: str) -> list[str]:
    """Translate ``-Dyarn.application.queue=...``. Other keys stay."""
    key, _, value = argument.removeprefix("-D").partition("=")
    if key not in _KEYS:
        return [argument]
    own = _KEYS[key]
    return [] if own is None else [f"-D{own}={value}"]


_RUN_OPTIONS: dict[str, Callable[[str], list[str]]] = {
    "-yjm": _define("spark.driver.memory"),
    "--yarnjobManagerMemory": _define("spark.driver.memory"),
    "-ytm": _define("spark.executor.memory"),
    "--yarntaskManagerMemory": _define("spark.executor.memory"),
    "-ys": _define("spark.executor.cores"),
    "--yarnslots": _define("spark.executor.cores"),
    "-ynm": _define("pipeline.name"),
    "--yarnname": _define("pipeline.name"),
    "-yqu": _define("spark.yarn.queue"),
    "--yarnqueue": _define("spark.yarn.queue"),
    "-yn": _define("spark.executor.instances"),
    "--yarncontainer": _define("spark.executor.instances"),
    "-ynl": _define("spark.yarn.executor.nodeLabelExpression"),
    "--yarnnodeLabel": _define("spark.yarn.executor.nodeLabelExpression"),
    "-yt": _define("spark.files"),
    "--yarnship": _define("spark.files"),
    "-yat": _nothing,
    "--yarnapplicationType": _nothing,
    "-yj": _nothing,
    "--yarnjar": _nothing,
    "-yD": lambda value: _key(f"-D{value}"),
    "-pyfs": _define("python.files"),
    "--pyFiles": _define("python.files"),
    "-pyarch": _define("python.archives"),
    "--pyArchives": _define("python.archives"),
    "-pyreq": _define("python.requirements"),
    "--pyRequirements": _define("python.requirements"),
    "-pyexec": _define("python.executable"),
    "--pyExecutable": _define("python.executable"),
    "-pyclientexec": _nothing,
    "--pyClientExecutable": _nothing,
}
"""Options of ``run`` with a value -> what to write instead."""
_FLAGS = {"-yd": "-d", "--yarndetached": "-d"}
_KEYS = {
    "yarn.application.id": None,
    "yarn.application.name": "pipeline.name",
    "yarn.application.queue": "spark.yarn.queue",
    "yarn.application-attempts": "spark.yarn.maxAppAttempts",
    "yarn.application-attempt-failures-validity-interval": "spark.yarn.am.attemptFailuresValidityInterval",
    "yarn.tags": "spark.yarn.tags",
    "yarn.staging-directory": "spark.yarn.stagingDir",
    "jobmanager.memory.process.size": "spark.driver.memory",
    "taskmanager.memory.process.size": "spark.executor.memory",
    "taskmanager.numberOfTaskSlots": "spark.executor.cores",
}
"""Keys of Flink's configuration that size and name what runs on YARN -> Spark's, which mean the same. None: not needed."""
_TARGETS = ("-t", "--target", "-e", "--executor", "-m", "--jobmanager")
_CLUSTERS = ("-yid", "--yarnapplicationId", "-z", "--zookeeperNamespace", "-yz", "--yarnzookeeperNamespace")
_MODULES = ("-pym", "--pyModule")
_SCRIPTS = ("-py", "--python", *_MODULES)


_YARN = ("yarn-application",)


def understood(arguments: list[str]) -> list[str] | None:
    """Return Tidegate's words for Flink's way to run a program with its driver on YARN: ``run-application -t yarn-application``,
    ``run -t yarn-application``. None for everything else. Flink's run-application does not wait for the end.
    """
    command, *given = arguments or [""]
    if command not in ("run", "run-application") or _target(given) not in _YARN:
        return None
    words, _ = _for_run(given)
    detached = ["-d"] if command == "run-application" and not {"-d", "--detached"} & set(words) else []
    at = words.index("--master") + 2
    return ["run", *detached, *words[:at], "--deploy-mode", "cluster", *words[at:]]


def _target(given: list[str]) -> str | None:
    """Return the value of ``-t`` or ``-m`` before the file."""
    rest = iter(given)
    for argument in rest:
        name, value = _split(argument)
        if name in _TARGETS:
            return next(rest, "") if value is None else value
        if name in _OWN_VALUES or name in _CLUSTERS or name in _SCRIPTS or name in _RUN_OPTIONS:
            _ = next(rest, "") if value is None else value
            if name in _SCRIPTS:
                continue
        elif not argument.startswith("-"):
            return None
    return None


def instead_of(arguments: list[str]) -> str | None:
    """Return the answer to arguments that are Flink's and not Tidegate's; None for all others."""
    command, *given = arguments or [""]
    if command not in _RUNS and command not in _JOBS:
        return None
    words, foreign = _for_run(given) if command in _RUNS else _for_job(given)
    if command == "run-application":
        command, rule = (
            "run",
            "run-application needs -t yarn-application; other drivers run where they are started, with -d in the background, or in "
            "a pod (docs/clusters.md)",
        )
        words[:0] = [] if "-d" in words else ["-d"]
    elif foreign:
        rule = f"tidegate {command} does not have Flink's {', '.join(foreign)}"
    else:
        return None
    by_id = (
        "; a job is found by its id, the id of its application on YARN, or its directory" if command in _JOBS else ""
    )
    return f"{rule}{by_id}. Use: {shlex.join(['tidegate', command, *words])}"


def _for_run(given: list[str]) -> tuple[list[str], list[str]]:
    """Return Tidegate's arguments and the options of Flink that they replace. Arguments after the file belong to the program."""
    words: list[str] = []
    script: list[str] = []
    foreign: list[str] = []
    rest = iter(given)
    for argument in rest:
        name, value = _split(argument)
        if name == "-D" or (argument.startswith("-D") and argument != "-D"):
            words += _key(f"-D{next(rest, '')}" if argument == "-D" else argument)
            continue
        if name in _OWN_VALUES:
            words += [name, next(rest, "")] if value is None else [argument]
            continue
        if name in _FLAGS:
            words.append(_FLAGS[name])
            foreign.append(name)
            continue
        if name not in _TARGETS and name not in _CLUSTERS and name not in _SCRIPTS and name not in _RUN_OPTIONS:
            if argument.startswith("-"):
                words.append(argument)
            else:  # the file, or after -py the first argument of the program
                script += [argument, *rest]
            continue
        foreign.append(name)
        value = next(rest, "") if value is None else value
        if name in _TARGETS:
            words += _master(value)
        elif name in _SCRIPTS:
            script = [f"{value}.py" if name in _MODULES else value]
        elif name in _RUN_OPTIONS:
            words += _RUN_OPTIONS[name](value)
    return words + script, foreign


def _for_job(given: list[str]) -> tuple[list[str], list[str]]:
    words: list[str] = []
    foreign: list[str] = []
    rest = iter(given)
    for argument in rest:
        name, value = _split(argument)
        if name in _TARGETS or name in _CLUSTERS:
            foreign.append(name)
            _ = next(rest, "") if value is None else value
        elif argument.startswith("-D"):
            foreign.append("-D")
            _ = next(rest, "") if argument == "-D" else ""
        else:
            words.append(argument)
    return words, foreign


def _split(argument: str) -> tuple[str, str | None]:
    name, separator, value = argument.partition("=")
    return (name, value) if argument.startswith("--") and separator else (argument, None)
