"""A browser of a few lines: it keeps the cookie, sends the CSRF token, and reads events."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from tidegate.control.web.server import PageServer


class Browser:
    """``log_in`` first. ``ask`` returns the status and the decoded answer."""

    def __init__(self, server: PageServer) -> None:
        self.server, self.cookie, self.csrf = server, "", ""
        self.headers: dict[str, str] = {}

    def log_in(self) -> Browser:
        place = urlsplit(self.server.login_address())
        status, _ = self.ask("GET", f"{place.path}?{place.query}")
        assert status == 303
        self.csrf = self.ask("GET", "/tidegate/page/me")[1]["csrf"]
        return self

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        given = {"Cookie": self.cookie} if self.cookie else {}
        given |= {"X-Tidegate-CSRF": self.csrf} if self.csrf and method != "GET" else {}
        connection.request(method, path, content, {k: v for k, v in {**given, **(headers or {})}.items() if v})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        self.headers = {key.lower(): value for key, value in answer.getheaders()}
        if "set-cookie" in self.headers:
            self.cookie = self.headers["set-cookie"].partition(";")[0]
        is_json = answer.headers.get_content_type() == "application/json"
        return answer.status, json.loads(text) if is_json else text.decode()

    def page(self, path: str) -> Any:
        """Return the answer of the page's API. It must be a success."""
        status, answer = self.ask("GET", f"/tidegate/page{path}")
        assert status == 200, (status, answer)
        return answer

    def done(self, job: str, path: str, body: Any = None) -> dict[str, Any]:
        """Carry out an action, and return the operation when it has ended."""
        status, operation = self.ask("POST", f"/tidegate/page/jobs/{job}{path}", {} if body is None else body)
        assert status == 202, (status, operation)
        while operation["status"] == "running":
            operation = self.page(f"/jobs/{job}/operations/{operation['id']}?wait=25")
        return dict(operation)

    def events(self, path: str) -> Iterator[tuple[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        try:
            connection.request("GET", f"/tidegate/page{path}", headers={"Cookie": self.cookie})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            assert answer.headers.get_content_type() == "text/event-stream"
            event = ""
            while line := answer.readline():
                text = line.decode().rstrip("\n")
                if text.startswith("event: "):
                    event = text[7:]
                elif text.startswith("data: "):
                    yield event, json.loads(text[6:])
        finally:
            connection.close()
