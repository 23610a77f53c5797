"""Keys, hashes and counters in Redis, written when their checkpoint is complete, behind a version guard; or at once."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from itertools import islice
from typing import Any, TypeVar

import msgspec

from tidegate.base import faults
from tidegate.base.arguments import made_by, wrong
from tidegate.base.errors import (
    ArgumentTypeError,
    CommitError,
    ConfigurationError,
    OutputLostError,
    ProgramError,
    RetryableCommitError,
)
from tidegate.base.files import FileHandle, Files
from tidegate.connectors.directory_mark import mark_for, mark_of
from tidegate.connectors.redis.server import RedisServer
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

log = logging.getLogger(__name__)

T = TypeVar("T")

_PART = 1_000
"""Rows of one script call: Redis does nothing else meanwhile."""
_INLINE = 1 << 15
"""Bytes up to which the rows of a round are kept in the checkpoint itself, and not in a file beside it."""
_STAGED = "rows"
_OF_A_PIPELINE = re.compile(r"Command # \d+ \(.*\) of pipeline caused error: ", re.DOTALL)
"""What the client puts before the server's words: the script, of which no user has heard."""
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
"""The version guard: rows and the version that has written them, in one step. A part that was written, or is older than one
that was, changes nothing. The parts of a committable are sent in one go, so one may be refused (a key of another type, no room)
and the next be taken: that must not happen, for its version would then say that both were written. So a part names the one before
it. Redis does not undo a script that fails half-way: counters are looked at before one is changed.

A row of 'increments' with an empty field has no field. In rows of 'field-increments' the empty text is a field like any other;
checkpoints of former versions hold increments of fields as 'increments'."""


class RedisKind(Enum):
    KEYS = "keys"
    HASHES = "hashes"
    INCREMENTS = "increments"
    FIELD_INCREMENTS = "field-increments"


@made_by("RedisSink.keys(...), RedisSink.hashes(...) or RedisSink.increments(...)")
class RedisSink(Sink):
    """See ``keys``, ``hashes`` and ``increments``.

    Rows become visible when their checkpoint is complete, and a value that a reader has seen is never replaced by an older one.
    ``at_once``: as soon as they are computed; after a failure old values reappear until the job has caught up.
    """

    publication = Publication.CHECKPOINT

    def __init__(self, url: str, kind: RedisKind, row: Callable[[Any], tuple[Any, Any, Any]], *, at_once: bool) -> None:
        self.server, self.kind, self.row, self.at_once = RedisServer(url), kind, row, at_once
        self.guarantee = SinkGuarantee.IDEMPOTENT if at_once else SinkGuarantee.TWO_PHASE_COMMIT
        if at_once and kind in (RedisKind.INCREMENTS, RedisKind.FIELD_INCREMENTS):
            raise ProgramError(
                "Increments are written with their checkpoint: written at once, a failure would count them twice",
                where="RedisSink.increments",
                found="at_once=True",
                cure="leave it out",
            )

    @staticmethod
    def keys(url: str, key: Callable[[Any], Any], value: Callable[[Any], Any], *, at_once: bool = False) -> RedisSink:
        """``SET key value`` for each record; of several with the same key the last one counts."""
        return RedisSink(url, RedisKind.KEYS, lambda record: (key(record), None, value(record)), at_once=at_once)

    @staticmethod
    def hashes(
        url: str, key: Callable[[Any], Any], fields: Callable[[Any], Mapping[Any, Any]], *, at_once: bool = False
    ) -> RedisSink:
        """``HSET key field value ...`` for each record; other fields of the hash stay as they are."""
        return RedisSink(url, RedisKind.HASHES, lambda record: (key(record), None, fields(record)), at_once=at_once)

    @staticmethod
    def increments(
        url: str,
        key: Callable[[Any], Any],
        by: Callable[[Any], int] = lambda record: 1,
        field: Callable[[Any], Any] | None = None,
    ) -> RedisSink:
        """``INCRBY key by`` for each record, or ``HINCRBY key field by``; each record counts once, whatever fails."""
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
        self._check_kept(settings)

    def _check_kept(self, settings: dict[str, str] | None) -> None:
        """What the server may forget. A server that evicts by itself may drop a version, and increments then count again."""
        if settings is None:
            log.warning(
                "%s does not tell its settings (CONFIG GET): see docs/redis.md for those that it needs", self.server
            )
            return
        policy = settings.get("maxmemory-policy", "noeviction")
        if settings.get("maxmemory", "0") != "0" and policy.startswith("allkeys") and not self.at_once:
            raise ConfigurationError(
                "A Redis server must not evict what a sink has written: rows, or the version that guards them",
                where=str(self.server),
                found=f"maxmemory {settings['maxmemory']}, maxmemory-policy {policy}",
                cure="CONFIG SET maxmemory-policy noeviction (or volatile-lru, which leaves keys without a time of life alone)",
            )
        kept = settings.get("appendonly"), settings.get("appendfsync")
        if kept != ("yes", "always"):
            log.warning(
                "%s may forget what it has confirmed when it crashes: appendonly is %s, appendfsync is %s; "
                "'yes' and 'always' keep it",
                self.server,
                *kept,
            )

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return _RedisWriter(self, context)

    def create_committer(self, context: CommitterContext) -> Committer | None:
        return None if self.at_once else _RedisCommitter(self, context)


class _RedisWriter(SinkWriter):
    """Rows of a round, the last value of a key, or the sum of its increments."""

    def __init__(self, sink: RedisSink, context: WriterContext) -> None:
        self._sink, self._context = sink, context
        self._rows: dict[tuple[bytes, bytes], Any] = {}
        self._staged: str | None = None

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
        """Each value overwrites what is there, so a repeated one changes nothing."""
        try:
            with self._sink.server.client() as client:
                pipeline = client.pipeline(transaction=False)
                if self._sink.kind is RedisKind.KEYS:
                    for part in _cut(self._rows.items(), _PART):
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
        if len(packed) <= _INLINE:
            return Prepared([{**committable, "rows": packed}])
        attempt = re.sub(r"[^A-Za-z0-9_.-]", "_", context.attempt)
        self._staged = f"{_STAGED}/{context.round:010d}-{context.subtask}-{attempt}"
        files = Files(context.staging)
        faults.point("K1.redis.flush", file=self._staged)
        handle = files.write(self._staged, packed)
        return Prepared([{**committable, "file": [files.location(self._staged), handle.size, handle.hash]}])

    def _parts(self) -> Iterator[list[bytes]]:
        """Arguments of one script call each."""
        rows = ((key, field, value) for (key, field), value in self._rows.items())
        for part in _cut(rows, _PART):
            if self._sink.kind is RedisKind.KEYS:
                yield [argument for key, _, value in part for argument in (key, value)]
            elif self._sink.kind is RedisKind.HASHES:
                yield [argument for key, _, fields in part for argument in _flat(key, fields)]
            else:
                yield [argument for key, field, by in part for argument in (key, field, b"%d" % by)]

    def abort(self) -> None:
        if self._staged is not None:
            Files(self._context.staging).delete(self._staged)


def _cut(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    source = iter(rows)
    while part := list(islice(source, size)):
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
        """None: they were written, and their file is gone since."""
        if "rows" in committable:
            return committable["rows"]  # type: ignore[no-any-return]
        address, size, content = committable["file"]
        directory, _, name = address.rpartition("/")
        files = Files(directory)
        if files.exists(name):
            return files.read(FileHandle(name, size, content))
        last = self._client.hget(committable["marker"], committable["subtask"])
        if last is not None and last.decode() >= committable["written"]:
            return None
        raise OutputLostError(
            "Rows of a completed checkpoint must be written to Redis",
            where=f"{self._server}, {committable['marker']}",
            found=f"no file {address}, and the server does not say that they were written",
            cure="restore an older checkpoint; look for who deleted the file, or the key",
        )

    def _failed(self, error: Exception) -> Exception:
        told = _OF_A_PIPELINE.sub("", f"{type(error).__name__}: {error}")
        if self._server.is_away(error):
            return RetryableCommitError(
                "Rows of a completed checkpoint must be written to Redis",
                where=str(self._server),
                found=told,
                cure="bring the server back; the commit is tried again",
            )
        return CommitError(
            "Rows of a completed checkpoint must be written to Redis",
            where=str(self._server),
            found=told,
            cure="change what the key holds, or the program; then start the job again: nothing is lost",
        )

    def _drop(self, committable: dict[str, Any]) -> None:
        if "file" in committable:
            directory, _, name = committable["file"][0].rpartition("/")
            Files(directory).delete(name)

    def abort(self, committables: list[Any]) -> None:
        for committable in committables:
            self._drop(committable)

    def abort_lingering(self, committables: list[Any], states: list[Any]) -> None:
        files = Files(self._context.staging)
        wanted = {committable["file"][0] for committable in committables if "file" in committable}
        listed = files.list(_STAGED)
        faults.point("K2.redis.listed", files=len(listed))
        self._context.check_lease()
        for path in listed:
            if files.location(path) not in wanted:
                files.delete(path)

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
        "RedisSink", f"a text, bytes or a number as {what}", value, "make one of them, for example json.dumps(value)"
    )


def _whole(by: Any) -> int:
    if isinstance(by, bool) or not isinstance(by, int):
        raise ArgumentTypeError(
            "RedisSink.increments takes whole numbers", found=f"{type(by).__name__} {by!r:.100}", cure="return an int"
        )
    return by
