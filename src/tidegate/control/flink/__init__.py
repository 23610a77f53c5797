"""Flink's REST API over the jobs of a server (``docs/rest-api.md``). ``routes.flink_routes`` makes the routes."""
