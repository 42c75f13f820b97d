"""Pictures as files and as pixels, through every door."""

from __future__ import annotations

import asyncio
import io
import struct
import zlib
from typing import Any

import cv2
import numpy as np
import PIL.Image
import pytest
import tritonclient.grpc
import tritonclient.http
from conftest import Server, Start
from picture_models import SIDE
from shiva_client import AsyncClient, Client, RemoteError


@pytest.fixture(scope="module", autouse=True)
def sdk(server: Server, start: Start) -> None:
    start("picture_models.py")
    server.wait_ready("seen/1", "corner/1", "size/1")


def scene(height: int = SIDE, width: int = SIDE, phase: int = 0) -> np.ndarray:
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x * 3 % 256, y * 3 % 256, (x + y + phase) % 256], axis=2).astype(np.uint8)


def encoded(kind: str, pixels: np.ndarray) -> np.ndarray:
    done, file = cv2.imencode(kind, pixels[:, :, ::-1])
    assert done
    return file.ravel()


def decoded(file: np.ndarray) -> np.ndarray:
    return cv2.imdecode(file, cv2.IMREAD_COLOR)[:, :, ::-1]


def huge() -> np.ndarray:
    """A PNG of 100 bytes that claims 30,000 x 30,000 pixels."""

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = part(b"IHDR", struct.pack(">IIBBBBB", 30000, 30000, 8, 2, 0, 0, 0))
    file = b"\x89PNG\r\n\x1a\n" + head + part(b"IDAT", bytes(43)) + part(b"IEND", b"")
    assert len(file) == 100
    return np.frombuffer(file, np.uint8)


def saved(kind: str, mode: str = "RGB", **options: Any) -> np.ndarray:
    """A file that Pillow writes."""
    out = io.BytesIO()
    PIL.Image.fromarray(scene()).convert(mode).save(out, kind, **options)
    return np.frombuffer(out.getvalue(), np.uint8)


def turned(orientation: int) -> np.ndarray:
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    return saved("JPEG", exif=exif)


@pytest.mark.parametrize("kind", [".jpg", ".png"])
def test_a_file_is_what_a_client_would_decode(server: Server, kind: str) -> None:
    with Client(server.tcp) as client:
        file = encoded(kind, scene())
        of_file = client.infer("seen", {"image": file})["pixels"]
        of_pixels = client.infer("seen", {"image": np.ascontiguousarray(decoded(file))})["pixels"]
        assert of_file.shape == (SIDE, SIDE, 3)
        assert np.array_equal(of_file, of_pixels)
        assert client.infer("size", {"image": encoded(kind, scene(20, 30))})["shape"].tolist() == [20, 30, 3]
        for picture in (encoded(kind, scene(120, 90)), scene(120, 90)[:, :, :1].transpose(2, 0, 1)):
            answer = client.infer("corner", {"image": np.ascontiguousarray(picture)})
            assert answer["point"].tolist() == [90, 120]


@pytest.mark.parametrize("door", [tritonclient.http, tritonclient.grpc])
def test_tritonclient(server: Server, door: Any) -> None:
    address = server.rest if door is tritonclient.http else server.grpc
    with door.InferenceServerClient(address) as client:
        files = [encoded(".jpg", scene(phase=i)) for i in range(5)]
        one = door.InferInput("image", [len(files[0])], "UINT8")
        one.set_data_from_numpy(files[0])
        assert np.array_equal(client.infer("seen", [one]).as_numpy("pixels"), decoded(files[0]))
        many = door.InferInput("image", [5], "BYTES")
        many.set_data_from_numpy(np.array([file.tobytes() for file in files], object))
        got = client.infer("seen", [many]).as_numpy("pixels")
        assert np.array_equal(got, np.stack([decoded(file) for file in files]))
        metadata = client.get_model_metadata("seen", **({} if door is tritonclient.http else {"as_json": True}))
        (image,) = metadata["inputs"]
        assert (image["datatype"], [int(n) for n in image["shape"]]) == ("UINT8", [-1, SIDE, SIDE, 3])


def test_a_turned_picture_is_as_it_is_shown(server: Server) -> None:
    with Client(server.tcp) as client:
        upright = client.infer("seen", {"image": turned(1)})["pixels"]
        assert np.array_equal(client.infer("seen", {"image": turned(6)})["pixels"], np.rot90(upright, -1))


def test_one_corrupt_of_64_fails_alone(server: Server) -> None:
    files = [encoded(".jpg", scene(phase=i)) for i in range(64)]
    files[17] = files[17][:-300]  # its header is whole, so the server lets it pass

    async def ask() -> list[Any]:
        async with AsyncClient(server.tcp) as client:
            asked = (client.infer("seen", {"image": file}) for file in files)
            return await asyncio.gather(*asked, return_exceptions=True)

    answers = asyncio.run(ask())
    fault = answers.pop(17)
    assert isinstance(fault, RemoteError)
    assert fault.type == "InvalidInput"
    assert "JPEG: it ends after" in str(fault)
    for answer, file in zip(answers, files[:17] + files[18:], strict=True):
        assert np.array_equal(answer["pixels"], decoded(file))


@pytest.mark.parametrize(
    ("file", "kind", "text"),
    [
        (huge(), "TooLarge", "PNG of 30000 x 30000 is 900000000 pixels, limits.image_pixels is 67108864"),
        (encoded(".png", scene().astype(np.uint16)), "InvalidInput", "16 bits"),
        (np.frombuffer(b"GIF89a", np.uint8), "InvalidInput", "got a GIF"),
        (
            saved("PNG", save_all=True, append_images=[PIL.Image.new("RGB", (SIDE, SIDE))]),
            "InvalidInput",
            "an animated PNG",
        ),
        (saved("JPEG", "CMYK"), "InvalidInput", "JPEG in CMYK"),
        (saved("JPEG")[:100], "InvalidInput", "it ends after 100 bytes"),
        (encoded(".jpg", scene(20, 30)), "InvalidInput", "JPEG of 30 x 20 pixels, expected 64 x 64"),
    ],
)
def test_what_no_container_should_see(server: Server, file: np.ndarray, kind: str, text: str) -> None:
    with Client(server.tcp) as client:
        with pytest.raises(RemoteError, match=text) as raised:
            client.infer("seen", {"image": file})
        assert raised.value.type == kind
        assert client.infer("seen", {"image": encoded(".png", scene())})["pixels"].shape == (SIDE, SIDE, 3)
