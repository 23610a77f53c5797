"""The paths of Flink's API, each with its handler. Handlers run in threads beside the event loop: jobs may make them wait."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tidegate.base.errors import TidegateError
from tidegate.base.hashing import flink_job_id, new_job_id
from tidegate.control.flink import checkpoints, cluster, jobs, metrics
from tidegate.control.flink.job import JobNow, Vertex
from tidegate.control.flink.programs import SENTENCE, Program, Programs, RunRequest, uploaded
from tidegate.control.flink.requests import (
    Answer,
    ApiError,
    Call,
    CheckpointBody,
    DisposalBody,
    RunBody,
    SavepointBody,
    StopBody,
    TextFile,
    status_of,
)
from tidegate.control.flink.throwables import serialized
from tidegate.control.flink.triggers import Disposals, Triggers
from tidegate.control.messages import (
    CancelRequest,
    Code,
    Operation,
    OperationStatus,
    Problem,
    SavepointRequest,
    StopRequest,
)
from tidegate.control.shown import ShownJob, ShownJobs
from tidegate.runtime.prometheus import CONTENT_TYPE, merged_text
from tidegate.runtime.view import CheckpointView

_LARGEST_BODY = 64 << 10
_ROOM_OF_FORM = 16 << 10
_LARGEST_PART = 256 << 10
_STATUS = {Code.UNAUTHORIZED: 401, Code.BAD_REQUEST: 400, Code.UNKNOWN: 404, Code.FAILED: 500}


class Site:
    """What the handlers of one server share. ``dispose`` deletes a snapshot; None: this server deletes none."""

    def __init__(
        self,
        jobs: ShownJobs,
        *,
        programs: Programs | None = None,
        dispose: Callable[[str], None] | None = None,
        triggers: Triggers | None = None,
        drives: bool = True,
    ) -> None:
        self.jobs, self.programs, self.dispose, self.drives = jobs, programs, dispose, drives
        self.triggers, self.disposals = triggers or Triggers(), Disposals()

    def all(self) -> list[JobNow]:
        now = _now_ms()
        return [JobNow.of(job, now) for job in self.jobs.all()]

    def find(self, call: Call) -> ShownJob:
        id = call.job()
        found = self.jobs.get(id)
        if found is None:
            raise ApiError(404, f"This server shows no job {id}. /jobs/overview lists its jobs.")
        return found

    def job(self, call: Call) -> JobNow:
        return JobNow.of(self.find(call), _now_ms())

    def vertex(self, call: Call) -> tuple[JobNow, Vertex]:
        job, id = self.job(call), call.hex("vertexid")
        return job, job.vertex(id)

    def log_files(self) -> list[Path]:
        """Return the log files of drivers, oldest job first."""
        found = {path: None for job in self.jobs.all() if (path := job.log_file()) is not None}
        return list(found)

    def asked_programs(self) -> Programs:
        if self.programs is None:
            raise ApiError(403, SENTENCE)
        return self.programs


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def flink_routes(
    jobs: ShownJobs,
    *,
    programs: Programs | None = None,
    dispose: Callable[[str], None] | None = None,
    triggers: Triggers | None = None,
    drives: bool = True,
) -> list[Route]:
    """Make the routes of Flink's API, below ``/v1`` and without it, and ``/metrics``.

    ``programs``: what ``/jars`` shows; None: every request there answers 403. ``dispose``: deletes the snapshot with this address;
    None: 403. ``triggers``: to look from outside whether a client has got its result. ``drives``: the jobs run in this process, so
    its threads and its memory are those of their driver.
    """
    site = Site(jobs, programs=programs, dispose=dispose, triggers=triggers, drives=drives)
    made = [
        Route(prefix + path.path, _endpoint(site, path), methods=[path.method])
        for prefix in ("", "/v1")
        for path in PATHS
    ]

    async def metrics_text(request: Request) -> Response:
        return Response(await run_in_threadpool(_metrics_text, site), media_type=CONTENT_TYPE)

    return [*made, Route("/metrics", metrics_text, methods=["GET"])]


def _metrics_text(site: Site) -> str:
    return merged_text([job.metrics_text() for job in site.jobs.all()])


def _endpoint(site: Site, path: FlinkPath) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            content = await _content(request, site if path.takes_file else None)
            query: dict[str, list[str]] = {}
            for name, value in request.query_params.multi_items():
                query.setdefault(name, []).append(value)
            call = Call(dict(request.path_params), query, content, request.headers.get("content-type", ""))
            return _response(await run_in_threadpool(path.handler, site, call))
        except ApiError as error:
            return _json({"errors": [error.sentence]}, error.status)
        except TidegateError as error:
            return _json({"errors": [str(error)]}, status_of(error))

    return endpoint


async def _content(request: Request, uploads: Site | None) -> bytes:
    largest = _LARGEST_BODY if uploads is None else uploads.asked_programs().largest_bytes + _ROOM_OF_FORM
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > largest:
            raise ApiError(413, f"The body is larger than {largest:,} bytes.")
    return bytes(content)


def _response(answer: Any) -> Response:
    if isinstance(answer, TextFile):
        try:
            file = open(answer.path, "rb")  # noqa: SIM115  closed when it has been sent
        except OSError:
            raise ApiError(404, "The log file has been deleted a moment ago.") from None
        size = os.fstat(file.fileno()).st_size
        headers = {"content-length": str(size), **_NO_STORE}
        return StreamingResponse(_parts(file, size), media_type="text/plain; charset=utf-8", headers=headers)
    return _json(answer.body, answer.status) if isinstance(answer, Answer) else _json(answer, 200)


def _parts(file: BinaryIO, left: int) -> Iterator[bytes]:
    """Read the first bytes of a file in parts: a log may be larger than the memory, and grows meanwhile."""
    with file:
        while left and (part := file.read(min(left, _LARGEST_PART))):
            left -= len(part)
            yield part


_NO_STORE = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


def _json(value: Any, status: int) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json", headers=_NO_STORE)


# -- jobs ------------------------------------------------------------------------------------------------------------------


def _cancel(site: Site, call: Call) -> Answer:
    """PATCH: ``mode=cancel``. ``mode=stop`` was a command of Flink before 1.9."""
    mode = (call.asked("mode") or "cancel").lower()
    if mode not in ("cancel", "stop"):
        raise ApiError(400, f"The parameter mode is malformed. Found: {mode[:50]!r}. Expected: cancel or stop.")
    job = site.job(call)
    if mode == "stop":
        raise ApiError(
            410,
            f"A job stops with a savepoint: POST /jobs/{job.id}/stop. In place of this request, mode=cancel ends the job.",
        )
    return _ended_by_cancel(job)


def _ended_by_cancel(job: JobNow) -> Answer:
    if job.has_ended:
        if job.status.name == "CANCELED":
            return Answer(status=202)
        raise ApiError(409, f"The job cannot be cancelled: it has ended already, and is {job.status.name}.")
    _checked(job.job.begin("cancel", CancelRequest()))
    return Answer(status=202)


def _checked(operation: Operation) -> Operation:
    """Refuse at once what the job refused at once."""
    if operation.problem is not None and operation.problem.code in _STATUS:
        raise ApiError(_STATUS[operation.problem.code], operation.problem.message)
    return operation


def _exceptions(site: Site, call: Call) -> Any:
    most = call.asked_number("maxExceptions", 0)
    labels = {}
    for label in call.listed("failureLabelFilter") or []:
        name, colon, value = label.partition(":")
        if not name or not colon:
            raise ApiError(
                400, f"The parameter failureLabelFilter is malformed. Found: {label[:50]!r}. Expected: key:value."
            )
        labels[name] = value
    return jobs.exceptions(site.job(call), most, labels)


def _accumulators(site: Site, call: Call) -> Any:
    call.asked_flag("includeSerializedValue")
    site.find(call)
    return jobs.accumulators()


def _application(call: Call) -> Call:
    """An application has the id of its only job."""
    return Call(call.path | {"jobid": call.hex("applicationid")}, call.query)


# -- checkpoints and savepoints --------------------------------------------------------------------------------------------


def _checkpoint(site: Site, call: Call, job: JobNow) -> CheckpointView:
    id = call.number("checkpointid", 64)
    found = job.job.checkpoint(id)
    if found is None:
        raise ApiError(
            404, f"The job {job.id} has no checkpoint {id} among its latest. /jobs/{job.id}/checkpoints lists them."
        )
    return found


def _checkpoint_details(site: Site, call: Call) -> Any:
    job = site.job(call)
    return checkpoints.checkpoint(job, _checkpoint(site, call, job), with_tasks=True)


def _checkpoint_subtasks(site: Site, call: Call) -> Any:
    job, vertex = site.vertex(call)
    return checkpoints.checkpoint_of_vertex(job, vertex, _checkpoint(site, call, job))


def _trigger_checkpoint(site: Site, call: Call) -> Answer:
    body = call.body(CheckpointBody)
    if body.checkpoint_type not in (None, "CONFIGURED", "FULL", "INCREMENTAL"):
        raise ApiError(400, f"checkpointType is CONFIGURED, FULL or INCREMENTAL. Found: {body.checkpoint_type[:50]!r}.")
    if body.checkpoint_type == "FULL":
        raise ApiError(400, "A checkpoint of Tidegate is incremental. For a full copy of the state take a savepoint.")
    return _begun(site, call, "checkpoints", body.trigger_id, lambda job: job.begin("checkpoints"))


def _trigger_savepoint(site: Site, call: Call) -> Answer:
    body = call.body(SavepointBody)
    _check_format(body.format_type)
    request = CancelRequest(target=body.target, savepoint=True) if body.cancel else SavepointRequest(target=body.target)
    command = "cancel" if body.cancel else "savepoints"
    return _begun(site, call, "savepoints", body.trigger_id, lambda job: job.begin(command, request))


def _stop(site: Site, call: Call) -> Answer:
    body = call.body(StopBody)
    _check_format(body.format_type)
    request = StopRequest(target=body.target_directory, drain=bool(body.drain))
    return _begun(site, call, "savepoints", body.trigger_id, lambda job: job.begin("stop", request))


def _check_format(name: str | None) -> None:
    """Both formats of Flink mean the one of Tidegate."""
    if name not in (None, "CANONICAL", "NATIVE"):
        raise ApiError(400, f"formatType is CANONICAL or NATIVE. Found: {name[:50]!r}.")


def _begun(site: Site, call: Call, family: str, trigger: str | None, begin: Callable[[ShownJob], Operation]) -> Answer:
    shown = site.find(call)
    trigger = _own_trigger(trigger)
    if trigger is None or site.triggers.known(shown.job_id, trigger) is None:
        operation = _checked(begin(shown))
        trigger = trigger or Triggers.id_of(operation)
        site.triggers.remember(shown.job_id, trigger, family, operation)
    return Answer({"request-id": trigger}, 202)


def _own_trigger(given: str | None) -> str | None:
    return None if given is None else Call({"triggerId": given}).hex("triggerId")


_FAMILIES = {"checkpoint": "checkpoints", "savepoint": "savepoints", "stop": "savepoints", "cancel": "savepoints"}


def _checkpoint_status(site: Site, call: Call) -> Any:
    def shown(operation: Operation) -> dict[str, Any]:
        if operation.problem is not None:
            return {"failureCause": _cause(operation.problem)}
        return {"checkpointId": int(operation.result or 0)}

    return _operation(site, call, "checkpoints", shown)


def _savepoint_status(site: Site, call: Call) -> Any:
    def shown(operation: Operation) -> dict[str, Any]:
        if operation.problem is not None:
            return {"failure-cause": _cause(operation.problem)}
        return {"location": operation.result or ""}

    return _operation(site, call, "savepoints", shown)


def _operation(site: Site, call: Call, family: str, shown: Callable[[Operation], dict[str, Any]]) -> Any:
    trigger, job = call.hex("triggerid"), site.find(call)
    known = site.triggers.known(job.job_id, trigger)
    if known is not None:
        operation = job.operation(known.operation) if known.family == family else None
    else:
        named = (each for each in job.operations() if Triggers.id_of(each) == trigger)
        operation = next((each for each in named if _FAMILIES.get(each.kind) == family), None)
    if operation is None:
        raise ApiError(404, f"The job {call.job()} knows no operation {trigger} of {family}.")
    if operation.status is OperationStatus.RUNNING:
        return {"status": {"id": "IN_PROGRESS"}}
    site.triggers.collected(job.job_id, trigger)
    return {"status": {"id": "COMPLETED"}, "operation": shown(operation)}


def _cause(problem: Problem) -> dict[str, str]:
    return serialized("tidegate." + problem.code.value, problem.message)


def _dispose(site: Site, call: Call) -> Answer:
    body = call.body(DisposalBody)
    if site.dispose is None:
        raise ApiError(403, "This server deletes no snapshots. Use: tidegate savepoint --dispose PATH.")
    trigger = new_job_id()
    site.disposals.begin(trigger, site.dispose, body.path)
    return Answer({"request-id": trigger})


def _disposal_status(site: Site, call: Call) -> Any:
    trigger = call.hex("triggerid")
    disposal = site.disposals.get(trigger)
    if disposal is None:
        raise ApiError(404, f"This server knows no disposal {trigger}.")
    if not disposal.done():
        return {"status": {"id": "IN_PROGRESS"}}
    error = disposal.exception()
    cause = {} if error is None else {"failure-cause": serialized(type(error).__name__, str(error))}
    return {"status": {"id": "COMPLETED"}, "operation": cause}


# -- metrics ---------------------------------------------------------------------------------------------------------------


def _job_metrics(site: Site, call: Call) -> Any:
    return metrics.collection(metrics.of_job(site.job(call)), call.listed("get"))


def _jobs_metrics(site: Site, call: Call) -> Any:
    wanted = call.listed("jobs")
    named = site.all() if wanted is None else [site.job(Call({"jobid": id})) for id in wanted]
    return metrics.aggregated(map(metrics.of_job, named), call.listed("get"), call.listed("agg"))


def _vertex_metrics(site: Site, call: Call) -> Any:
    return metrics.collection(metrics.of_vertex(*site.vertex(call)), call.listed("get"))


def _subtasks_metrics(site: Site, call: Call) -> Any:
    job, vertex = site.vertex(call)
    numbers = metrics.chosen(call.listed("subtasks"), vertex.parallelism)
    values = [metrics.of_subtask(job, vertex, vertex.subtasks[n]) for n in numbers]
    return metrics.aggregated(values, call.listed("get"), call.listed("agg"))


def _subtask_metrics(site: Site, call: Call) -> Any:
    job, vertex = site.vertex(call)
    subtask = job.subtask(vertex, call.number("subtaskindex"))
    return metrics.collection(metrics.of_subtask(job, vertex, subtask), call.listed("get"))


def _executors_metrics(site: Site, call: Call) -> Any:
    wanted, every = call.listed("taskmanagers"), site.all()
    found = cluster.executors_of(every) if wanted is None else [cluster.executor(every, id) for id in wanted]
    values = [cluster.executor_metrics(each, site.drives) for each in found]
    return metrics.aggregated(values, call.listed("get"), call.listed("agg"))


# -- vertices and subtasks -------------------------------------------------------------------------------------------------


def _subtask(site: Site, call: Call, give: Callable[[JobNow, Any], Any]) -> Any:
    job, vertex = site.vertex(call)
    subtask = job.subtask(vertex, call.number("subtaskindex"))
    if "attempt" in call.path:
        attempt = call.number("attempt")
        if attempt != job.attempt:
            raise ApiError(404, f"The figures of attempt {attempt} are not kept. The latest attempt is {job.attempt}.")
    return give(job, subtask)


# -- executors and logs ----------------------------------------------------------------------------------------------------


def _executor(site: Site, call: Call) -> cluster.Executor:
    return cluster.executor(site.all(), call.hex("taskmanagerid"))


def _files_of(site: Site, call: Call) -> list[Path]:
    """Return the log files of the jobs that run on the executor: the driver's, where the executor is in the driver."""
    found = _executor(site, call)
    if not found.is_local:
        raise ApiError(
            404, f"The logs of the executor on {found.host} are with Spark: yarn logs, kubectl logs, or Spark's page."
        )
    paths = {path: None for job, _, _ in found.subtasks if (path := job.job.log_file()) is not None}
    return list(paths)


def _executor_dump(site: Site, call: Call) -> Any:
    found = _executor(site, call)
    if not found.is_local:
        raise ApiError(404, f"The threads of the executor on {found.host} are shown by Spark's page only.")
    return cluster.thread_dump()


# -- programs --------------------------------------------------------------------------------------------------------------


def _programs(site: Site, call: Call) -> Any:
    return {"address": "", "files": [_program(each) for each in site.asked_programs().list()]}


def _program(each: Program) -> dict[str, Any]:
    entries = [{"name": name, "description": ""} for name in each.entries]
    return {"id": each.id, "name": each.name, "uploaded": each.uploaded_ms, "entry": entries}


def _upload(site: Site, call: Call) -> Any:
    programs, file = site.asked_programs(), uploaded(call)
    return {"filename": programs.add(file.name, file.content).id, "status": "success"}


def _remove(site: Site, call: Call) -> Any:
    site.asked_programs().remove(_known_program(site, call))
    return {}


def _known_program(site: Site, call: Call) -> str:
    id = call.path["jarid"]
    if all(each.id != id for each in site.asked_programs().list()):
        raise ApiError(404, f"This server has no program {id[:100]!r}. /jars lists its programs.")
    return id


def _run(site: Site, call: Call) -> str:
    programs, id, body = site.asked_programs(), _known_program(site, call), call.body(RunBody)
    parallelism = body.parallelism if body.parallelism is not None else call.asked_number("parallelism", 1)
    if parallelism is not None and parallelism < 1:
        raise ApiError(400, f"parallelism is at least 1. Found: {parallelism}.")
    mode = (body.claim_mode or body.restore_mode or "NO_CLAIM").upper()
    if mode not in ("CLAIM", "NO_CLAIM"):
        raise ApiError(400, f"claimMode is CLAIM or NO_CLAIM. Found: {mode[:50]!r}.")
    listed = body.program_args_list if body.program_args_list is not None else call.listed("programArg") or []
    skips = body.allow_non_restored_state
    return programs.run(
        id,
        RunRequest(
            entry=body.entry_class or call.asked("entry-class") or None,
            parallelism=parallelism,
            arguments=tuple(listed),
            savepoint=body.savepoint_path or call.asked("savepointPath") or None,
            allow_non_restored_state=call.asked_flag("allowNonRestoredState") if skips is None else skips,
            claim_mode=mode.lower(),
            job_id=body.job_id,
            configuration=body.flink_configuration or {},
        ),
    )


def _run_job(site: Site, call: Call) -> Any:
    id = flink_job_id(_run(site, call))
    return {"jobid": id, "applicationId": id}


def _run_application(site: Site, call: Call) -> Any:
    return Answer({"applicationid": _run_job(site, call)["jobid"]}, 202)


def _plan_of_program(site: Site, call: Call) -> Any:
    _known_program(site, call)
    raise ApiError(404, "The plan of a program is known when the program runs. See: tidegate explain FILE.")


# -- without a meaning -----------------------------------------------------------------------------------------------------


def _missing(sentence: str) -> Callable[[Site, Call], Any]:
    """Make the handler of a path that has no meaning here. Malformed and unknown ids are reported first."""

    def handler(site: Site, call: Call) -> Any:
        if "jobid" in call.path:
            job = site.job(call)
            if "vertexid" in call.path:
                job.vertex(call.hex("vertexid"))
        raise ApiError(404, sentence)

    return handler


_NO_CLUSTER = "A driver ends with its jobs, and there is no cluster to shut down. Cancel the job: PATCH /jobs/{jobid}?mode=cancel."
_NO_DATA_SETS = "Tidegate has no cached data sets."
_NO_RESCALING = (
    "A running job keeps its parallelism. To rescale, stop it with a savepoint, and resume it with another one: "
    "tidegate stop JOB; tidegate run -p N -s SAVEPOINT FILE."
)
_NO_HEARTBEAT = "A job does not depend on the client that started it."
_NO_FLAME_GRAPH = "There are no flame graphs. Spark shows where Python workers spend their time: spark.python.profile."
_NO_COORDINATORS = (
    "Operators have no part in a job manager. /jobs/{jobid}/vertices/{vertexid}/metrics has all their figures."
)
_NO_LOG_URL = "The logs have no address outside of this server. See /jobmanager/logs."


# -- the table of paths ----------------------------------------------------------------------------------------------------

Handler = Callable[[Site, Call], Any]


class FlinkPath(NamedTuple):
    method: str
    path: str
    handler: Handler
    takes_file: bool = False


_JOB, _VERTEX = "/jobs/{jobid}", "/jobs/{jobid}/vertices/{vertexid}"
_SUBTASK, _APPLICATION = _VERTEX + "/subtasks/{subtaskindex}", "/applications/{applicationid}"
_EXECUTOR = "/taskmanagers/{taskmanagerid}"

PATHS = (
    # the server
    FlinkPath("GET", "/overview", lambda site, call: cluster.overview(site.all())),
    FlinkPath("GET", "/config", lambda site, call: cluster.dashboard(site.programs is not None)),
    FlinkPath("DELETE", "/cluster", _missing(_NO_CLUSTER)),
    FlinkPath("GET", "/datasets", _missing(_NO_DATA_SETS)),
    FlinkPath("GET", "/datasets/delete/{triggerid}", _missing(_NO_DATA_SETS)),
    FlinkPath("DELETE", "/datasets/{datasetid}", _missing(_NO_DATA_SETS)),
    FlinkPath("GET", "/jobmanager/config", lambda site, call: next((jobs.configuration(j) for j in reversed(site.all())), [])),
    FlinkPath("GET", "/jobmanager/environment", lambda site, call: cluster.environment()),
    FlinkPath("GET", "/jobmanager/metrics", lambda site, call: metrics.collection(
        cluster.server_metrics(site.all()), call.listed("get")
    )),
    FlinkPath("GET", "/jobmanager/thread-dump", lambda site, call: cluster.thread_dump()),
    FlinkPath("GET", "/jobmanager/logs", lambda site, call: cluster.logs(site.log_files())),
    FlinkPath("GET", "/jobmanager/logs/{filename}", lambda site, call: TextFile(
        cluster.log_named(site.log_files(), call.path["filename"])
    )),
    FlinkPath("GET", "/jobmanager/log", lambda site, call: TextFile(cluster.log_named(site.log_files(), None))),
    FlinkPath("GET", "/jobmanager/stdout", lambda site, call: TextFile(cluster.log_named(site.log_files(), None))),
    # executors
    FlinkPath("GET", "/taskmanagers", lambda site, call: {
        "taskmanagers": [cluster.executor_facts(each) for each in cluster.executors_of(site.all())]
    }),
    FlinkPath("GET", "/taskmanagers/metrics", _executors_metrics),
    FlinkPath("GET", _EXECUTOR, lambda site, call: cluster.executor_details(_executor(site, call))),
    FlinkPath("GET", _EXECUTOR + "/metrics", lambda site, call: metrics.collection(
        cluster.executor_metrics(_executor(site, call), site.drives), call.listed("get")
    )),
    FlinkPath("GET", _EXECUTOR + "/thread-dump", _executor_dump),
    FlinkPath("GET", _EXECUTOR + "/logs", lambda site, call: cluster.logs(_files_of(site, call))),
    FlinkPath("GET", _EXECUTOR + "/logs/{filename}", lambda site, call: TextFile(
        cluster.log_named(_files_of(site, call), call.path["filename"])
    )),
    FlinkPath("GET", _EXECUTOR + "/log", lambda site, call: TextFile(cluster.log_named(_files_of(site, call), None))),
    FlinkPath("GET", _EXECUTOR + "/stdout", lambda site, call: TextFile(cluster.log_named(_files_of(site, call), None))),
    # applications
    FlinkPath("GET", "/applications/overview", lambda site, call: {"applications": list(map(jobs.application, site.all()))}),
    FlinkPath("GET", _APPLICATION, lambda site, call: jobs.application_details(site.job(_application(call)))),
    FlinkPath("POST", _APPLICATION + "/cancel", lambda site, call: _ended_by_cancel(site.job(_application(call)))),
    FlinkPath("GET", _APPLICATION + "/exceptions", lambda site, call: jobs.application_exceptions(site.job(_application(call)))),
    FlinkPath("GET", _APPLICATION + "/jobmanager/config", lambda site, call: jobs.configuration(site.job(_application(call)))),
    # programs
    FlinkPath("GET", "/jars", _programs),
    FlinkPath("POST", "/jars/upload", _upload, takes_file=True),
    FlinkPath("DELETE", "/jars/{jarid}", _remove),
    FlinkPath("POST", "/jars/{jarid}/plan", _plan_of_program),
    FlinkPath("GET", "/jars/{jarid}/plan", _plan_of_program),
    FlinkPath("POST", "/jars/{jarid}/run", _run_job),
    FlinkPath("POST", "/jars/{jarid}/run-application", _run_application),
    # jobs
    FlinkPath("GET", "/jobs", lambda site, call: {"jobs": list(map(jobs.id_and_status, site.all()))}),
    FlinkPath("GET", "/jobs/overview", lambda site, call: {"jobs": list(map(jobs.overview, site.all()))}),
    FlinkPath("GET", "/jobs/metrics", _jobs_metrics),
    FlinkPath("GET", _JOB, lambda site, call: jobs.details(site.job(call))),
    FlinkPath("PATCH", _JOB, _cancel),
    FlinkPath("GET", _JOB + "/status", lambda site, call: {"status": site.job(call).status.name}),
    FlinkPath("GET", _JOB + "/plan", lambda site, call: {"plan": jobs.plan(site.job(call))}),
    FlinkPath("GET", _JOB + "/config", lambda site, call: jobs.execution_config(site.job(call))),
    FlinkPath("GET", _JOB + "/accumulators", _accumulators),
    FlinkPath("GET", _JOB + "/exceptions", _exceptions),
    FlinkPath("GET", _JOB + "/execution-result", lambda site, call: jobs.execution_result(site.job(call))),
    FlinkPath("GET", _JOB + "/metrics", _job_metrics),
    FlinkPath("GET", _JOB + "/jobmanager/config", lambda site, call: jobs.configuration(site.job(call))),
    FlinkPath("GET", _JOB + "/jobmanager/environment", lambda site, call: cluster.environment(site.job(call))),
    FlinkPath("GET", _JOB + "/jobmanager/log-url", _missing(_NO_LOG_URL)),
    FlinkPath("GET", _JOB + "/taskmanagers/{taskmanagerid}/log-url", _missing(_NO_LOG_URL)),
    FlinkPath("PATCH", _JOB + "/clientHeartbeat", _missing(_NO_HEARTBEAT)),
    FlinkPath("GET", _JOB + "/resource-requirements", lambda site, call: jobs.resource_requirements(site.job(call))),
    FlinkPath("PUT", _JOB + "/resource-requirements", _missing(_NO_RESCALING)),
    FlinkPath("PATCH", _JOB + "/rescaling", _missing(_NO_RESCALING)),
    FlinkPath("GET", _JOB + "/rescaling/{triggerid}", _missing(_NO_RESCALING)),
    FlinkPath("GET", _JOB + "/rescales/config", _missing(_NO_RESCALING)),
    FlinkPath("GET", _JOB + "/rescales/details/{rescaleuuid}", _missing(_NO_RESCALING)),
    FlinkPath("GET", _JOB + "/rescales/history", _missing(_NO_RESCALING)),
    FlinkPath("GET", _JOB + "/rescales/overview", _missing(_NO_RESCALING)),
    FlinkPath("GET", _JOB + "/rescales/summary", _missing(_NO_RESCALING)),
    # checkpoints and savepoints
    FlinkPath("GET", _JOB + "/checkpoints", lambda site, call: checkpoints.checkpointing(site.job(call))),
    FlinkPath("POST", _JOB + "/checkpoints", _trigger_checkpoint),
    FlinkPath("GET", _JOB + "/checkpoints/config", lambda site, call: checkpoints.checkpoint_config(site.job(call))),
    FlinkPath("GET", _JOB + "/checkpoints/details/{checkpointid}", _checkpoint_details),
    FlinkPath("GET", _JOB + "/checkpoints/details/{checkpointid}/subtasks/{vertexid}", _checkpoint_subtasks),
    FlinkPath("GET", _JOB + "/checkpoints/{triggerid}", _checkpoint_status),
    FlinkPath("POST", _JOB + "/savepoints", _trigger_savepoint),
    FlinkPath("GET", _JOB + "/savepoints/{triggerid}", _savepoint_status),
    FlinkPath("POST", _JOB + "/stop", _stop),
    FlinkPath("POST", "/savepoint-disposal", _dispose),
    FlinkPath("GET", "/savepoint-disposal/{triggerid}", _disposal_status),
    # vertices and subtasks
    FlinkPath("GET", _VERTEX, lambda site, call: jobs.vertex_details(*site.vertex(call))),
    FlinkPath("GET", _VERTEX + "/accumulators", lambda site, call: jobs.vertex_accumulators(site.vertex(call)[1])),
    FlinkPath("GET", _VERTEX + "/backpressure", lambda site, call: jobs.back_pressure(*site.vertex(call))),
    FlinkPath("GET", _VERTEX + "/flamegraph", _missing(_NO_FLAME_GRAPH)),
    FlinkPath("GET", _VERTEX + "/jm-operator-metrics", _missing(_NO_COORDINATORS)),
    FlinkPath("GET", _VERTEX + "/metrics", _vertex_metrics),
    FlinkPath("GET", _VERTEX + "/subtasktimes", lambda site, call: jobs.subtask_times(*site.vertex(call))),
    FlinkPath("GET", _VERTEX + "/taskmanagers", lambda site, call: jobs.vertex_executors(*site.vertex(call))),
    FlinkPath("GET", _VERTEX + "/watermarks", lambda site, call: metrics.watermarks(site.vertex(call)[1])),
    FlinkPath("GET", _VERTEX + "/subtasks/accumulators", lambda site, call: jobs.subtasks_accumulators(*site.vertex(call))),
    FlinkPath("GET", _VERTEX + "/subtasks/metrics", _subtasks_metrics),
    FlinkPath("GET", _SUBTASK, lambda site, call: _subtask(site, call, jobs.subtask_details)),
    FlinkPath("GET", _SUBTASK + "/metrics", _subtask_metrics),
    FlinkPath("GET", _SUBTASK + "/attempts/{attempt}", lambda site, call: _subtask(site, call, jobs.subtask_details)),
    FlinkPath("GET", _SUBTASK + "/attempts/{attempt}/accumulators", lambda site, call: _subtask(
        site, call, jobs.subtask_accumulators
    )),
)  # fmt: skip
