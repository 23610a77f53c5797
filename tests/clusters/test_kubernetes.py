"""The manifests of deploy/kubernetes, and their command in something like their container: there is no Kubernetes here."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import tidegate
from tests.clusters.standalone import HOME, SITE, bare_python, cluster
from tests.clusters.test_elastic import driver
from tests.clusters.yarn import assert_counted_exactly_once
from tidegate.cli.outcome import ExitCode
from tidegate.common.options import SPELLINGS

PLACE = Path(__file__).parents[2] / "deploy" / "kubernetes"
SHARED = Path(tidegate.__file__).parents[1]
PROGRAM = """\
import os
from tidegate.datastream import StreamExecutionEnvironment
env = StreamExecutionEnvironment.get_execution_environment()
env.from_collection([1]).map(lambda value: value + 1).print()
env.execute("my-job")
print(os.getuid(), os.path.expanduser("~"), os.access("/opt", os.W_OK))
"""


def documents() -> list[dict[str, Any]]:
    found = [each for path in sorted(PLACE.glob("*.yaml")) for each in yaml.safe_load_all(path.read_text())]
    return [each for each in found if each["kind"] != "Kustomization"]


def of_kind(kind: str) -> dict[str, Any]:
    [found] = [each for each in documents() if each["kind"] == kind]
    return found


def test_every_manifest_is_valid_and_listed() -> None:
    for document in documents():
        kubernetes_validate.validate(document, "1.31", strict=True)
    kubernetes_validate.validate(yaml.safe_load(of_kind("ConfigMap")["data"]["executor.yaml"]), "1.31", strict=True)
    listed = yaml.safe_load((PLACE / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(path.name for path in PLACE.glob("*.yaml") if path.name != "kustomization.yaml")


def test_names_ports_and_keys_agree() -> None:
    settings = yaml.safe_load(of_kind("ConfigMap")["data"]["config.yaml"])
    job, service, claim = of_kind("Job"), of_kind("Service"), of_kind("PersistentVolumeClaim")
    pod = job["spec"]["template"]
    [driver] = pod["spec"]["containers"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    ports = [settings["spark.driver.port"], settings["spark.driver.blockManager.port"]]
    assert ports == [port["port"] for port in service["spec"]["ports"]] == [p["containerPort"] for p in driver["ports"]]
    host = next(each["value"] for each in driver["env"] if each["name"] == "DRIVER_HOST")
    assert host == f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    assert pod["spec"]["serviceAccountName"] == of_kind("ServiceAccount")["metadata"]["name"]
    assert (
        settings["spark.kubernetes.executor.volumes.persistentVolumeClaim.checkpoints.options.claimName"]
        == (claim["metadata"]["name"])
    )
    assert {volume["name"] for volume in pod["spec"]["volumes"]} == {mount["name"] for mount in driver["volumeMounts"]}
    assert all(key.startswith("spark.") or key in SPELLINGS for key in settings), "keys of the configuration"
    [rule] = job["spec"]["podFailurePolicy"]["rules"]
    again = {ExitCode.SUSPENDED, ExitCode.BROKEN_PIPE, ExitCode.INTERRUPTED}
    assert not again & set(rule["onExitCodes"]["values"]), "these drivers are started again"
    assert {ExitCode.FAILED, ExitCode.BAD_PROGRAM, ExitCode.CANCELLED} <= set(rule["onExitCodes"]["values"])


@pytest.fixture
def container() -> Iterator[Path]:
    """The directories that the manifests mount, for any user."""
    place = Path(tempfile.mkdtemp(prefix="tidegate-pod-", dir="/var/tmp"))
    for name in ("checkpoints", "tmp", "settings", "token"):
        (place / name).mkdir()
    for name in ("checkpoints", "tmp"):
        os.chmod(place / name, 0o777)
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs namespaces and another user")
def test_command_of_the_pod_runs_with_a_read_only_root_any_uid_and_its_environment_alone(container: Path) -> None:
    """No home, no name of the user, nothing writable but the mounted directories; only the master is another."""
    [driver] = of_kind("Job")["spec"]["template"]["spec"]["containers"]
    given = {each["name"]: each.get("value", "driver-pod") for each in driver["env"]}
    given |= {"TIDEGATE_MASTER": "local[2,4]", "DRIVER_HOST": "127.0.0.1"}
    moved = {"/etc/tidegate-token": f"{container}/token", "/etc/tidegate": f"{container}/settings"}
    settings = of_kind("ConfigMap")["data"]["config.yaml"].replace("/checkpoints\n", f"{container}/checkpoints\n")
    (container / "settings" / "config.yaml").write_text(
        settings.replace("/checkpoints/savepoints", f"{container}/checkpoints/sp")
    )
    (container / "token" / "token").write_text("x" * 64)
    (container / "job.py").write_text(PROGRAM)
    for old, new in moved.items():
        given = {name: re.sub(rf"^{old}(?=/|$)", new, value) for name, value in given.items()}
    arguments = [re.sub(r"\$\((\w+)\)", lambda name: given[name[1]], each) for each in driver["args"][:-1]]
    environment = [f"{name}={value}" for name, value in given.items()]
    environment += [f"PATH={os.environ['PATH']}", f"PYTHONPATH={SITE}:{SHARED}"]
    environment += [f"PYSPARK_PYTHON={bare_python()}"]
    # The interpreter may be in root's home
    caps = ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
    user = ["setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups", *caps]
    mounts = f"""
        mount --bind {container}/checkpoints {container}/checkpoints
        mount --bind {container}/tmp /tmp
        for place in $(awk '{{ print $5 }}' /proc/self/mountinfo); do
            case "$place" in /proc*|/sys*|/dev*|/tmp|{container}/*) ;; *) mount -o remount,bind,ro "$place" ;; esac
        done
        mount -t tmpfs none /dev/shm
        cd /tmp
        exec "$@"
    """
    isolated = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-ec", mounts, "sh"]
    python = [bare_python(), "-m", "tidegate.cli"]
    command = [*isolated, *user, "env", "-i", *environment, *python, *arguments, str(container / "job.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split()[0] == "54321" and done.stdout.splitlines()[-1].endswith("False"), (
        done.stdout
    )
    assert any(line.endswith("> 2") for line in done.stdout.splitlines()), done.stdout
    records = list((container / "checkpoints" / "my-job" / "control").glob("*.json"))
    assert records, "commands from elsewhere find the job"
    assert sys.executable


@pytest.mark.slow
def test_entrypoint_of_the_image_starts_an_executor_that_runs_the_tasks_of_a_driver(tmp_path: Path) -> None:
    """With the variables that Spark sets in the pod of an executor. The driver has no other executor."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    given = {
        "PATH": os.environ["PATH"],
        "SPARK_HOME": str(HOME),
        "PYTHONPATH": str(SITE),
        "SPARK_USER": "10001",
        "SPARK_CONF_DIR": "/opt/spark/conf",
        "SPARK_LOCAL_DIRS": str(tmp_path),
        "SPARK_DRIVER_URL": f"spark://CoarseGrainedScheduler@127.0.0.1:{port}",
        "SPARK_APPLICATION_ID": "spark-application-1",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_EXECUTOR_MEMORY": "512m",
        "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
        "SPARK_EXECUTOR_POD_NAME": "executor-1",
        "SPARK_RESOURCE_PROFILE_ID": "0",
    }
    opened = (
        "lang",
        "lang.invoke",
        "lang.reflect",
        "io",
        "net",
        "nio",
        "util",
        "util.concurrent",
        "util.concurrent.atomic",
    )
    packages = [*(f"java.base/java.{name}" for name in opened), "java.base/sun.nio.ch", "java.base/sun.util.calendar"]
    given |= {f"SPARK_JAVA_OPT_{n}": f"--add-opens={name}=ALL-UNNAMED" for n, name in enumerate(packages)}
    keys = {"spark.driver.port": port}

    def listens() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    with cluster(tmp_path, 0) as spark, driver(tmp_path, spark.master, keys, 4_000, 0.02, 2) as job:
        job.eventually(listens, "the driver listens")
        with (tmp_path / "executor.log").open("w") as log:
            command = ["bash", str(PLACE / "entrypoint.sh"), "executor"]
            executor = subprocess.Popen(command, env=given, stdout=log, stderr=log)
        try:
            job.eventually(lambda: bool(job.lines()) or executor.poll() is not None, "output, or the executor's end")
            assert executor.poll() is None, (tmp_path / "executor.log").read_text()[-3000:]
            job.finished()
        finally:
            executor.kill()
            executor.wait()
    assert_counted_exactly_once(job.lines(), 4_000)
