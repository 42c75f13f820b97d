"""The reference Shiva server, with the identity as its model.

    serve_reference.py HOST:PORT
"""

import asyncio
import sys

from shiva.messages import ShivaMessage
from shiva.servers import ShivaServerAsync


async def identity(message: ShivaMessage) -> ShivaMessage:
    return ShivaMessage(metadata={}, tensors=message.tensors, namespace=message.namespace)


async def main() -> None:
    host, port = sys.argv[1].rsplit(":", 1)
    # Without on_connection_lost a connection that ends raises in the task that serves it.
    server = ShivaServerAsync(identity, on_connection_lost=lambda address: None)
    await server.wait_for_connections(host, int(port))


if __name__ == "__main__":
    asyncio.run(main())
