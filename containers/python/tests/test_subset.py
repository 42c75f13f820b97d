"""The servers with which a container has sessions, of many."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_server import Fake, kept
from shiva_container import Tensor, model, subset
from shiva_container.container import Container
from shiva_container.subset import Subset, rendezvous, subset_size

VECTORS = json.loads((Path(__file__).parents[2] / "testdata" / "subsets.json").read_text())
Town = tuple[list[Fake], list[str], str]


def test_the_order_is_that_of_the_sdk_for_go() -> None:
    assert len(VECTORS["orders"]) > 3
    for one in VECTORS["orders"]:
        assert rendezvous(one["key"], one["servers"]) == (one["order"] or [])


@pytest.mark.parametrize("scene", VECTORS["scenes"])
def test_the_choice_is_that_of_the_sdk_for_go(scene: dict[str, Any]) -> None:
    choice = Subset(scene["key"], scene["size"])
    chosen: Any = []
    for step in scene["steps"]:
        sessions, away = step.get("sessions") or {}, step.get("away") or []
        if step.get("list") is not None:
            choice.list(step["list"], step["at"])
        elif choice.trying:
            choice.judge(chosen, lambda one: sessions.get(one, 0), step["at"])  # noqa: B023
        else:
            choice.attempt(chosen, step["at"])
        chosen = choice.chosen(lambda one: one in away)  # noqa: B023
        assert (chosen or None, choice.trying) == (step["chosen"], step["trying"])


def test_one_that_goes_during_a_try_is_not_left_again() -> None:
    choice = Subset("container", 1)
    choice.list(["a", "b", "c"], 0)
    chosen = choice.chosen(lambda _: False)
    gone = chosen[0]
    choice.attempt(chosen, 1e6)
    chosen = choice.chosen(lambda _: False)
    tried = choice.trying
    assert [gone, tried] == chosen
    stay = [one for one in "abc" if one != gone]
    choice.list(stay, 1e6)
    choice.judge(chosen, lambda one: 5 if one == gone else 1, 1e6)
    assert sorted(choice.order) == stay
    assert choice.order[-1] == tried


def test_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHIVA_SUBSET", raising=False)
    assert subset_size(None) == 16
    assert subset_size(3) == 3
    monkeypatch.setenv("SHIVA_SUBSET", "5")
    assert subset_size(None) == 5
    for bad in ("0", "many", "-1"):
        monkeypatch.setenv("SHIVA_SUBSET", bad)
        with pytest.raises(ValueError, match=r"SHIVA_SUBSET is .*expected a number of servers from 1"):
            subset_size(None)
    with pytest.raises(ValueError, match="subset is 0"):
        subset_size(0)


@pytest.fixture
def town(monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    """Servers at one port of four addresses, and a name that resolves to the listed ones."""
    monkeypatch.setattr(subset, "FIRST_TRY", 0.05)
    monkeypatch.setattr("shiva_container.container.LOOK_SECONDS", 0.05)
    monkeypatch.setattr("shiva_container.addresses.RESOLVE_SECONDS", 0.05)
    port = int(kept().rpartition(":")[2])
    hosts = [f"127.0.0.{i}" for i in range(1, 5)]
    real = socket.getaddrinfo

    def lookup(host: Any, *args: Any, **options: Any) -> Any:
        if host != "shivad.example":
            return real(host, *args, **options)
        if not hosts:
            raise socket.gaierror("the resolver is away")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in hosts]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    servers = [Fake(f"tcp://{host}:{port}", parts=True, replicas=5) for host in hosts]
    yield servers, hosts, f"shivad.example:{port}"
    for one in servers:
        one.close()


def served(servers: list[Fake]) -> list[Fake]:
    """The servers that a container has registered with, and does not leave."""
    return [one for one in servers if len(one.seen(b"hello")) > len(one.seen(b"draining"))]


def until(test: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not test():
        assert time.monotonic() < end
        time.sleep(0.01)


def twice() -> Any:
    @model(name="double", inputs=[Tensor("x", "FP32", [-1, 4])], outputs=[Tensor("y", "FP32", [-1, 4])])
    def double(x: Any) -> Any:
        return x * np.float32(2)

    return double


def test_two_of_four_are_used_and_others_tried(town: Town) -> None:
    servers, hosts, name = town
    with Container(twice(), servers=name, subset=2) as container:
        assert container.wait_ready(20)
        until(lambda: len(served(servers)) >= 2)
        hello = json.loads(served(servers)[0].seen(b"hello")[0][1][1])
        assert hello["subset"] == {"size": 2, "servers": 4}
        until(lambda: all(one.seen(b"hello") for one in servers))
        until(lambda: any(one.seen(b"draining") for one in servers))  # a tie: it is left again
        hosts.clear()  # changes nothing
        until(lambda: len(served(servers)) >= 2)
        hosts[:] = ["127.0.0.3"]
        until(lambda: servers[2] in served(servers))


def test_without_counts_nothing_is_tried(town: Town) -> None:
    servers, _, name = town
    for one in servers:
        one._welcome.pop("replicas")
    with Container(twice(), servers=name, subset=2) as container:
        assert container.wait_ready(20)
        until(lambda: len(served(servers)) == 2)
        time.sleep(0.5)
        assert sum(len(one.seen(b"hello")) for one in servers) == 2


def test_the_fullest_is_left(town: Town) -> None:
    servers, _, name = town
    with Container(twice(), servers=name, subset=2) as container:
        assert container.wait_ready(20)
        until(lambda: len(served(servers)) >= 2)
        first = served(servers)[0]
        first._welcome["replicas"] = 50
        first.send(first.seen(b"hello")[-1][0], b"heartbeat", b'{"replicas":50}')
        until(lambda: first not in served(servers))


def test_few_servers_are_all_used(town: Town) -> None:
    servers, _, name = town
    with Container(twice(), servers=name) as container:
        assert container.wait_ready(20)
        until(lambda: len(served(servers)) == 4)
        assert "subset" not in json.loads(servers[0].seen(b"hello")[0][1][1])
