"""Writes src/tidegate/control/flink/api.json: names, parameters and fields of Flink's REST API, from its OpenAPI description.

    python scripts/gen_flink_api.py DESCRIPTION.json

The description of Flink's documentation is made from Java classes, and says of some classes what their fields are where Flink sends
something else. CORRECTIONS has what Flink sends and what Tidegate takes: tests/compat/test_flink_client.py lets the classes of the
Java client read every answer.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[1] / "src/tidegate/control/flink/api.json"
HEX = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
NUMBER, INTEGER = {"type": "number"}, {"type": "integer"}
ERRORS = {
    "type": "object",
    "required": ["errors"],
    "properties": {"errors": {"type": "array", "items": {"type": "string"}}},
}
AGGREGATES = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["id"],
        "properties": {"id": {"type": "string"}, **dict.fromkeys(("min", "max", "avg", "sum", "skew"), NUMBER)},
    },
}
CORRECTIONS: dict[str, Any] = {
    # ids are texts
    **dict.fromkeys(("ApplicationID", "IntermediateDataSetID", "JobID", "JobVertexID", "ResourceID"), HEX),
    **dict.fromkeys(("RescaleUUID", "SlotSharingGroupId", "TriggerId"), HEX),
    # lists are sent without an object around them
    "MetricCollectionResponseBody": {"type": "array", "items": {"$ref": "#/components/schemas/Metric"}},
    "AggregatedMetricsResponseBody": AGGREGATES,
    # the serializer of Flink has other names than the class
    "JobResult": {
        "type": "object",
        "additionalProperties": False,
        "required": ["id", "application-status", "net-runtime"],
        "properties": {
            **dict.fromkeys(("id", "application-id"), HEX),
            "name": {"type": "string"},
            "application-status": {"type": "string", "enum": ["SUCCEEDED", "FAILED", "CANCELED", "UNKNOWN"]},
            "accumulator-results": {"type": "object"},
            **dict.fromkeys(("net-runtime", "start-time", "end-time"), INTEGER),
            "failure-cause": {"$ref": "#/components/schemas/SerializedThrowable"},
        },
    },
    # bytes are base64
    "SerializedThrowable": {"type": "object", "properties": {"serialized-throwable": {"type": "string"}}},
    # parameters are read in any case of letters, and as lists with commas
    "AggregationMode": {"type": "string"},
    "TerminationMode": {"type": "string", "enum": ["cancel", "stop", "CANCEL", "STOP"]},
    "FailureLabel": {"type": "string"},
    "ErrorResponseBody": ERRORS,
    # both forms of a job's id
    "JobKey": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"},
}
UPLOAD = {
    "content": {
        "multipart/form-data": {
            "schema": {"type": "object", "properties": {"jarfile": {"type": "string", "format": "binary"}}}
        }
    },
    "required": True,
}


def made_from(described: dict[str, Any]) -> dict[str, Any]:
    schemas = described["components"]["schemas"] | CORRECTIONS
    operation = schemas["AsynchronousOperationResult"]["properties"]["operation"]
    operation["anyOf"] = operation.pop("oneOf")  # no two of them can be told apart
    for schema in schemas.values():
        schema.pop("discriminator", None)
    paths = described["paths"]
    for path, methods in paths.items():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] in ("jobid", "jobs"):
                    parameter["schema"] = {"$ref": "#/components/schemas/JobKey"}
                if parameter["name"] in ("get", "taskmanagers", "jobs") and parameter["in"] == "query":
                    parameter["schema"] = {"type": "string"}
            if path == "/jars/upload":
                operation["requestBody"] = UPLOAD
    return {"paths": paths, "schemas": schemas}


def main() -> None:
    described = json.loads(Path(sys.argv[1]).read_text())
    TARGET.write_text(json.dumps(made_from(described), separators=(",", ":"), sort_keys=True) + "\n")
    print(f"{TARGET}: {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
