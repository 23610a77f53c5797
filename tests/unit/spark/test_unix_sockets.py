"""Unix sockets to Python workers: on where their paths fit, off elsewhere, and the user's own setting is checked."""

from __future__ import annotations

import pytest

from tidegate.base.errors import ConfigurationError
from tidegate.spark.session import _conf, check_settings

ENABLED, DIRECTORY = "spark.python.unix.domain.socket.enabled", "spark.python.unix.domain.socket.dir"
LONGEST = "/" + "d" * 63  # with the name of a socket 107 characters
TOO_LONG = LONGEST + "d"


@pytest.mark.parametrize(
    ("settings", "enabled"),
    [
        ({"spark.master": "local[2]"}, "true"),
        ({"spark.master": "spark://host:7077"}, "true"),
        ({"spark.master": "yarn"}, "false"),
        ({"spark.master": "k8s://https://host"}, "false"),
        ({"spark.master": "yarn", DIRECTORY: "/run/sockets"}, "true"),
        ({"spark.master": "local[2]", DIRECTORY: LONGEST}, "true"),
        ({"spark.master": "local[2]", DIRECTORY: TOO_LONG}, "false"),
        ({"spark.master": "local[2]", "spark.driver.extraJavaOptions": f"-Xmx1g -Djava.io.tmpdir={LONGEST}"}, "true"),
        ({"spark.master": "local[2]", "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={TOO_LONG} -Xmx1g"}, "false"),
        ({"spark.master": "local[2]", "spark.driver.defaultJavaOptions": f'-Djava.io.tmpdir="{TOO_LONG}"'}, "false"),
        ({"spark.master": "spark://h:1", "spark.executor.extraJavaOptions": f"-Djava.io.tmpdir={TOO_LONG}"}, "false"),
        ({"spark.master": "yarn", ENABLED: "false", DIRECTORY: "/run"}, "false"),
    ],
)
def test_unix_sockets_are_on_where_their_paths_fit(settings: dict[str, str], enabled: str) -> None:
    check_settings(settings)
    assert _conf(settings).get(ENABLED) == enabled


def test_temporary_directory_of_all_jvms_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.io.tmpdir={TOO_LONG}")
    assert _conf({"spark.master": "local[2]"}).get(ENABLED) == "false"


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"spark.master": "yarn"}, f"{DIRECTORY} is not set, and with the master yarn"),
        ({"spark.master": "local[2]", DIRECTORY: TOO_LONG}, f"{TOO_LONG}, in which a socket's path has 108 characters"),
        ({"spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={TOO_LONG}"}, "a socket's path has 108 characters"),
    ],
)
def test_own_setting_that_cannot_work_is_refused_before_spark_starts(settings: dict[str, str], found: str) -> None:
    with pytest.raises(ConfigurationError, match="the path of a socket has 107 characters at most") as caught:
        check_settings({**settings, ENABLED: "true"})
    assert caught.value.found is not None and found in caught.value.found
    assert caught.value.cure == (f"remove {ENABLED}, or set {DIRECTORY} to a directory with a short path on all hosts")
