"""Kafka's client properties, spelled as in its Java client and in librdkafka, as arguments of kafka-python."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

from tidegate.base import secrets
from tidegate.base.errors import ConfigurationError

log = logging.getLogger(__name__)

HIDDEN = "***"
_SECRET = re.compile(r"password|secret|jaas|token|key\.pem", re.IGNORECASE)
_JAAS = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')

_CLIENT = {
    "bootstrap.servers": "bootstrap_servers",
    "client.id": "client_id",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.truststore.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.keystore.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "request.timeout.ms": "request_timeout_ms",
    "reconnect.backoff.ms": "reconnect_backoff_ms",
    "reconnect.backoff.max.ms": "reconnect_backoff_max_ms",
    "metadata.max.age.ms": "metadata_max_age_ms",
    "connections.max.idle.ms": "connections_max_idle_ms",
    "client.dns.lookup": "client_dns_lookup",
}
_NUMBERS = {"request_timeout_ms", "reconnect_backoff_ms", "reconnect_backoff_max_ms", "metadata_max_age_ms"} | {
    "connections_max_idle_ms"
}
_OWN = {"sasl.jaas.config", "ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification"}
_NO_EFFECT = {
    "key.serializer",
    "value.serializer",
    "key.deserializer",
    "value.deserializer",
    "enable.auto.commit",
    "auto.commit.interval.ms",
    "enable.idempotence",
    "max.in.flight.requests.per.connection",
    "linger.ms",
    "buffer.memory",
    "max.poll.records",
    "max.poll.interval.ms",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "retries",
    "retry.backoff.ms",
    "ssl.truststore.type",
    "ssl.keystore.type",
}
"""The engine decides these: a notice tells the user that they have no effect."""


class ClientProperties(dict[str, str]):
    """Properties of a client as the user gave them. Their repr never shows a secret."""

    def __init__(self, properties: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()) -> None:
        super().__init__({str(key): str(value) for key, value in dict(properties).items()})

    def __repr__(self) -> str:
        shown = {key: HIDDEN if _SECRET.search(key) else value for key, value in sorted(self.items())}
        return f"{shown}"

    __str__ = __repr__

    def secrets(self) -> list[str]:
        """Texts that must not appear in a log or an error."""
        found = [value for key, value in self.items() if _SECRET.search(key) and value]
        jaas = [
            value for name, value in _JAAS.findall(self.get("sasl.jaas.config", "")) if name == "password" and value
        ]
        return [*found, *jaas, *(value.replace('\\"', '"') for value in jaas)]

    def masked(self, text: object) -> str:
        """The text without secrets."""
        shown = str(text)
        for secret in sorted(self.secrets(), key=len, reverse=True):
            shown = shown.replace(secret, HIDDEN)
        return shown

    def number(self, key: str, default: int, *, least: int = 1) -> int:
        """The value as a whole number. Raises ConfigurationError for another text."""
        text = self.get(key)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise ConfigurationError(
                f"Kafka's '{key}' is a whole number of at least {least}",
                found=repr(text),
                cure=f"set it to a number, for example {default}",
            )
        return value

    def choice(self, key: str, allowed: Iterable[str], default: str) -> str:
        value = self.get(key, default)
        choices = list(allowed)
        if value not in choices:
            raise ConfigurationError(
                f"Kafka's '{key}' is one of {', '.join(choices)}", found=repr(value), cure="set it to one of these"
            )
        return value

    def client(self) -> dict[str, Any]:
        """The arguments for kafka-python's client."""
        secrets.hide(self.secrets())
        arguments: dict[str, Any] = {}
        for key, value in self.items():
            name = _CLIENT.get(key)
            if name is not None:
                arguments[name] = self.number(key, 0) if name in _NUMBERS else value
        if "sasl.jaas.config" in self:
            arguments |= self._jaas(self["sasl.jaas.config"])
        if self.get("ssl.endpoint.identification.algorithm", "https").strip().lower() in ("", "none"):
            arguments["ssl_check_hostname"] = False
        for store in ("ssl.truststore.location", "ssl.keystore.location"):
            if self.get(store, "").lower().endswith((".jks", ".p12", ".pfx")):
                raise ConfigurationError(
                    "Certificates must be PEM files: key stores of Java cannot be read",
                    where=f"Kafka's '{store}'",
                    found=self[store],
                    cure="export the certificates, for example: openssl pkcs12 -in store.p12 -out certificates.pem",
                )
        return arguments

    @staticmethod
    def _jaas(text: str) -> dict[str, str]:
        found = {name: value.replace('\\"', '"') for name, value in _JAAS.findall(text)}
        if set(found) != {"username", "password"}:
            raise ConfigurationError(
                "Kafka's 'sasl.jaas.config' must name a user and a password",
                found="another form (not shown: it may hold a password)",
                cure='org.apache.kafka.common.security.plain.PlainLoginModule required username="..." password="...";',
            )
        return {"sasl_plain_username": found["username"], "sasl_plain_password": found["password"]}

    def check(self, where: str, used: Iterable[str]) -> None:
        """Report properties without an effect: those that the engine decides, and unknown ones. Kafka's own client ignores unknown
        properties too: one set of properties often serves consumers and producers."""
        known = {*_CLIENT, *_OWN, *used}
        silent = sorted(set(self) & _NO_EFFECT)
        if silent:
            log.warning(
                "%s: these properties have no effect, because the engine decides them: %s", where, ", ".join(silent)
            )
        unknown = sorted(set(self) - known - _NO_EFFECT)
        if unknown:
            named = [_with_hint(name, known) for name in unknown]
            log.warning(
                "%s: unknown properties are ignored: %s. docs/kafka.md lists the known ones", where, ", ".join(named)
            )


def _with_hint(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
    return f"{name} (is it {close[0]}?)" if close else name
