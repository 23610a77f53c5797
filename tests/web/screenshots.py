"""Take the pictures of docs/web: ``python -m tests.web.screenshots``. With pngquant they stay small."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Literal

from playwright.sync_api import expect

from tests.servers.server import binary
from tests.web.browser import chromium, visiting
from tests.web.page_server import served

DOCS = Path(__file__).parents[2] / "docs" / "web"
SIZE = (1200, 750)
JOB = "#/jobs/orders-by-hour"
ROUTES = {
    "jobs": "",
    "checkpoints": f"{JOB}/checkpoints/SLOW?operator=4&subtask=2&step=snapshot",
    "rounds": f"{JOB}/rounds?step=user&operator=3&subtask=1&finding=slow-function",
    "graph": f"{JOB}/graph?operator=4&subtask=2&key=customer-4711&finding=hot-key",
    "exceptions": "#/jobs/payments/exceptions?operator=3&subtask=3&key=customer-4711&finding=restart-loop",
    "state": f"{JOB}/state",
    "actions": f"{JOB}/actions",
    "metrics": f"{JOB}/metrics?show=parse%2Forders.parsed%2Foperator_id%2C1%0Atotals%2Fcache.size%2Foperator_id%2C3",
}
_SHOWN = ("orders-by-hour", "payments", "sessions", "large", "backfill")


def main() -> None:
    DOCS.mkdir(parents=True, exist_ok=True)
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    with served() as server, chromium() as browser:
        server.odd = "requests"
        server.pages = {id: server.pages[id] for id in _SHOWN}
        slow = next(f.checkpoint_id for f in server.pages["orders-by-hour"].findings if f.checkpoint_id)
        for scheme in schemes:
            with visiting(browser, SIZE, scheme) as visitor:
                for name, route in ROUTES.items():
                    visitor.open(server.address, route.replace("SLOW", str(slow)))
                    visitor.heading()
                    if name == "state":
                        visitor.page.locator("main table a", has_text="totals").first.click()
                        visitor.sees("'customer-4700'")
                    if name == "metrics":
                        expect(visitor.page.locator(".plot path").first).to_be_visible()
                    expect(visitor.page.locator("[role=status]", has_text="Reading")).to_have_count(0)
                    visitor.page.evaluate("scrollTo(0, 0)")
                    picture = DOCS / f"{name}-{scheme}.png"
                    visitor.page.screenshot(path=picture)
                    subprocess.run(
                        [
                            binary("pngquant", "pngquant"),
                            "--force",
                            "--strip",
                            "--speed",
                            "1",
                            "--ext",
                            ".png",
                            "64",
                            str(picture),
                        ],
                        check=True,
                    )


if __name__ == "__main__":
    main()
