"""``run --deploy-mode cluster``: the driver runs in a container of the cluster, and is operated from here."""

from __future__ import annotations

import secrets
import sys
import time
from typing import Any, NoReturn

import msgspec

from tidegate.base.clock import SystemClock
from tidegate.base.errors import ConfigurationError, StorageError
from tidegate.base.hashing import new_job_id, new_token
from tidegate.checkpoint.lease import refuse_if_held
from tidegate.cli.on_cluster import LaunchError, error_path, run
from tidegate.cli.outcome import ExitCode, as_line, print_json, say
from tidegate.common.configuration import effective
from tidegate.common.global_configuration import configuration_file, load, read_yaml, set_dynamic_properties
from tidegate.common.job_status import JobStatus
from tidegate.common.options import CHECKPOINT_DIR, JOB_ID
from tidegate.control import registry
from tidegate.control.place import JobPlace, is_remote
from tidegate.control.printed import Printed
from tidegate.control.registry import JobRecord
from tidegate.spark.submission import Job, Submission, check, check_environment, submitted

_LOOK_S = 1.0
_LAST_LOOKS = 5
_PATIENCE_S = 120.0
"""The storage may be away for this long: the driver continues meanwhile, and so does the command."""
_RUNS = (JobStatus.RUNNING.name, JobStatus.RESTARTING.name)
_FAILURES = (JobStatus.FAILED.name, JobStatus.CANCELED.name)
_CODES = {
    JobStatus.FINISHED.name: ExitCode.OK,
    JobStatus.FAILED.name: ExitCode.FAILED,
    JobStatus.CANCELED.name: ExitCode.CANCELLED,
    JobStatus.SUSPENDED.name: ExitCode.SUSPENDED,
}


def run_there(
    script: str, arguments: list[str], given: dict[str, Any], *, detached: bool, json: bool, **flags: Any
) -> None:
    """Submit the program. ``detached``: print the job's id when the job runs; else show what the driver prints until its end, and
    exit as the job does. ``given``: the keys of the command line."""
    properties = {**_of_file(), **given}
    set_dynamic_properties(given)
    configuration = effective(load())
    check(str(configuration.get("spark.master") or ""), "cluster")
    check_environment(properties)
    base = str(configuration.get(CHECKPOINT_DIR.key) or "")
    if not base:
        raise ConfigurationError(
            "A driver on a cluster is operated through the directory of its checkpoints",
            where="--deploy-mode cluster",
            found=f"no {CHECKPOINT_DIR.key} on the command line or in the configuration file",
            cure=f"add -D{CHECKPOINT_DIR.key}=hdfs:///..., also for a job without checkpoints",
        )
    if not is_remote(base):
        say(f"note: {base} must be a directory that all hosts of the cluster share", err=True)
    job_id = configuration.get(JOB_ID.key) or new_job_id()
    place = JobPlace(f"{base.rstrip('/')}/{job_id}")
    token = secrets.token_urlsafe(32)
    job = Job(
        script=script,
        arguments=arguments,
        properties={**properties, JOB_ID.key: job_id},
        launch=new_token(),
        place=place.address,
        token=token,
        run=f"{run.__module__}:{run.__name__}",
        **flags,
    )
    _refuse_running(place)
    registry.keep_token(token)
    name = str(configuration.get("pipeline.name") or f"tidegate {script.rpartition('/')[2]}")
    with submitted(job, configuration, name) as submission:
        _follow(job, place, submission, detached=detached, json=json)


def _of_file() -> dict[str, Any]:
    path = configuration_file()
    return {} if path is None else read_yaml(path)


def _refuse_running(place: JobPlace) -> None:
    """Refuse a second driver of a job at once, and not after minutes in its container."""
    refuse_if_held(place.files, SystemClock())


def _follow(job: Job, place: JobPlace, submission: Submission, *, detached: bool, json: bool) -> None:
    printed = None if detached or json else Printed(place.files, job.launch)
    shown, known = "", None
    looks_after_end = 0
    answered = time.monotonic()
    while True:
        code = submission.ended()  # asked first: then what the driver has left is complete
        if submission.application and submission.application != shown:
            shown = submission.application
            say(f"application {shown}, job {job.properties[JOB_ID.key]} in {place.address}", err=True)
        try:
            for part in printed.rest() if printed is not None else ():
                sys.stdout.write(part.decode(errors="replace"))
            sys.stdout.flush()
            record = _record(place, job.launch)
            error = place.files.read_if_exists(error_path(job.launch))
            answered = time.monotonic()
        except StorageError:
            if time.monotonic() - answered > _PATIENCE_S:
                raise
            time.sleep(_LOOK_S)
            continue
        if record is not None and record != known:
            known = record
            registry.write(record)
        if detached and record is not None and (record.has_ended or record.state in _RUNS):
            return _say_started(record, json=json)
        # The program may go on after its job, and print or fail: so its end counts, unless the job has failed before.
        ended = record if record is not None and record.has_ended else None
        if ended is not None and code is not None and (error is None or ended.state in _FAILURES):
            _end(ended, json=json)
        if error is not None and (code is not None or detached):
            _fail(msgspec.json.decode(error, type=LaunchError), json=json)
        if code is not None:
            looks_after_end += 1
            if looks_after_end > _LAST_LOOKS or code != 0:
                _fail_submission(submission, code, json=json)
        time.sleep(_LOOK_S)


def _record(place: JobPlace, launch: str) -> JobRecord | None:
    record = place.newest()
    return record if record is not None and record.launch == launch else None


def _say_started(record: JobRecord, *, json: bool) -> None:
    if json:
        return print_json(
            {
                "job_id": record.job_id,
                "state": record.state,
                "application": record.application,
                "host": record.owner.host,
                "directory": record.place,
            }
        )
    say(f"job '{record.name}' is {record.state} in {record.application}, {record.owner}", err=True)
    say(record.job_id)


def _end(record: JobRecord, *, json: bool) -> NoReturn:
    if json:
        say(as_line({"jobs": [{"job_id": record.job_id, "name": record.name, "state": record.state}]}))
    else:
        say(f"job '{record.name}' ({record.job_id}) is {record.state}", err=True)
        if record.error is not None and record.state == JobStatus.FAILED.name:
            say(record.error, err=True)
    sys.exit(_CODES[record.state])


def _fail(error: LaunchError, *, json: bool) -> NoReturn:
    kind, _, message = error.text.partition(": ")
    text = as_line({"error": kind, "message": message.rstrip(), "exit_code": error.code}) + "\n" if json else error.text
    say(text, err=True, nl=False)
    sys.exit(error.code or ExitCode.FAILED)


def _fail_submission(submission: Submission, code: int, *, json: bool) -> NoReturn:
    where = submission.application or "spark-submit"
    text = (
        f"EngineUnavailableError: The driver did not start on the cluster\n  where: {where}\n"
        f"  found: spark-submit ended with code {code}: {submission.why() or 'no message'}\n"
        f"  cure: read the log of the application (yarn logs -applicationId {submission.application or '...'})\n"
    )
    _fail(LaunchError(text, int(ExitCode.FAILED)), json=json)
