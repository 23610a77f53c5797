"""Keys, hashes and counters in Redis as a sink, and the Redis server: its address, client and errors.

Values are written at once or with their checkpoint. A version guard skips repeated writes. The shown address has no
password. Errors of Redis become errors of ours.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from tidegate.base import faults, secrets
from tidegate.base.arguments import made_by, wrong
from tidegate.base.errors import (
    AccessError,
    ArgumentTypeError,
    CommitError,
    ConfigurationError,
    OutputLostError,
    ProgramError,
    RetryableCommitError,
    ServiceError,
    TidegateError,
)
from tidegate.base.files import Files
from tidegate.base.imports import library
from tidegate.connectors.staged_file import (
    StagedFile,
    delete_lingering,
    delete_staged,
    file_at,
    mark_for,
    mark_of,
    read_staged,
)
from tidegate.operators.contracts.sink import (
    Committer,
    CommitterContext,
    Prepared,
    Publication,
    Sink,
    SinkGuarantee,
    SinkWriter,
    WriterContext,
)

_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class RedisServer:
    """The server at ``redis://[user[:password]@]host[:port][/database]``. ``rediss://`` means TLS."""

    url: str = field(repr=False)

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("redis", "rediss", "unix"):
            raise ConfigurationError(
                "The URL of a Redis sink is invalid",
                where="RedisSink",
                found=f"one that begins with {self.url.partition(':')[0][:20]!r}",
                cure="pass a URL of redis, rediss or unix, for example redis://localhost:6379/0",
            )
        secrets.hide([urlsplit(self.url).password or ""])

    def __str__(self) -> str:
        parts = urlsplit(self.url)
        return f"Redis at {parts.hostname or 'localhost'}:{parts.port or 6379}{parts.path}"

    def client(self) -> Any:
        return _redis().from_url(self.url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S)

    def settings(self, client: Any) -> dict[str, str] | None:
        """Read the settings that decide whether the server keeps confirmed writes.

        None: the server does not report them (a hosted server, or a user without the right).
        """
        names = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy")
        try:
            return {name: value for asked in names for name, value in client.config_get(asked).items()}
        except _redis().exceptions.ResponseError:
            return None

    def is_away(self, error: BaseException) -> bool:
        """Return whether a retry may help. In the client a wrong password is a kind of connection error."""
        kinds = _redis().exceptions
        if isinstance(error, kinds.AuthenticationError | kinds.AuthorizationError):
            return False
        away = (kinds.ConnectionError, kinds.TimeoutError, kinds.BusyLoadingError, kinds.ReadOnlyError, OSError)
        # MISCONF: the server cannot write to its disk, and refuses writes until it can.
        return isinstance(error, (*away, kinds.OutOfMemoryError)) or any(no in str(error) for no in ("OOM", "MISCONF"))

    def problem(self, error: BaseException) -> TidegateError:
        """Translate an error of the client. Neither the client's messages nor ours contain a password."""
        kinds = _redis().exceptions
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, kinds.AuthenticationError | kinds.AuthorizationError):
            return AccessError(
                "The Redis server refuses the user or the password of the sink",
                where=str(self),
                found=text,
                cure="check user and password in the URL, and the user's rights (ACL GETUSER)",
            )
        if self.is_away(error):
            return ServiceError(
                "The Redis server of a sink does not answer",
                where=str(self),
                found=text,
                cure="start the server; check host and port of the URL",
            )
        return ServiceError(
            "The Redis server refuses a command of the sink",
            where=str(self),
            found=text,
            cure="see docs/redis.md for the commands and settings that the sink needs",
        )


def _redis() -> Any:
    return library("redis", "RedisSink", "redis")


log = logging.getLogger(__name__)

T = TypeVar("T")

PART = 1_000
"""Rows of one script call. Redis serves no other client during the call."""
INLINE = 1 << 15
"""Up to this size in bytes the rows of a round go into the checkpoint itself, above it into a file beside the checkpoint."""
_STAGED = "rows"
_OF_A_PIPELINE = re.compile(r"Command # \d+ \(.*\) of pipeline caused error: ", re.DOTALL)
"""The client puts the script before the server's error. Users do not know the script."""
_VERSION = 1

GUARDED = """
local last = redis.call('HGET', KEYS[1], ARGV[1])
if last and last >= ARGV[2] then return 0 end
if ARGV[3] ~= '' and last ~= ARGV[3] then return redis.error_reply('the rows before these were not written') end
local kind, at = ARGV[4], 5
if kind == 'keys' then
  redis.call('MSET', unpack(ARGV, 5))
elseif kind == 'hashes' then
  while at < #ARGV do
    local count = tonumber(ARGV[at + 1])
    redis.call('HSET', ARGV[at], unpack(ARGV, at + 2, at + 1 + count))
    at = at + 2 + count
  end
else
  for i = 5, #ARGV, 3 do
    local found
    if kind == 'increments' and ARGV[i + 1] == '' then found = redis.pcall('GET', ARGV[i])
    else found = redis.pcall('HGET', ARGV[i], ARGV[i + 1]) end
    if type(found) == 'table' then return redis.error_reply('key ' .. ARGV[i] .. ': ' .. found.err) end
    if found and not string.match(found, '^-?%d+$') then
      return redis.error_reply('key ' .. ARGV[i] .. ' holds no whole number')
    end
    if (found and #found > 18) or #ARGV[i + 2] > 18 then
      return redis.error_reply('key ' .. ARGV[i] .. ': a counter has at most 17 digits')
    end
  end
  for i = 5, #ARGV, 3 do
    if kind == 'increments' and ARGV[i + 1] == '' then redis.call('INCRBY', ARGV[i], ARGV[i + 2])
    else redis.call('HINCRBY', ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
  end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
"""
"""The version guard writes rows and their version in one step.

A part is skipped if it was written before, or if it is older than a written part. The parts of a committable are sent in one
pipeline, so Redis could refuse one part (a key of another type, no memory) and take the next. The version of the next part would
then claim that both were written. So every part names the version of the part before it, and is refused if that is not the last
version. Redis does not undo a script that fails half-way, so the script checks all counters before it changes one.

A row of 'increments' with an empty field has no field. In rows of 'field-increments' the empty text is a field like any other.
Checkpoints of former versions contain increments of fields as 'increments'."""


class RedisKind(Enum):
    KEYS = "keys"
    HASHES = "hashes"
    INCREMENTS = "increments"
    FIELD_INCREMENTS = "field-increments"


@made_by("RedisSink.keys(...), RedisSink.hashes(...) or RedisSink.increments(...)")
class RedisSink(Sink):
    """Write rows to Redis. Made by ``keys``, ``hashes`` or ``increments``.

    Rows become visible when their checkpoint is complete. An older value never replaces a value that readers have seen. With
    ``at_once`` rows become visible as soon as they are computed. After a failure, old values then reappear until the job has
    caught up.
    """

    publication = Publication.CHECKPOINT

    def __init__(self, url: str, kind: RedisKind, row: Callable[[Any], tuple[Any, Any, Any]], *, at_once: bool) -> None:
        self.server, self.kind, self.row, self.at_once = RedisServer(url), kind, row, at_once
        self.guarantee = SinkGuarantee.IDEMPOTENT if at_once else SinkGuarantee.TWO_PHASE_COMMIT
        if at_once and kind in (RedisKind.INCREMENTS, RedisKind.FIELD_INCREMENTS):
            raise ProgramError(
                "Increments cannot be written at once, because a failure would count them twice",
                where="RedisSink.increments",
                found="at_once=True",
                cure="leave out at_once: increments are written with their checkpoint",
            )

    @staticmethod
    def keys(url: str, key: Callable[[Any], Any], value: Callable[[Any], Any], *, at_once: bool = False) -> RedisSink:
        """Run ``SET key value`` for each record. Of several records with the same key the last one counts."""
        return RedisSink(url, RedisKind.KEYS, lambda record: (key(record), None, value(record)), at_once=at_once)

    @staticmethod
    def hashes(
        url: str, key: Callable[[Any], Any], fields: Callable[[Any], Mapping[Any, Any]], *, at_once: bool = False
    ) -> RedisSink:
        """Run ``HSET key field value ...`` for each record. Other fields of the hash stay unchanged."""
        return RedisSink(url, RedisKind.HASHES, lambda record: (key(record), None, fields(record)), at_once=at_once)

    @staticmethod
    def increments(
        url: str,
        key: Callable[[Any], Any],
        by: Callable[[Any], int] = lambda record: 1,
        field: Callable[[Any], Any] | None = None,
    ) -> RedisSink:
        """Run ``INCRBY key by`` or ``HINCRBY key field by`` for each record. Each record counts once, whatever fails."""
        if field is None:
            return RedisSink(url, RedisKind.INCREMENTS, lambda record: (key(record), b"", by(record)), at_once=False)
        return RedisSink(
            url, RedisKind.FIELD_INCREMENTS, lambda record: (key(record), field(record), by(record)), at_once=False
        )

    def validate(self) -> None:
        try:
            with self.server.client() as client:
                client.ping()
                settings = self.server.settings(client)
        except Exception as error:
            raise self.server.problem(error) from error
        self._check_durability(settings)

    def _check_durability(self, settings: dict[str, str] | None) -> None:
        """Refuse a server that evicts keys: without the version of the guard, increments would count again."""
        if settings is None:
            log.warning(
                "%s does not report its settings (CONFIG GET): see docs/redis.md for the required settings", self.server
            )
            return
        policy = settings.get("maxmemory-policy", "noeviction")
        if settings.get("maxmemory", "0") != "0" and policy.startswith("allkeys") and not self.at_once:
            raise ConfigurationError(
                "The Redis server may evict rows of the sink, or the version that guards them",
                where=str(self.server),
                found=f"maxmemory {settings['maxmemory']}, maxmemory-policy {policy}",
                cure="run CONFIG SET maxmemory-policy noeviction (or volatile-lru, which evicts no key without a time to live)",
            )
        logging_mode = settings.get("appendonly"), settings.get("appendfsync")
        if logging_mode != ("yes", "always"):
            log.warning(
                "%s may lose confirmed writes when it crashes: appendonly is %s, appendfsync is %s; "
                "set them to 'yes' and 'always'",
                self.server,
                *logging_mode,
            )

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return _RedisWriter(self, context)

    def create_committer(self, context: CommitterContext) -> Committer | None:
        return None if self.at_once else _RedisCommitter(self, context)


class _RedisWriter(SinkWriter):
    """Collect the rows of a round: the last value of each key, or the sum of its increments."""

    def __init__(self, sink: RedisSink, context: WriterContext) -> None:
        self._sink, self._context = sink, context
        self._rows: dict[tuple[bytes, bytes], Any] = {}
        self._staged = StagedFile(context, _STAGED)

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        kind, row, rows = self._sink.kind, self._sink.row, self._rows
        if kind is RedisKind.KEYS:
            for record in values:
                key, _, value = row(record)
                rows[_bytes(key, "key"), b""] = _bytes(value, "value")
        elif kind is RedisKind.HASHES:
            for record in values:
                key, _, fields = row(record)
                whole = rows.setdefault((_bytes(key, "key"), b""), {})
                whole.update((_bytes(name, "field"), _bytes(value, "value")) for name, value in fields.items())
        else:
            for record in values:
                key, field, by = row(record)
                name = _bytes(key, "key"), _bytes(field, "field")
                rows[name] = rows.get(name, 0) + _whole(by)
        if self._sink.at_once:
            self._write_now()

    def _write_now(self) -> None:
        """Write the rows now. A repeated write changes nothing, because each value overwrites the last one."""
        try:
            with self._sink.server.client() as client:
                pipeline = client.pipeline(transaction=False)
                if self._sink.kind is RedisKind.KEYS:
                    for part in _in_parts(self._rows.items()):
                        pipeline.mset({key: value for (key, _), value in part})
                else:
                    for (key, _), fields in self._rows.items():
                        if fields:
                            pipeline.hset(key, mapping=fields)
                pipeline.execute()
        except Exception as error:
            raise self._sink.server.problem(error) from error
        self._rows.clear()

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        if not self._rows:
            return Prepared()
        context = self._context
        packed = msgspec.msgpack.encode(list(self._parts()))
        committable: dict[str, Any] = {
            "version": _VERSION,
            "marker": f"tidegate:{context.job_id}:{context.sink_id}:{mark_of(context)}",
            "subtask": str(context.subtask),
            "written": f"{context.lease:012d}.{context.round:012d}",
            "kind": self._sink.kind.value,
        }
        if len(packed) <= INLINE:
            return Prepared([{**committable, "rows": packed}])
        faults.point("K1.redis.flush", round=context.round)
        self._staged.write(packed)
        return Prepared([{**committable, "file": list(self._staged.finish())}])

    def _parts(self) -> Iterator[list[bytes]]:
        """Yield the arguments of each script call."""
        rows = ((key, field, value) for (key, field), value in self._rows.items())
        for part in _in_parts(rows):
            if self._sink.kind is RedisKind.KEYS:
                yield [argument for key, _, value in part for argument in (key, value)]
            elif self._sink.kind is RedisKind.HASHES:
                yield [argument for key, _, fields in part for argument in _flat(key, fields)]
            else:
                yield [argument for key, field, by in part for argument in (key, field, b"%d" % by)]

    def abort(self) -> None:
        self._staged.drop()


def _in_parts(rows: Iterable[T]) -> Iterator[list[T]]:
    source = iter(rows)
    while part := list(islice(source, PART)):
        yield part


def _flat(key: bytes, fields: dict[bytes, bytes]) -> list[bytes]:
    flat = [argument for pair in fields.items() for argument in pair]
    return [key, b"%d" % len(flat), *flat] if flat else []


class _RedisCommitter(Committer):
    def __init__(self, sink: RedisSink, context: CommitterContext) -> None:
        self._server, self._context = sink.server, context
        self._client = sink.server.client()
        mark_for(context)

    def commit(self, committables: list[Any]) -> None:
        for committable in committables:
            faults.point("K3.redis.before-commit", written=committable["written"])
            try:
                self._write(committable)
            except CommitError:
                raise
            except Exception as error:
                raise self._failed(error) from error
            faults.point("K3.redis.committed", written=committable["written"])
            self._drop(committable)

    def _write(self, committable: dict[str, Any]) -> None:
        packed = self._rows(committable)
        if packed is None:
            return
        pipeline = self._client.pipeline(transaction=False)
        before = ""
        for number, part in enumerate(msgspec.msgpack.decode(packed)):
            written = f"{committable['written']}.{number:06d}"
            guard = committable["marker"], committable["subtask"], written, before
            pipeline.eval(GUARDED, 1, *guard, committable["kind"], *part)
            before = written
        pipeline.execute()

    def _rows(self, committable: dict[str, Any]) -> bytes | None:
        """Return the rows of a committable. None: they were written, and their file is deleted."""
        if "rows" in committable:
            return committable["rows"]  # type: ignore[no-any-return]
        address, size, content_hash = committable["file"]
        files, name = file_at(address)
        if files.exists(name):
            return read_staged(address, size, content_hash)
        last = self._client.hget(committable["marker"], committable["subtask"])
        if last is not None and last.decode() >= committable["written"]:
            return None
        raise OutputLostError(
            "Rows of a completed checkpoint are missing and cannot be written to Redis",
            where=f"{self._server}, {committable['marker']}",
            found=f"no file {address}, and no version on the server that shows that they were written",
            cure="restore an older checkpoint; find out which process deleted the file or the key",
        )

    def _failed(self, error: Exception) -> Exception:
        found = _OF_A_PIPELINE.sub("", f"{type(error).__name__}: {error}")
        if self._server.is_away(error):
            return RetryableCommitError(
                "The rows of a completed checkpoint are not written, because the Redis server does not take them now",
                where=str(self._server),
                found=found,
                cure="bring the server back; the job retries the commit",
            )
        return CommitError(
            "The Redis server refuses the rows of a completed checkpoint",
            where=str(self._server),
            found=found,
            cure="change the value of the key, or the program; then start the job again: nothing is lost",
        )

    def _drop(self, committable: dict[str, Any]) -> None:
        if "file" in committable:
            delete_staged(committable["file"][0])

    def abort(self, committables: list[Any]) -> None:
        for committable in committables:
            self._drop(committable)

    def abort_lingering(self, committables: list[Any], states: list[Any]) -> None:
        wanted = {committable["file"][0] for committable in committables if "file" in committable}
        delete_lingering(self._context, Files(self._context.staging).list(_STAGED), wanted, "K2.redis.listed")

    def close(self) -> None:
        self._client.close()


def _bytes(value: Any, what: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value).encode()
    raise wrong(
        "RedisSink", f"a text, bytes or a number as {what}", value, "convert it, for example with json.dumps(value)"
    )


def _whole(by: Any) -> int:
    if isinstance(by, bool) or not isinstance(by, int):
        raise ArgumentTypeError(
            "RedisSink.increments takes whole numbers", found=f"{type(by).__name__} {by!r:.100}", cure="return an int"
        )
    return by
