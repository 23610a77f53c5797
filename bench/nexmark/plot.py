"""Draw how many events each engine processes in a second of processor time, for each query, as an SVG of bars."""

from __future__ import annotations

from typing import Any

COLORS = {"tidegate": "#1769aa", "flink-java": "#e07b39", "pyflink-thread": "#8a8a8a", "pyspark": "#5b9a57"}
BAR, GAP, LEFT, WIDTH = 9, 8, 44, 900


def drawn(results: dict[str, dict[str, dict[str, Any]]], labels: dict[str, str]) -> str:
    """Return the picture. A run that failed or was left out has no bar."""
    engines = [engine for engine in labels if any(_speed(of.get(engine)) for of in results.values())]
    largest = max((_speed(of.get(engine)) for of in results.values() for engine in engines), default=0) or 1
    body: list[str] = []
    for place, engine in enumerate(engines):
        body.append(f'<rect x="{LEFT + 190 * place}" y="8" width="10" height="10" fill="{COLORS[engine]}"/>')
        body.append(f'<text x="{LEFT + 190 * place + 15}" y="17">{labels[engine]}</text>')
    y = 34
    for query, of in results.items():
        body.append(f'<text x="{LEFT - 8}" y="{y + BAR * len(engines) / 2 + 4:g}" text-anchor="end">{query}</text>')
        for engine in engines:
            speed = _speed(of.get(engine))
            length = speed / largest * (WIDTH - LEFT - 90)
            if speed:
                body.append(
                    f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR - 1}" fill="{COLORS[engine]}"/>'
                )
                body.append(f'<text x="{LEFT + length + 4:.1f}" y="{y + BAR - 1}" font-size="9">{speed:,}</text>')
            y += BAR
        y += GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 6}" font-family="sans-serif" font-size="12">'
    title = "<title>Nexmark: events for each second of processor time, of all processes</title>"
    return "\n".join([head, title, f'<rect width="{WIDTH}" height="{y + 6}" fill="white"/>', *body, "</svg>\n"])


def _speed(result: dict[str, Any] | None) -> int:
    if result is None or "failed" in result:
        return 0
    cpu = result.get("cpu_us_per_event")
    return round(1e6 / cpu) if cpu else 0
