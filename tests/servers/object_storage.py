"""An S3 server for tests: moto's, which enforces conditional puts as the real one does."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import fsspec
import pytest

from tests.servers.server import Server

BUCKET = "tidegate-tests"


ONE_AT_A_TIME = """
import sys, threading
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple
lock, moto = threading.Lock(), DomainDispatcherApplication(create_backend_app)
def serve(environ, start_response):
    with lock:
        return moto(environ, start_response)
run_simple("127.0.0.1", int(sys.argv[1]), serve, threaded=True, request_handler=MotoRequestHandler)
"""
"""moto as it comes looks for the key of a conditional put and then stores it: of several at once more than one would win, which the
real S3 does not let happen."""


@contextmanager
def s3() -> Iterator[str]:
    """The address of an empty bucket. While it is there, s3fs finds the server by the environment."""
    server = Server(
        "s3",
        lambda s: [sys.executable, "-c", ONE_AT_A_TIME, str(s.port)],
        answers=lambda s: urllib.request.urlopen(f"http://127.0.0.1:{s.port}/moto-api/", timeout=5).read(),
    )
    with server, pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.port}",
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            patch.setenv(name, value)
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "AWS_PROFILE"):
            patch.delenv(name, raising=False)
        system = fsspec.filesystem("s3", skip_instance_cache=True)
        system.clear_instance_cache()
        system.mkdir(BUCKET)
        yield f"s3://{BUCKET}"
        system.clear_instance_cache()
