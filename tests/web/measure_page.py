"""Measure the page: ``python -m tests.web.measure_page`` prints when the first content stands, and how long an update takes.

An update is timed from the new figures to the frame after the paint (``performance.now``), in headless Chromium.
"""

from __future__ import annotations

from statistics import median

import msgspec

from tests.web import shown_data
from tests.web.browser import chromium, visiting
from tests.web.page_server import served

UPDATES = 20
_UPDATE = """async text => {
  const { takePage } = await import('/assets/api.js');
  const painted = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  await painted();
  const begin = performance.now();
  takePage(JSON.parse(text));
  const script = performance.now();
  await painted();
  return [script - begin, performance.now() - begin];
}"""
_FIRST = """() => new Promise(done => {
  let there;
  const look = () => {
    const [first] = performance.getEntriesByName('first-contentful-paint');
    if (document.querySelector('.card')) there ??= performance.now();
    first && there ? done([first.startTime, there]) : requestAnimationFrame(look);
  };
  look();
})"""


def main() -> None:
    with served() as server, chromium() as browser, visiting(browser) as visitor:
        firsts = []
        for _ in range(5):
            visitor.page.goto("about:blank")
            visitor.page.goto(server.address, wait_until="commit")
            firsts.append(visitor.page.evaluate(_FIRST))
        print(
            f"first paint {median(f for f, _ in firsts):.0f} ms, jobs shown {median(t for _, t in firsts):.0f} ms (median of 5)"
        )
        for job, route in (
            ("large", "#/jobs/large/checkpoints"),
            ("large", "#/jobs/large/graph?operator=4&subtask=2"),
            ("large", "#/jobs/large/rounds"),
            ("wide", "#/jobs/wide/graph"),
        ):
            visitor.open(server.address, route)
            visitor.heading()
            page, times = server.pages[job], []
            for i in range(UPDATES):
                page = shown_data.later(page, page.card.as_of_ms + 1_000 * i)
                times.append(visitor.page.evaluate(_UPDATE, msgspec.json.encode(page).decode()))
            kib = len(msgspec.json.encode(page)) / 1024
            script, painted = (sorted(column) for column in zip(*times, strict=True))
            print(
                f"{route}: {kib:.0f} KiB; script {median(script):.1f} ms, to paint {median(painted):.1f} ms, "
                f"at most {painted[-1]:.1f} ms ({UPDATES} updates)"
            )


if __name__ == "__main__":
    main()
