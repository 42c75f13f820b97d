from __future__ import annotations

import asyncio
import os
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
import shiva_client
from conftest import Server, echo
from shiva_client import AsyncClient, Client, Message
from shiva_client.address import Address


def named(message: Message) -> Message:
    """Answer like shivad: outputs by name."""
    names = message.metadata.get("__tensors__", [f"y{i}" for i in range(len(message.tensors))])
    return Message(message.namespace, {"__tensors__": names, "model_name": message.namespace}, message.tensors)


def fails(message: Message) -> Message:
    kind = message.namespace
    return Message("!error", {"type": kind, "message": "because", "code": 429, "retryable": True, "id": 7})


def test_outputs_by_name_and_position(server: Server) -> None:
    server.handler = named
    with Client(server.address) as client:
        answer = client.infer("m", np.arange(6, dtype=np.float32).reshape(2, 3), np.array([True]))
        assert list(answer) == ["y0", "y1"]
        assert answer["y0"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert answer.tensors[1].dtype == np.bool_
        assert answer.metadata["model_name"] == "m"
        with pytest.raises(KeyError, match="no output 'y2'; there are y0, y1"):
            answer["y2"]


def test_inputs_by_name_with_texts(server: Server) -> None:
    with Client(server.address) as client:
        answer = client.infer("m", {"x": [1, 2], "text": ["a", b"\xff"], "one": "é"})
    assert server.seen[0].metadata["__tensors__"] == ["x"]
    assert answer["x"].tolist() == [1, 2]
    assert answer["text"].tolist() == ["a", b"\xff"]
    assert answer["one"].item() == "é"


def test_superseded_says_by_what(server: Server) -> None:
    server.handler = lambda m: Message("!error", {"type": "Superseded", "message": "", "code": 409, "by": 7})
    with Client(server.address) as client:
        with pytest.raises(shiva_client.Superseded) as e:
            client.infer("m", stream="cam", seq=6)
    assert (e.value.by, e.value.code) == (7, 409)


def test_metadata(server: Server) -> None:
    with Client(server.address) as client:
        client.infer("m/2", [1.5], timeout=2, priority=1, id="q", parameters={"k": np.int64(3)}, user="ann")
    assert server.seen[0].namespace == "m/2"
    sent = server.seen[0].metadata
    assert 1000 < sent.pop("timeout_ms") <= 2000  # less the time to connect
    assert sent == {"user": "ann", "priority": 1, "id": "q", "parameters": {"k": 3}}


@pytest.mark.parametrize("kind", [c.__name__ for c in shiva_client.RemoteError.__subclasses__()] + ["ValueError"])
def test_errors_are_typed(server: Server, kind: str) -> None:
    server.handler = fails
    with Client(server.address) as client:
        with pytest.raises(shiva_client.RemoteError, match=f"{kind}: because") as e:
            client.infer(kind)
    assert type(e.value) is getattr(shiva_client, kind, shiva_client.RemoteError)
    assert (e.value.code, e.value.retryable, e.value.id) == (429, True, 7)


def test_the_newest_answer(server: Server) -> None:
    server.handler = lambda m: Message(m.namespace, {"seq": 7})
    asked = [
        {"stream": "belt", "max_age_ms": 500},
        {"user": "ann", "after": 7, "wait": True, "version": 2},
        {"after": 0},
    ]

    async def of_asyncio() -> None:
        async with AsyncClient(server.address) as client:
            seen = await client.latest("cells", "belt", max_age=0.5)
            await client.latest("cells", user="ann", after=seen, wait=True, version=2)
            await client.latest("cells", after=0)

    with Client(server.address) as client:
        seen = client.latest("cells", "belt", max_age=0.5)
        client.latest("cells", user="ann", after=seen, wait=True, version=2)
        client.latest("cells", after=0)
        asyncio.run(of_asyncio())
        assert [(m.namespace, m.metadata) for m in server.seen] == [("cells/latest", one) for one in asked * 2]
        server.handler = named
        with pytest.raises(ValueError, match="without a seq"):
            client.latest("cells", after=client.infer("m"))


def test_errors_say_their_type_once() -> None:
    for message, want in [("not found: no model", "not found: no model"), ("no model", "NotFound: no model")]:
        assert str(shiva_client.NotFound({"type": "NotFound", "message": message})) == want


def test_requests_are_pipelined_by_threads(server: Server) -> None:
    with Client(server.address, in_flight=16) as client:
        wrong = []

        def ask(thread: int) -> None:
            for i in range(200):
                if client.infer("m", np.array([thread, i])).tensors[0].tolist() != [thread, i]:
                    wrong.append((thread, i))

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert not wrong
    assert (server.connections, len(server.seen)) == (1, 1600)


def test_many_in_flight(server: Server) -> None:
    with Client(server.address) as client:
        futures = [client.submit("m", np.full((64, 1024), i)) for i in range(300)]
        assert [int(f.result().tensors[0][0, 0]) for f in futures] == list(range(300))


def test_a_lost_connection_fails_what_was_sent_and_is_made_anew(server: Server) -> None:
    server.handler = lambda m: None if m.namespace == "end" else echo(m)
    with Client(server.address) as client:
        client.infer("m", [1])
        with pytest.raises(shiva_client.ConnectionLost, match="the server closed the connection") as e:
            client.infer("end")
        assert e.value.may_have_run
        assert client.infer("m", [2]).tensors[0].tolist() == [2]
    assert server.connections == 2


def test_nobody_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        port = taken.getsockname()[1]
        with Client("127.0.0.1", port) as client:
            with pytest.raises(shiva_client.Unreachable, match=rf"127\.0\.0\.1:{port}.*did not run") as e:
                client.infer("m")
    assert not e.value.may_have_run


def test_no_answer_by_the_deadline(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shiva_client.connection.GRACE", 0)
    go = threading.Event()

    def slow(message: Message) -> Message:
        if message.namespace == "slow":
            go.wait(10)
        return echo(message)

    server.handler = slow
    with Client(server.address) as client:
        with pytest.raises(shiva_client.TimedOut, match=r"within 0\.05 s"):
            client.infer("slow", [1], timeout=0.05)
        go.set()
        assert client.infer("m", [2]).tensors[0].tolist() == [2]  # not the late answer


@pytest.mark.parametrize("timeout", [1e30, 10**30])
def test_a_deadline_later_than_a_thread_can_wait(server: Server, timeout: float) -> None:
    with Client(server.address) as client, Client(server.address, repeatable=True) as again:
        for one in (client, again):
            assert one.infer("m", [2], timeout=timeout).tensors[0].tolist() == [2]
        with client.stream("m", "lane", timeout=timeout) as stream:
            stream.push([3])
            assert (result := stream.take(timeout=timeout))
            assert result.answer.tensors[0].tolist() == [3]

    async def async_client() -> None:
        async with AsyncClient(server.address) as client:
            assert (await client.infer("m", [2], timeout=timeout)).tensors[0].tolist() == [2]
            async with client.stream("m", "lane", timeout=timeout) as stream:
                await stream.push([3])
                assert await stream.take(timeout=timeout)

    asyncio.run(async_client())


def test_closing_fails_what_is_in_flight(server: Server) -> None:
    server.handler = lambda m: threading.Event().wait(10) and None
    client = Client(server.address)
    future = client.submit("m")
    client.close()
    with pytest.raises(shiva_client.ClientClosed):
        future.result(5)
    with pytest.raises(shiva_client.ClientClosed, match="did not run"):
        client.infer("m")


def test_nonsense_ends_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(1000)
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\n")
                sock.recv(1000)

        threading.Thread(target=serve, daemon=True).start()
        port = listener.getsockname()[1]
        with Client("127.0.0.1", port) as client:
            with pytest.raises(shiva_client.ConnectionLost, match="expected the header"):
                client.infer("m")


def test_wrong_arguments(server: Server) -> None:
    with Client(server.address) as client:
        with pytest.raises(TypeError, match="needs the name of its input"):
            client.infer("m", "text")
        with pytest.raises(ValueError, match="expected a positive number"):
            client.infer("m", [1], timeout=0)
        with pytest.raises(shiva_client.ProtocolError, match="dtype complex256"):
            client.infer("m", np.zeros(1, np.clongdouble))
        with pytest.raises(shiva_client.ProtocolError, match="namespace has 300 bytes"):
            client.infer("m" * 300)
        for timeout in (-1, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="expected a positive number"):
                client.infer("m", [1], timeout=timeout)
        with pytest.raises(TypeError, match="object cannot be sent as JSON"):
            client.infer("m", [1], user=object())
    assert not server.seen


ADDRESSES = {
    ("h", None): Address("h", 6174),
    ("h:1", None): Address("h", 1),
    ("h", 2): Address("h", 2),
    ("::1", None): Address("::1", 6174),
    ("[::1]:3", None): Address("::1", 3),
    ("unix:/run/a b:1", None): Address("", 0, "/run/a b:1"),
    ("unix:///run/a", None): Address("", 0, "/run/a"),
    ("unix:a", None): Address("", 0, "a"),
    ("unix:@a", None): Address("", 0, "@a"),
}


@pytest.mark.parametrize(("given", "want"), ADDRESSES.items())
def test_address(given: tuple[str, int | None], want: Address) -> None:
    address = Address.parse(*given)
    assert address == want
    assert Address.parse(str(address)) == want


WRONG = [("h:x", None), (":7", None), ("", None), ("h:0", None), ("h", 65536), ("h", 0)]
WRONG += [("unix:", None), ("unix:@", None), ("unix:/a", 6174), ("unix:/a\0b", None), ("unix:/" + 107 * "ü", None)]


@pytest.mark.parametrize(("host", "port"), WRONG)
def test_wrong_address(host: str, port: int | None) -> None:
    with pytest.raises(ValueError, match="expected"):
        Client(host, port)
    with pytest.raises(ValueError, match="expected"):
        AsyncClient(host, port)


def test_an_abstract_socket() -> None:
    name = f"@shiva-client-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + name[1:])
        listener.listen()

        async def run() -> None:
            async with AsyncClient(f"unix:{name}") as client:
                asking = asyncio.create_task(client.infer("m"))
                (await asyncio.to_thread(listener.accept))[0].close()
                with pytest.raises(shiva_client.ConnectionLost, match=name):
                    await asking

        asyncio.run(run())
        with Client(f"unix:{name}") as client:
            future = client.submit("m")
            listener.accept()[0].close()
            with pytest.raises(shiva_client.ConnectionLost, match=name):
                future.result(20)


def test_no_unix_socket(tmp_path: Path) -> None:
    """The error has the reason, and what was expected at the address."""
    file, dead = tmp_path / "file", tmp_path / "dead"
    file.write_text("")
    socket.create_server(str(dead), family=socket.AF_UNIX).close()
    for path in (tmp_path / "missing", file, dead):
        with Client(f"unix:{path}") as client:
            with pytest.raises(shiva_client.Unreachable, match=rf"unix:{path}: .*expected the path of a socket"):
                client.infer("m")

        async def run(path: Path = path) -> None:
            async with AsyncClient(f"unix:{path}") as client:
                with pytest.raises(shiva_client.Unreachable, match=rf"unix:{path}: .*expected the path of a socket"):
                    await client.infer("m")

        asyncio.run(run())


def test_asyncio(server: Server) -> None:
    server.handler = lambda m: None if m.namespace == "end" else named(m)

    async def run() -> None:
        async with AsyncClient(server.address, in_flight=16) as client:
            answers = await asyncio.gather(*(client.infer("m", np.full(50_000, i)) for i in range(200)))
            assert [int(a["y0"][-1]) for a in answers] == list(range(200))
            with pytest.raises(shiva_client.ConnectionLost):
                await client.infer("end")
            await client.infer("m")
            gone = asyncio.create_task(client.infer("m", [1]))
            await asyncio.sleep(0)
            gone.cancel()
            assert (await client.infer("m", [2]))["y0"].tolist() == [2]
        with pytest.raises(shiva_client.ClientClosed):
            await client.infer("m")

    asyncio.run(run())
    assert server.connections == 2
