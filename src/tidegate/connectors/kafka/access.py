"""Why a broker that is there does not let a client in: the client itself only says that it could not connect."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
from collections.abc import Mapping
from typing import Any

import kafka.errors as errors

log = logging.getLogger(__name__)

_PATIENCE_S = 3.0


def is_refused(manager: Any) -> bool:
    """Whether a broker turns user and password down: it listens, and closes the connection when they come. The client only says
    that it could not connect."""
    [node] = manager.cluster.bootstrap_brokers()[:1]

    async def connect() -> None:
        manager.reset_backoff(node.node_id)
        connection = manager.get_connection(
            node.node_id, timeout_ms=5_000, pop_on_close=False, refresh_metadata_on_err=False
        )
        await connection

    try:
        manager.run(connect)
    except errors.SaslAuthenticationFailedError:
        return True
    except errors.KafkaConnectionError:
        with socket.socket() as probe:
            probe.settimeout(2.0)
            return probe.connect_ex((node.host, node.port)) == 0
    except errors.KafkaError as error:
        log.debug("no connection: %s", type(error).__name__)
    return False


def why_untrusted(arguments: Mapping[str, Any]) -> str | None:
    """What TLS says of the certificate of the first broker that can be reached; None: nothing, or there is no TLS."""
    if "SSL" not in str(arguments.get("security_protocol", "")):
        return None
    context = ssl.create_default_context(cafile=arguments.get("ssl_cafile"))
    context.check_hostname = bool(arguments.get("ssl_check_hostname", True))
    for address in str(arguments.get("bootstrap_servers", "")).split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            with (
                socket.create_connection((host, int(port)), _PATIENCE_S) as plain,
                contextlib.closing(context.wrap_socket(plain, server_hostname=host)),
            ):
                return None
        except ssl.SSLCertVerificationError as error:
            return f"{address.strip()}: {error.verify_message}"
        except (OSError, ValueError) as error:
            log.debug("no TLS with %s: %s", address, type(error).__name__)
    return None
