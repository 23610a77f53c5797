"""TLS, SASL and ACLs on a real broker; and a planted password that appears nowhere."""

from __future__ import annotations

import logging
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.kafka.kafka_tools import Broker, Topics
from tests.kafka.test_kafka_outages import make_sink
from tests.kafka.test_kafka_programs import source, values
from tidegate.base.errors import AccessError, CommitError, ServiceError
from tidegate.common import Configuration, WatermarkStrategy
from tidegate.connectors.kafka.cluster import Cluster
from tidegate.connectors.kafka.dev_broker import free_port
from tidegate.connectors.kafka.transactions import init_producer
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.testing.sink_run import SinkRun

PASSWORD = "hunter2-right"
SECRET = "hunter2-planted"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_MODULES = "org.apache.kafka.common.security"


class Secured(NamedTuple):
    """A broker with a listener for each kind of client. ``ca``: the file with the certificate that has signed the broker's."""

    broker: Broker
    sasl: str
    ssl: str
    sasl_ssl: str
    ca: str

    def properties(self, mechanism: str, user: str = "app", password: str = PASSWORD) -> dict[str, str]:
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
            "request.timeout.ms": "8000",
        }

    def over_tls(self) -> dict[str, str]:
        return {"security.protocol": "SSL", "ssl.ca.location": self.ca, "request.timeout.ms": "8000"}


def certificates(directory: Path) -> tuple[str, str]:
    """The broker's key with its certificate, and that of who has signed it: made by openssl."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    new = ["-newkey", "rsa:2048", "-nodes", "-days", "2"]
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=tidegate tests")
    openssl("req", *new[:3], "-keyout", "broker.key", "-out", "broker.csr", "-subj", "/CN=localhost")
    (directory / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names"]
    openssl("x509", "-req", "-in", "broker.csr", *signed, "-out", "broker.pem")
    store = directory / "store.pem"
    store.write_text((directory / "broker.key").read_text() + (directory / "broker.pem").read_text())
    return str(store), str(directory / "ca.pem")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    store, ca = certificates(tmp_path_factory.mktemp("certificates"))
    ports = {name: free_port() for name in ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL")}
    addresses = [f"{name}://127.0.0.1:{port}" for name, port in ports.items()]
    users = {"app": PASSWORD, "poor": PASSWORD}
    known = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    properties = {
        "listeners": ",".join([*addresses, "CONTROLLER://127.0.0.1:{controller}"]),
        "advertised.listeners": ",".join(addresses),
        "listener.security.protocol.map": ",".join(f"{n}:{n}" for n in ports) + ",CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": store,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:app",
    }
    for listener in ("sasl_plaintext", "sasl_ssl"):
        name = f"listener.name.{listener}"
        properties[f"{name}.plain.sasl.jaas.config"] = f"{_MODULES}.plain.PlainLoginModule required {known};"
        for mechanism in MECHANISMS[1:]:
            scram = f"{_MODULES}.scram.ScramLoginModule required;"
            properties[f"{name}.{mechanism.lower()}.sasl.jaas.config"] = scram
    scrams = [
        option
        for mechanism in MECHANISMS[1:]
        for user, password in users.items()
        for option in ("--add-scram", f"{mechanism}=[name={user},password={password}]")
    ]
    with Broker(tmp_path_factory.mktemp("secured"), ports["PLAINTEXT"], properties, *scrams) as broker:
        sasl, ssl, both = (f"127.0.0.1:{ports[name]}" for name in ("SASL_PLAINTEXT", "SSL", "SASL_SSL"))
        yield Secured(broker, sasl, ssl, both, ca)


@pytest.fixture(scope="module")
def inside(secured: Secured) -> Topics:
    return Topics(secured.broker.bootstrap_servers)


def there_and_back(servers: str, properties: dict[str, str], inside: Topics, directory: Path) -> None:
    topic = inside.new(2)
    given: dict[str, Any] = {key.replace(".", "_"): value for key, value in properties.items()}
    SinkRun(make_sink(servers, topic, **given), str(directory), str, 2).step(30, checkpoint=True)
    expected = sorted(map(str, range(30)))
    assert sorted(inside.read(topic)) == expected
    builder = source(servers, topic)
    for key, value in properties.items():
        builder.set_property(key, value)
    assert values(builder.build()) == expected


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("tls", [False, True])
def test_exactly_once_with_user_and_password(
    mechanism: str, tls: bool, secured: Secured, inside: Topics, tmp_path: Path
) -> None:
    properties = secured.properties(mechanism)
    if tls:
        properties |= {"security.protocol": "SASL_SSL", "ssl.ca.location": secured.ca}
    there_and_back(secured.sasl_ssl if tls else secured.sasl, properties, inside, tmp_path)


def test_exactly_once_over_tls(secured: Secured, inside: Topics, tmp_path: Path) -> None:
    there_and_back(secured.ssl, secured.over_tls(), inside, tmp_path)


def test_untrusted_certificate_fails_with_its_own_message(secured: Secured) -> None:
    cluster = Cluster.of({"bootstrap.servers": secured.ssl, "security.protocol": "SSL", "request.timeout.ms": "3000"})
    with pytest.raises(AccessError, match="certificate of the Kafka broker is not trusted") as caught:
        cluster.metadata([])
    assert "ssl.ca.location" in str(caught.value) and secured.ssl in str(caught.value)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_wrong_password_fails_with_its_own_message(
    mechanism: str, secured: Secured, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster.of({"bootstrap.servers": secured.sasl, **secured.properties(mechanism, password=SECRET)})
    with caplog.at_level(logging.DEBUG), pytest.raises(AccessError, match="refuses user and password") as caught:
        cluster.metadata([])
    assert f"user 'app' with {mechanism}" in str(caught.value)
    shown = capfd.readouterr()
    assert SECRET not in f"{caught.value} {caught.value.__cause__} {caplog.text} {shown.out} {shown.err}"


# -- rights --------------------------------------------------------------------------------------------------------------


def allow(inside: Topics, kind: str, name: str, *operations: str) -> None:
    import confluent_kafka.admin

    kafka: Any = confluent_kafka.admin
    admin = kafka.AdminClient({"bootstrap.servers": inside.servers})
    place = (kafka.ResourceType[kind], name, kafka.ResourcePatternType.PREFIXED)
    allowed = kafka.AclPermissionType.ALLOW
    bindings = [
        kafka.AclBinding(*place, "User:poor", "*", kafka.AclOperation[operation], allowed) for operation in operations
    ]
    for future in admin.create_acls(bindings).values():
        future.result(30)


def test_rights_that_are_missing_are_named_one_after_the_other(
    secured: Secured, inside: Topics, tmp_path: Path
) -> None:
    """From none to those that the page lists: then it works, and no other is needed."""
    topic = inside.new(1)
    given: dict[str, Any] = {
        key.replace(".", "_"): value for key, value in secured.properties("SCRAM-SHA-256", "poor").items()
    }
    sink = make_sink(secured.sasl, topic, **given)
    cluster = Cluster.of(sink.properties)
    rule = "user lacks a right"
    with pytest.raises(AccessError, match=rule) as topics:
        sink.validate()
    assert "user poor: TopicAuthorizationFailedError" in str(topics.value) and "docs/kafka.md" in str(topics.value)
    allow(inside, "TOPIC", topic, "DESCRIBE", "READ")
    sink.validate()
    with pytest.raises(AccessError, match=rule) as ids:
        init_producer(cluster, f"{topic}-x", 60_000)
    assert "TransactionalIdAuthorizationFailedError" in str(ids.value) and f"{topic}-x" in str(ids.value)
    allow(inside, "TRANSACTIONAL_ID", topic, "DESCRIBE", "WRITE")
    run = SinkRun(sink, str(tmp_path), str, 1)
    with pytest.raises(AccessError, match=rule) as writing:
        run.step(3, checkpoint=True)
    assert "TopicAuthorizationFailedError" in str(writing.value)
    allow(inside, "TOPIC", topic, "WRITE")
    SinkRun(sink, str(tmp_path / "again"), str, 1).step(3, checkpoint=True)
    assert Counter(inside.read(topic)) == Counter("012")


def test_a_right_that_is_taken_away_fails_the_commit_at_once(
    secured: Secured, inside: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To try again for ``tidegate.commit.max-attempts`` would not help."""
    topic = inside.new(1)
    run = SinkRun(make_sink(secured.broker.bootstrap_servers, topic), str(tmp_path), str, 1)
    run.accept(run.attempt(3, checkpoint=True), 3)
    run.complete()
    committer: Any = run.committer
    properties = {"bootstrap.servers": secured.sasl, **secured.properties("PLAIN", "poor")}
    committer._connect = lambda: Cluster.of(properties)
    with pytest.raises(CommitError, match="user lacks a right"):
        run.commit()
    assert inside.read(topic) == []


def test_a_prefix_that_may_not_be_held_is_a_warning(
    secured: Secured, inside: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    from tidegate.connectors.kafka.prefix_hold import PrefixHold

    cluster = Cluster.of({"bootstrap.servers": secured.sasl, **secured.properties("PLAIN", "poor")})
    with caplog.at_level(logging.WARNING):
        PrefixHold.take(cluster, inside.new(1), "mark", "job").release()
    assert "whether another job uses prefix" in caplog.text


# -- the secret ----------------------------------------------------------------------------------------------------------


def test_a_password_is_in_no_log_file_page_or_error(
    secured: Secured,
    inside: Topics,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A whole job, which fails in the end: everything it has written, shown and said."""
    start, end = inside.new(2), inside.new(2)
    inside.write(start, [*range(60), "bad"])
    properties = secured.properties("SCRAM-SHA-512")
    jaas = f'{_MODULES}.scram.ScramLoginModule required username="app" password="{PASSWORD}";'
    properties = {k: v for k, v in properties.items() if not k.startswith("sasl.p")} | {"sasl.jaas.config": jaas}
    builder = source(secured.sasl, start)
    for key, value in properties.items():
        builder.set_property(key, value)
    given: dict[str, Any] = {key.replace(".", "_"): value for key, value in properties.items()}
    settings = {"execution.checkpointing.dir": str(tmp_path), "execution.checkpointing.interval": "10 ms"}
    settings |= {"execution.target": "simulated", "tidegate.round.max-records": "10", "restart-strategy.type": "none"}
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(settings))
    numbers = env.from_source(builder.build(), WatermarkStrategy.no_watermarks(), "in")
    numbers.map(lambda text: str(int(text))).sink_to(make_sink(secured.sasl, end, **given))
    plan = env.get_execution_plan()
    with caplog.at_level(logging.DEBUG):
        client = env.execute_async()
        with pytest.raises(Exception, match="failed") as caught:
            client.get_job_execution_result().result()
    told: list[str] = []
    error: BaseException | None = caught.value
    while error is not None:
        told.append(f"{error!r} {error}")
        error = error.__cause__ or error.__context__
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "_metadata" for path in files)
    content = b"".join(path.read_bytes() for path in files)
    shown = capfd.readouterr()
    job: Any = client._job
    view = repr(job.view())
    everything = f"{plan} {told} {caplog.text} {shown.out} {shown.err} {view}"
    assert "invalid literal" in everything
    assert PASSWORD not in everything and PASSWORD.encode() not in content


def test_service_error_contains_no_password(secured: Secured) -> None:
    properties = {**secured.properties("PLAIN", password=SECRET), "request.timeout.ms": "1000"}
    cluster = Cluster.of({"bootstrap.servers": f"127.0.0.1:{free_port()}", **properties})
    with pytest.raises(ServiceError, match="No Kafka broker answers") as caught:
        cluster.metadata([])
    assert SECRET not in str(caught.value)
