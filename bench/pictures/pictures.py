"""Frames per second that a slow link carries, as JPEG files and as pixels.

    pictures.py [-rate 100mbit] [-seconds 5] [-rounds 3] [-inflight 4]

Server and container are in one network namespace and the client in another, with a veth pair
between them that tc limits to the rate, in both directions. The client asks a model of 1080p
pictures about one and the same picture in both forms, in turns, with so many requests in flight. The
pixels that it sends are what the container's decoder makes of the file, so all answers must be
equal. As root, on Linux, with ip and tc (iproute2); bin/shivad must have been built.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import cv2
import numpy as np
from shiva_client import AsyncClient, Client, ShivaError
from shiva_container import Image, Tensor, model, serve

HEIGHT, WIDTH = 1080, 1920
FRAME = Image("image", height=HEIGHT, width=WIDTH)
TOP = Path(__file__).resolve().parents[2]
ADDRESS, PORT = "10.213.7.1", 6174


def scene() -> np.ndarray:
    """A picture with detail of every size, as photographs have it, and a camera's noise."""
    random = np.random.default_rng(7)
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.float32)
    for k in range(1, 9):
        field = random.normal(0, 60 / k, (HEIGHT >> (9 - k) | 1, WIDTH >> (9 - k) | 1, 3)).astype(np.float32)
        pixels += cv2.resize(field, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)
    return np.clip(128 + pixels + random.normal(0, 2, pixels.shape), 0, 255).astype(np.uint8)


def container() -> None:
    """The model: a number that changes with any pixel, and takes no time to compute."""

    @model(name="picture", inputs=[FRAME], outputs=[Tensor("sum", "UINT64", [-1])], max_batch=4)
    def picture(image: np.ndarray) -> np.ndarray:
        return image.reshape(len(image), -1).view(np.uint64).sum(axis=1)

    serve()


async def ask(frame: np.ndarray, seconds: float, inflight: int) -> dict[str, object]:
    """Send requests for a number of seconds, and return their rate."""
    answers: list[int] = []
    async with AsyncClient(f"{ADDRESS}:{PORT}") as client:
        end = time.monotonic() + seconds
        began = time.monotonic()

        async def turn() -> None:
            while time.monotonic() < end:
                answer = await client.infer("picture", {"image": frame}, timeout=60)
                answers.append(int(answer["sum"]))

        await asyncio.gather(*(turn() for _ in range(inflight)))
        took = time.monotonic() - began
    assert all(one == answers[0] for one in answers), "answers to one picture differ"
    return {"rate": len(answers) / took, "answer": answers[0]}


def run(*command: str) -> None:
    subprocess.run(command, check=True)


@contextmanager
def link(rate: str) -> Iterator[tuple[list[str], list[str]]]:
    """Two namespaces with a link between them; yields the command that runs others in each."""
    names = [f"shivad-{os.getpid()}-{side}" for side in ("server", "client")]
    inside = [["ip", "netns", "exec", name] for name in names]
    made: list[str] = []
    try:
        for name in names:
            run("ip", "netns", "add", name)
            made.append(name)
        run("ip", "-n", names[0], "link", "add", "link0", "type", "veth", "peer", "name", "link0", "netns", names[1])
        for name, address in zip(names, (ADDRESS, "10.213.7.2"), strict=True):
            run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "link0")
            for device in ("lo", "link0"):
                run("ip", "-n", name, "link", "set", device, "up")
            tbf = ["tbf", "rate", rate, "burst", "64kb", "latency", "50ms"]
            run("tc", "-n", name, "qdisc", "add", "dev", "link0", "root", *tbf)
        yield inside[0], inside[1]
    finally:
        for name in made:
            run("ip", "netns", "delete", name)


@contextmanager
def process(command: list[str]) -> Iterator[None]:
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        started.terminate()
        started.wait(60)


def wait_ready() -> None:
    """Wait, in the client's namespace, until the model answers."""
    until = time.monotonic() + 60
    with Client(f"{ADDRESS}:{PORT}") as client:
        while True:
            try:
                client.infer("picture", {"image": cv2.imencode(".jpg", scene())[1].ravel()}, timeout=10)
                return
            except ShivaError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)


def measure(args: argparse.Namespace) -> int:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        done, file = cv2.imencode(".jpg", scene(), [cv2.IMWRITE_JPEG_QUALITY, 85])
        assert done
        pixels, _ = FRAME.decode(file.tobytes())
        frames = {"jpeg": file.ravel(), "pixels": np.ascontiguousarray(pixels)}
        for form, frame in frames.items():
            np.save(folder / form, frame)
        at_server, at_client = stack.enter_context(link(args.rate))
        doors = ["--tcp", f"{ADDRESS}:{PORT}", "--containers", "127.0.0.1:7000"]
        doors += ["--rest", "", "--grpc", "", "--admin", ""]
        stack.enter_context(process([*at_server, str(TOP / "bin/shivad"), *doors, "--log-level", "error"]))
        me = [sys.executable, str(Path(__file__).resolve())]
        stack.enter_context(process([*at_server, *me, "-container"]))
        subprocess.run([*at_client, *me, "-wait"], check=True)
        rates: dict[str, list[float]] = {form: [] for form in frames}
        answers = []
        for _ in range(args.rounds):
            for form in frames:
                command = [*at_client, *me, "-seconds", str(args.seconds), "-inflight", str(args.inflight), "-ask"]
                out = subprocess.run(
                    [*command, str(folder / f"{form}.npy")], check=True, capture_output=True, text=True
                )
                got = json.loads(out.stdout)
                rates[form].append(got["rate"])
                answers.append(got["answer"])
        ratio = [a / b for a, b in zip(rates["jpeg"], rates["pixels"], strict=True)]
    print(f"| {HEIGHT}p over {args.rate} | bytes | frames/s, median (lowest to highest) |\n| --- | --- | --- |")
    for form, frame in frames.items():
        these = rates[form]
        print(f"| {form} | {frame.nbytes:,} | {statistics.median(these):.1f} ({min(these):.1f} to {max(these):.1f}) |")
    print(f"\njpeg / pixels: {statistics.median(ratio):.1f} ({min(ratio):.1f} to {max(ratio):.1f}), bar 10")
    same = all(one == answers[0] for one in answers)
    print(f"answers to file and pixels: {'equal' if same else f'DIFFERENT: {answers}'}")
    return 0 if same and statistics.median(ratio) >= 10 else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-rate", default="100mbit", help="of the link, as tc takes it")
    parser.add_argument("-seconds", type=float, default=5, help="of each turn")
    parser.add_argument("-rounds", type=int, default=3)
    parser.add_argument("-inflight", type=int, default=4)
    # Roles in which the program starts itself.
    parser.add_argument("-container", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-wait", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-ask", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.container:
        container()
    elif args.wait:
        wait_ready()
    elif args.ask:
        print(json.dumps(asyncio.run(ask(np.load(args.ask), args.seconds, args.inflight))))
    else:
        return measure(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
