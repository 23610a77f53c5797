"""Keep a process from touching other systems: no network, no other programs."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

_NEW_NETWORK = 0x40000000
_REFUSED = {
    *("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.sendto"),
    *("socket.sendmsg", "socket.bind", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn"),
    *("os.fork", "os.forkpty", "pty.spawn"),
}
TOLD = "certify runs without network and other programs"


class OutsideTouchedError(PermissionError):
    """User code has called another system."""


def isolate() -> bool:
    """Refuse every call to another system from here on, for good. Return whether the kernel refuses too: then also calls of C
    libraries, which Python does not see, find no network."""
    sys.addaudithook(_refuse)
    try:
        return bool(ctypes.CDLL(None, use_errno=True).unshare(_NEW_NETWORK) == 0)
    except (OSError, AttributeError):
        return False


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _REFUSED:
        shown = ", ".join(f"{argument!r:.60}" for argument in arguments[-2:])
        raise OutsideTouchedError(f"{TOLD}: {event}({shown})")
