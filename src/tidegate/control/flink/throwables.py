"""A failure as Flink's Java clients read it: the class ``SerializedThrowable`` in Java's serialization format.

The clients deserialize the failure of a savepoint, a stop or a job, and print its message. Without these bytes they would report
an error of their own in place of the reason. The format: "Java Object Serialization Specification", chapter 6.
"""

from __future__ import annotations

import base64
import struct

_MAGIC = b"\xac\xed\x00\x05"
_NULL, _CLASS, _OBJECT, _STRING, _END, _LONG_STRING = b"p", b"r", b"s", b"t", b"x", b"|"
_SERIALIZABLE = 2
_CLASSES = (  # from the class itself to its ancestors: name, serialVersionUID, fields that are texts
    (
        "org.apache.flink.util.SerializedThrowable",
        7284183123441947635,
        ("fullStringifiedStackTrace", "originalErrorClassName"),
    ),
    ("java.lang.Exception", -3387516993124229948, ()),
    ("java.lang.Throwable", -3042686055658047285, ("detailMessage",)),
)
_TEXT = "Ljava/lang/String;"


def serialized(kind: str, message: str) -> dict[str, str]:
    """Return the failure as Flink's API has it. ``kind``: the name of the error's class."""
    content = bytearray(_MAGIC + _OBJECT)
    for name, version, fields in _CLASSES:
        content += _CLASS + _short_text(name) + struct.pack(">qBH", version, _SERIALIZABLE, len(fields))
        for field in fields:
            content += b"L" + _short_text(field) + _text(_TEXT)
        content += _END
    content += _NULL  # Throwable has no ancestor that is serialized
    values = {"detailMessage": message, "fullStringifiedStackTrace": message, "originalErrorClassName": kind}
    for _, _, fields in reversed(_CLASSES):
        for field in fields:
            content += _text(values[field])
    return {"class": kind, "stack-trace": message, "serialized-throwable": base64.b64encode(content).decode()}


def _short_text(text: str) -> bytes:
    encoded = _modified(text)
    return struct.pack(">H", len(encoded)) + encoded


def _text(text: str) -> bytes:
    encoded = _modified(text)
    if len(encoded) < 1 << 16:
        return _STRING + struct.pack(">H", len(encoded)) + encoded
    return _LONG_STRING + struct.pack(">q", len(encoded)) + encoded


def _modified(text: str) -> bytes:
    """Encode a text as Java does: UTF-16 units, each as UTF-8, and the character 0 in two bytes."""
    units = text.encode("utf-16-be", "surrogatepass")
    plain = "".join(chr(unit) for (unit,) in struct.iter_unpack(">H", units))
    return plain.encode("utf-8", "surrogatepass").replace(b"\x00", b"\xc0\x80")
