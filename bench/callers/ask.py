"""A client of the reference, eyecan-shiva, that sends, waits for the answer and sends again.

    ask.py HOST:PORT SECONDS

It prints the number of its answers.
"""

import asyncio
import sys
import time

import numpy as np
from shiva.clients import ShivaClientAsync
from shiva.messages import ShivaMessage


async def main() -> None:
    host, port = sys.argv[1].rsplit(":", 1)
    end = time.monotonic() + float(sys.argv[2])
    client = await ShivaClientAsync.create_and_connect(host, int(port))
    row, answers = np.arange(64, dtype=np.float32)[None], 0
    while time.monotonic() < end:
        answer = await client.send_message(ShivaMessage(metadata={}, tensors=[row], namespace="doubler"))
        assert np.array_equal(answer.tensors[0], row + row), answer
        answers += 1
    await client.disconnect()
    print(answers)


if __name__ == "__main__":
    asyncio.run(main())
