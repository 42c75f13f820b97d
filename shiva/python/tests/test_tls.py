"""Servers with TLS."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import shiva_client
from conftest import Authority, Server
from shiva_client import TLS, AsyncClient, Client

LOST = "|may not have accepted the client's certificate"  # if the kernel reports the end first


def both(address: str, tls: TLS | None, large: int = 0) -> None:
    """Send a request with either client."""
    given = np.arange(large + 1, dtype=np.float32)
    with Client(address, tls=tls) as client:
        assert np.array_equal(client.infer("m", given, timeout=20).tensors[0], given)
        with client.stream("m", "camera") as stream:
            stream.push(given)
            assert stream.take(20)

    async def run() -> None:
        async with AsyncClient(address, tls=tls) as client:
            assert np.array_equal((await client.infer("m", given, timeout=20)).tensors[0], given)
            async with client.stream("m", "camera") as stream:
                await stream.push(given)
                assert await stream.take(20)

    asyncio.run(run())


def refused(address: str, tls: TLS | None, why: str) -> None:
    """Neither client gets an answer; the error has the reason and the server."""
    kinds = (shiva_client.Unreachable, shiva_client.ConnectionLost)
    with Client(address, tls=tls) as client, pytest.raises(kinds, match=f"(?i){address}: .*({why})"):
        client.infer("m", timeout=20)

    async def run() -> None:
        async with AsyncClient(address, tls=tls) as client:
            with pytest.raises(kinds, match=f"(?i){address}: .*({why})"):
                await client.infer("m", timeout=20)

    asyncio.run(run())


def test_certificates(authority: Authority, tmp_path: Path) -> None:
    ca = str(authority.ca)
    server = Server(context=authority.serving(*authority.issue("one")))
    both(server.address, TLS(ca=ca), large=5_000_000)
    both(server.address.replace("//", ""), TLS(ca=ca))
    both(server.address, TLS(insecure=True))
    refused(server.address, None, "certificate verify failed")
    refused(server.address, TLS(ca=str(Authority(tmp_path / "others").ca)), "certificate verify failed")
    server.context = authority.serving(*authority.issue("old", days=-1))
    refused(server.address, TLS(ca=ca), "certificate has expired")
    server.context = authority.serving(*authority.issue("elsewhere", "DNS:models.example"))
    refused(server.address, TLS(ca=ca), "not valid for '127.0.0.1'")
    both(server.address, TLS(ca=ca, server_name="models.example"))
    server.close()


def test_certificates_of_clients(authority: Authority, tmp_path: Path) -> None:
    ca = str(authority.ca)
    server = Server(context=authority.serving(*authority.issue("asks"), asks=True))
    refused(server.address, TLS(ca=ca), "certificate.required" + LOST)
    camera = authority.issue("camera")
    both(server.address, TLS(ca, *camera))
    together = tmp_path / "together.pem"
    together.write_text("".join(Path(file).read_text() for file in camera))
    both(server.address, TLS(ca, str(together)))
    others = Authority(tmp_path / "others").issue("camera")
    refused(server.address, TLS(ca, *others), "unknown.ca|decrypt" + LOST)
    refused(server.address, TLS(ca, *authority.issue("expired", days=-1)), "certificate.expired" + LOST)
    server.close()


def test_one_side_alone_speaks_it(authority: Authority) -> None:
    server = Server()
    refused(f"tls://{server.address}", TLS(ca=str(authority.ca)), "expected a server that speaks TLS there")
    server.close()


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_files_that_do_not_fit(authority: Authority, tmp_path: Path, client: type) -> None:
    one, other, nothing = authority.issue("a"), authority.issue("b"), tmp_path / "missing.pem"
    for tls, why in {
        TLS(ca=str(nothing)): r"expected certificates in PEM.*missing\.pem.*No such file",
        TLS(ca=one[1]): r"expected certificates in PEM.*a\.key",
        TLS(certificate=str(nothing)): r"expected a certificate and its key.*missing\.pem.*No such file",
        TLS(certificate=one[0], key=other[1]): "expected a certificate and its key.*KEY_VALUES_MISMATCH",
        TLS(certificate=one[0]): "expected a certificate and its key",
        TLS(key=one[1]): "expected the certificate of key",
    }.items():
        with pytest.raises(ValueError, match=why):
            client("tls://localhost", tls=tls)
    for address in ("localhost", "unix:/s"):
        with pytest.raises(ValueError, match="expected tls://host:port with tls"):
            client(address, tls=TLS())
