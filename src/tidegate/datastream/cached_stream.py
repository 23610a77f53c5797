"""Cached streams: the first job that needs an operator's records computes and stores them, and later jobs read them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from tidegate.base.errors import ProgramError
from tidegate.base.generics import TypeVar
from tidegate.base.hashing import new_token
from tidegate.base.private_dirs import private_home
from tidegate.common.options import CHECKPOINT_DIR
from tidegate.connectors.values import cache
from tidegate.datastream.stream import DataStream
from tidegate.graph.transformation import Input, Transformation
from tidegate.operators.contracts.specs import SinkSpec, SourceSpec

T = TypeVar("T", covariant=True, default=Any)


class CachedDataStream(DataStream[T]):
    """The result of ``cache``. Only in BATCH mode, because an unbounded stream never ends."""

    def invalidate(self) -> None:
        """Delete the cached records. The next job that needs them computes them again."""
        (only,) = self._inputs
        cache.drop(self._env._caches[only.upstream])

    def _operator(self, method: str) -> NoReturn:
        raise ProgramError(
            f"{method}() is called on cache(), which is not an operator",
            where="CachedDataStream",
            cure=f"call {method}() before cache(), or on the stream the next operator returns",
        )


def cached(stream: DataStream[T]) -> CachedDataStream[T]:
    operator, env = stream._operator("cache"), stream._env
    if operator.id not in env._caches:
        env._caches[operator.id] = _directory(env._configuration.read(CHECKPOINT_DIR))
    return CachedDataStream(env, (Input(operator.id),), stream._type)


def _directory(shared: str | None) -> str:
    """Return the directory of caches: next to the checkpoints, which all workers can reach. A program without checkpoints runs on
    one machine, with a private directory."""
    home = shared.rstrip("/") if shared else private_home(tempfile.gettempdir())
    return f"{home}/cache-{new_token()}"


def with_caches(registry: Mapping[int, Transformation], caches: Mapping[int, str]) -> dict[int, Transformation]:
    """Return the registry with sources instead of the operators whose records are cached."""
    changed = dict(registry)
    for operator_id, directory in caches.items():
        files = cache.cached_files(directory)
        if files is not None:
            spec: Any = SourceSpec(cache.CachedSource(directory, files))
            changed[operator_id] = replace(registry[operator_id], spec=spec, inputs=(), pickled_spec=None)
    return changed


def cache_writers(
    transformations: Iterable[Transformation], caches: Mapping[int, str], mode: str, first_id: int
) -> list[Transformation]:
    """Return sinks for the operators whose records are to be cached and are not cached yet."""
    writers: list[Transformation] = []
    for t in transformations:
        directory = caches.get(t.id)
        if directory is None or cache.cached_files(directory) is not None:
            continue
        if mode != "BATCH":
            raise ProgramError(
                "cache() needs BATCH mode",
                where=f"operator '{t.name}'",
                found=f"the program runs in {mode} mode",
                cure="env.set_runtime_mode(RuntimeExecutionMode.BATCH), with bounded sources; or leave cache() out",
            )
        sink = SinkSpec(cache.CacheSink(directory))
        number = first_id + len(writers)
        writers.append(Transformation(number, "Sink: Cache", sink, (Input(t.id),), parallelism=t.parallelism))
    return writers
