"""What Flink's users type and Tidegate does not have is answered with the command to use."""

from __future__ import annotations

import shlex
import sys

import pytest

from tidegate.cli.flink_options import instead_of, understood
from tidegate.cli.main import main
from tidegate.cli.outcome import ExitCode


@pytest.mark.parametrize(
    ("typed", "use"),
    [
        ("run-application --target=kubernetes-application job.py", "run -d --master k8s://https://HOST:PORT job.py"),
        ("run-application job.py", "tidegate run -d job.py"),
        ("run -t yarn-per-job -d -py job.py", "tidegate run --master yarn -d job.py"),
        ("run -m yarn-cluster -ynm words -yjm 1g -ytm 2g job.py in out", "spark.executor.memory=2g job.py in out"),
        ("run -m host:8081 -p 4 job.py", "tidegate run --master spark://HOST:7077 -p 4 job.py"),
        ("run -t local job.py", "tidegate run --master 'local[*]' job.py"),
        ("run -yid application_1_2 job.py", "tidegate run job.py"),
        ("run -pym words -pyfs lib.zip -pyexec python3", "-Dpython.files=lib.zip -Dpython.executable=python3 words.py"),
        ("run -m yarn-cluster -yd -yn 4 -yqu q job.py", "-d -Dspark.executor.instances=4 -Dspark.yarn.queue=q job.py"),
        ("run -t yarn-session -D yarn.application.id=application_1_2 job.py", "tidegate run --master yarn job.py"),
        ("list -m host:8081", "tidegate list"),
        ("list -t yarn-application -Dyarn.application.id=application_1_2", "tidegate list"),
        ("cancel -t yarn-application -D yarn.application.id=application_1_2 7f3a", "tidegate cancel 7f3a"),
        ("cancel -s /sp -yid application_1_2 7f3a", "tidegate cancel -s /sp 7f3a"),
        ("stop -p /sp -t yarn-application 7f3a", "tidegate stop -p /sp 7f3a"),
    ],
)
def test_flinks_spelling_is_answered_with_the_command(
    typed: str, use: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tidegate", *shlex.split(typed)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == ExitCode.USAGE
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and told.endswith(f"{use}\n"), told


@pytest.mark.parametrize(
    "typed",
    [
        "run job.py -t 5 -m x -py y",
        "run -p 2 -D key=-t job.py",
        "run -D -t job.py",
        "run -c main -s /sp job.py",
        "stop -p /sp 7f3a",
        "debug 7f3a",
        "state show -t",
        "--version",
        "",
    ],
)
def test_own_commands_are_left_alone(typed: str) -> None:
    assert instead_of(shlex.split(typed)) is None


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("run-application -t yarn-application -py job.py", "run -d --master yarn --deploy-mode cluster job.py"),
        (
            "run-application -t yarn-application -Dparallelism.default=2 -s hdfs:///sp -py job.py",
            "run -d --master yarn --deploy-mode cluster -Dparallelism.default=2 -s hdfs:///sp job.py",
        ),
        (
            "run-application -d -n -t yarn-application -p 4 --claim-mode claim job.py in -t out",
            "run -d -n --master yarn --deploy-mode cluster -p 4 --claim-mode claim job.py in -t out",
        ),
        (
            "run --target=yarn-application -ynm words job.py",
            "run --master yarn --deploy-mode cluster -Dpipeline.name=words job.py",
        ),
        (
            "run-application -t yarn-application -Dyarn.application.name=words -Djobmanager.memory.process.size=2g "
            "-D taskmanager.numberOfTaskSlots=2 -Dstate.backend=rocksdb job.py -Dyarn.application.name=stays",
            "run -d --master yarn --deploy-mode cluster -Dpipeline.name=words -Dspark.driver.memory=2g "
            "-Dspark.executor.cores=2 -Dstate.backend=rocksdb job.py -Dyarn.application.name=stays",
        ),
        (
            "run-application -pyarch e.tar.gz#e -pyexec e/bin/python -t yarn-application -py job.py",
            "run -d -Dpython.archives=e.tar.gz#e -Dpython.executable=e/bin/python --master yarn --deploy-mode cluster job.py",
        ),
    ],
)
def test_flinks_way_to_run_a_driver_on_yarn_is_understood(typed: str, words: str) -> None:
    assert shlex.join(understood(shlex.split(typed)) or []).replace("'", "") == words


@pytest.mark.parametrize(
    "typed", ["run -t yarn-per-job job.py", "run -m host:8081 job.py", "run job.py -t yarn-application", "list", ""]
)
def test_other_words_are_not_changed(typed: str) -> None:
    assert understood(shlex.split(typed)) is None
