from __future__ import annotations

import socket
import threading

import pytest
from shiva_container import addresses
from shiva_container.addresses import Address, Resolver, parse_servers


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("10.0.0.1:7001", "tcp://10.0.0.1:7001"),
        ("10.0.0.1", "tcp://10.0.0.1:7000"),
        ("tcp://10.0.0.1:7001", "tcp://10.0.0.1:7001"),
        ("[::1]:7001", "tcp://[::1]:7001"),
        ("[::1]", "tcp://[::1]:7000"),
        (" ipc:///run/x.sock ", "ipc:///run/x.sock"),
    ],
)
def test_literal_addresses(text: str, endpoint: str) -> None:
    address = Address.parse(text)
    assert address.literal
    assert address.resolve() == [endpoint]


@pytest.mark.parametrize("text", ["host:0", "host:65536", "host:x", ":7000", "http://host", "ipc://", "[::1", "a:1:2"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(ValueError, match=r"address|ipc"):
        Address.parse(text)


def test_where_servers_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHIVA_SERVERS", raising=False)
    assert parse_servers(None) == [Address("127.0.0.1", 7000)]
    monkeypatch.setenv("SHIVA_SERVERS", "a:1, b:2,")
    assert parse_servers(None) == [Address("a", 1), Address("b", 2)]
    assert parse_servers(["c:3", "c:3"]) == [Address("c", 3)]
    assert parse_servers("c:3,d") == [Address("c", 3), Address("d", 7000)]
    with pytest.raises(ValueError, match="no server"):
        parse_servers("")


def info(*hosts: str) -> list[tuple[object, ...]]:
    return [
        (socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 7000)) for host in hosts
    ]


def test_a_name_stands_for_its_ipv4_addresses_first(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "both": info("::1", "127.0.0.1"),
        "six": info("fe80::1"),
        "two": info("10.0.0.2", "10.0.0.1", "10.0.0.2"),
    }
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, type: answers[host])
    assert Address.parse("both").resolve() == ["tcp://127.0.0.1:7000"]
    assert Address.parse("six").resolve() == ["tcp://[fe80::1]:7000"]
    assert Address.parse("two").resolve() == ["tcp://10.0.0.1:7000", "tcp://10.0.0.2:7000"]


@pytest.mark.parametrize("host", ["a..b", 64 * "x"])
def test_a_name_that_cannot_be_asked_for(host: str) -> None:
    with pytest.raises(OSError, match="not a host name"):
        Address.parse(host).resolve()


def test_a_name_that_resolves_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, type: [])
    with pytest.raises(OSError, match="the name has no address"):
        Address.parse("shivad").resolve()


def test_the_resolver_follows_a_name_and_survives_failed_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = info("10.0.0.1"), info("10.0.0.1", "10.0.0.2")
    answers = [OSError("down"), info(), one, OSError("down"), info(), one, two]
    done = threading.Event()

    def lookup(host: str, port: int, type: int) -> object:
        if not answers:
            done.set()
            raise OSError("end")
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    found: list[dict[Address, list[str]]] = []
    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    monkeypatch.setattr(addresses, "RESOLVE_SECONDS", 0.001)
    resolver = Resolver([Address.parse("name"), Address.parse("1.2.3.4")], found.append)
    resolver._stop.wait = lambda timeout: False  # type: ignore[method-assign] # no real pauses
    resolver.start()
    assert done.wait(20)
    resolver.stop()
    literal = "tcp://1.2.3.4:7000"
    name, other = Address.parse("name"), Address.parse("1.2.3.4")
    assert found == [
        {other: [literal]},
        {name: ["tcp://10.0.0.1:7000"], other: [literal]},
        {name: ["tcp://10.0.0.1:7000", "tcp://10.0.0.2:7000"], other: [literal]},
    ]
