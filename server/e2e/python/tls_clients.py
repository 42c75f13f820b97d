"""Clients with their own TLS libraries: each gets the same bytes as a plain client.

Called with the directory of the certificates; the addresses are in the environment.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from shiva_client import TLS, Client

directory = Path(sys.argv[1])
ca, cert, key = (str(directory / name) for name in ("ca.pem", "client.pem", "client.key"))

pixels = bytes.fromhex(
    "00000010af0000000000007080000000000010cf60202000000070ef008f8000"
    "0050ff9f00ff60000040efffcfff100000000030ef9f000000000020ff400000"
)


def address(door: str, secure: bool) -> tuple[str, int]:
    host, port = os.environ[("SHIVA_TLS_" if secure else "SHIVA_") + door].rsplit(":", 1)
    return host, int(port)


# Shiva: the message of the minimal client, and the whole answer as bytes.
route, metadata = b"digits", b"{}"
crc = (6 + 66 + 11 + 1 + len(metadata) + 1 + len(route)) % 256
header = struct.pack(">4BiBBBB", 6, 66, 11, 1, len(metadata), 1, len(route), crc, 2 * crc % 256)
question = header + struct.pack(">BBii", 2, 3, 8, 8) + pixels + metadata + route


def whole(read: Callable[[int], bytes]) -> bytes:
    """One answer: scores, float32 [10], and label, int64 []."""
    answer = b""
    while len(answer) < 12 or len(answer) < 68 + struct.unpack(">i", answer[4:8])[0] + answer[9]:
        piece = read(65536)
        assert piece, answer
        answer += piece
    return answer


def told(answer: bytes) -> bytes:
    """An answer without its metadata, which contains its time."""
    size = struct.unpack(">i", answer[4:8])[0]
    assert answer[8] == 2, answer
    return answer[:4] + answer[8:10] + answer[12:68] + answer[68 + size :]


with socket.create_connection(address("TCP", False)) as plain:
    plain.sendall(question)
    expected = told(whole(plain.recv))

context = ssl.create_default_context(cafile=ca)
context.load_cert_chain(cert, key)
with context.wrap_socket(socket.create_connection(address("TCP", True)), server_hostname="localhost") as secure:
    assert secure.version() == "TLSv1.3"
    for piece in (question[:5], question[5:]):
        secure.sendall(piece)
    assert told(whole(secure.recv)) == expected

# Our client, and our container behind the server: the input, and the answer of a plain client.
numbers = np.frombuffer(np.random.default_rng(1).bytes(1_200_000), dtype="<f4").reshape(3, -1)
trust = TLS(ca=ca, certificate=cert, key=key, server_name="localhost")
with (
    Client("tls://" + ":".join(map(str, address("TCP", True))), tls=trust) as client,
    Client(*address("TCP", False)) as plain_client,
):
    assert client.infer("encrypted", numbers, timeout=60).tensors[0].tobytes() == numbers.tobytes()
    scores = [
        c.infer("digits", np.frombuffer(pixels, dtype=np.uint8).reshape(1, 8, 8), timeout=60)["scores"].tobytes()
        for c in (client, plain_client)
    ]
    assert scores[0] == scores[1]

# A client without a certificate gets an error, with its first answer at the latest.
try:
    with ssl.create_default_context(cafile=ca).wrap_socket(
        socket.create_connection(address("TCP", True)), server_hostname="localhost"
    ) as bare:
        bare.sendall(question)
        bare.recv(1)
    raise SystemExit("a client without a certificate is answered")
except ssl.SSLError as e:
    assert "CERTIFICATE_REQUIRED" in str(e).upper(), e



def by_openssl(door: str, said: bytes, hear: Callable[[Callable[[int], bytes]], bytes]) -> bytes:
    """The bytes that a door answers to some bytes."""
    host, port = address(door, True)
    command = ["openssl", "s_client", "-quiet", "-verify_return_error"]
    command += ["-connect", f"{host}:{port}", "-servername", "localhost"]
    with subprocess.Popen(
        [*command, "-CAfile", ca, "-cert", cert, "-key", key], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as openssl:
        assert openssl.stdin is not None
        assert openssl.stdout is not None
        openssl.stdin.write(said)
        openssl.stdin.flush()
        heard = hear(openssl.stdout.read1)
        openssl.terminate()
    return heard


assert told(by_openssl("TCP", question, whole)) == expected

# The containers' port: ZMTP's greeting of a DEALER, and those of the server.
greeting = bytes([255, 0, 0, 0, 0, 0, 0, 0, 0, 127, 3, 0]) + b"NULL" + bytes(48)
said = greeting + b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"


def greeted(read: Callable[[int], bytes]) -> bytes:
    """The server's greeting, and its command READY, whose length is in a byte."""
    heard = b""
    while len(heard) < 66 or len(heard) < 66 + heard[65]:
        piece = read(4096)
        assert piece, heard
        heard += piece
    return heard[: 66 + heard[65]]


def properties(heard: bytes) -> dict[bytes, bytes]:
    """The properties of READY, in any order; a greeting is returned unchanged."""
    said, rest = {b"": heard[:64]}, heard[66 : 66 + heard[65]].removeprefix(b"\x05READY")
    while rest:
        name, rest = rest[1 : 1 + rest[0]], rest[1 + rest[0] :]
        size = struct.unpack(">I", rest[:4])[0]
        said[name], rest = rest[4 : 4 + size], rest[4 + size :]
    return said


with socket.create_connection(address("CONTAINERS", False)) as plain:
    plain.sendall(said)
    assert properties(by_openssl("CONTAINERS", said, greeted)) == properties(greeted(plain.recv))

# HTTP by curl: the same JSON except for ids.
body = json.dumps({"inputs": [{"name": "image", "datatype": "UINT8", "shape": [1, 8, 8], "data": list(pixels)}]})


def curl(secure: bool) -> dict[str, object]:
    host, port = address("REST", secure)
    url = f"{'https' if secure else 'http'}://{host}:{port}/v2/models/digits/infer"
    own = ["--cacert", ca, "--cert", cert, "--key", key] if secure else []
    out = subprocess.run(
        ["curl", "-sS", "--fail-with-body", *own, "-d", body, url], capture_output=True, timeout=30, check=False
    )
    assert out.returncode == 0, out
    answer = json.loads(out.stdout)
    assert isinstance(answer, dict)
    return answer


plain_answer, secure_answer = curl(False), curl(True)
assert plain_answer["outputs"] == secure_answer["outputs"], (plain_answer, secure_answer)

# Triton's stock clients.
image = np.frombuffer(pixels, dtype=np.uint8).reshape(1, 8, 8)


def outputs(module: Any, client: Any) -> list[bytes]:
    value = module.InferInput("image", [1, 8, 8], "UINT8")
    value.set_data_from_numpy(image)
    result = client.infer("digits", [value])
    return [result.as_numpy(name).tobytes() for name in ("scores", "label")]


def at(door: str, secure: bool) -> str:
    host, port = address(door, secure)
    return f"{'localhost' if secure else host}:{port}"


https = triton_http.InferenceServerClient(
    at("REST", True), ssl=True, ssl_options={"ca_certs": ca, "certfile": cert, "keyfile": key}
)
assert outputs(triton_http, https) == outputs(triton_http, triton_http.InferenceServerClient(at("REST", False)))
grpcs = triton_grpc.InferenceServerClient(
    at("GRPC", True), ssl=True, root_certificates=ca, private_key=key, certificate_chain=cert
)
assert outputs(triton_grpc, grpcs) == outputs(triton_grpc, triton_grpc.InferenceServerClient(at("GRPC", False)))
