"""The package as a user's tools see it."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path

import shiva_client

PROGRAM = """
import numpy as np
from shiva_client import Answer, AsyncClient, Client, Message, NotAnswered, Overloaded, Superseded

def program(image: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> float:
    with Client("host", port) as client, client.stream("m", "cam-3", keep="latest") as stream:
        answer: Answer = client.infer("digits", {"image": image, "text": ["a"]}, timeout=1.5, user="ann")
        try:
            client.submit("digits", image).result()
        except Superseded as error:
            print(error.by, error.code, error.retryable)
        except (NotAnswered, Overloaded):
            pass
        for result in stream.watch([image]):
            print(result.seq + 1, result.age, result.answer["label"].tolist())
        if found := stream.take(0):
            return found.age
    return float(answer["label"][0])

async def asynchronous() -> Answer:
    async with AsyncClient("host") as client:
        raw: Message = await client.request(Message("m"))
        print(raw.tensors)
        async with client.stream("m", "cam-3", keep="latest") as stream:
            async for result in stream.watch([1]):
                print(result.seq + 1, result.age, result.answer["label"].tolist())
            if found := await stream.take(0):
                print(found.age)
        asked = await client.submit("m", [1], timeout=1)
        print((await asked)["label"])
        return await client.infer("m", [1])

port: int | None = None
"""


def test_a_program_of_a_user_is_typed(tmp_path: Path) -> None:
    """In strict mode, and faults in programs are found."""
    (tmp_path / "good.py").write_text(PROGRAM)
    (tmp_path / "bad.py").write_text(PROGRAM.replace('keep="latest"', 'keep="newest"').replace("error.by", "error.buy"))
    cache = str(Path(__file__).parents[1] / ".mypy_cache")  # checking numpy takes a while
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache, "good.py", "bad.py"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    assert [line.partition(":")[0] for line in found.splitlines() if ": error:" in line] == ["bad.py"] * 3, found


def test_every_error_of_the_server_has_a_class() -> None:
    """The errors are those of the Go package."""
    text = (Path(__file__).parents[2] / "errors.go").read_text()
    types = set(re.findall(r'^\t(\w+) += "\1"$', text, re.MULTILINE))
    assert len(types) >= 15
    assert types == {cls.__name__ for cls in shiva_client.RemoteError.__subclasses__()}
    assert types <= set(shiva_client.__all__)


def test_it_needs_numpy_and_the_standard_library_only() -> None:
    program = (
        "import sys, numpy; before = set(sys.modules); import shiva_client; "
        "print({m.partition('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names) - {'numpy'})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "{'shiva_client'}\n"


def test_errors_survive_pickling() -> None:
    """Pools of processes pass them on so."""
    public = [getattr(shiva_client, name) for name in shiva_client.__all__]
    kinds = [one for one in public if isinstance(one, type) and issubclass(one, Exception)]
    assert len(kinds) > 20
    for kind in kinds:
        if issubclass(kind, shiva_client.RemoteError):
            error = kind({"type": kind.__name__, "message": "why", "code": 409, "retryable": True, "id": [1], "by": 7})
        elif issubclass(kind, shiva_client.NotAnswered):
            error = kind("why", may_have_run=True)
            error.attempts = {"a": shiva_client.Unreachable("down", may_have_run=False)}
        else:
            error = kind("why")
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kind
        assert str(again) == str(error)
        assert again.__dict__.keys() == error.__dict__.keys()
        assert getattr(again, "retryable", True) == getattr(error, "retryable", True)
        assert getattr(again, "may_have_run", None) == getattr(error, "may_have_run", None)
