"""The least that a container in Python does.

    floor.py PATH

It doubles the floats that arrive on a Unix socket, and knows no messages.
"""

import socket
import sys
import time

import numpy as np


def main() -> None:
    server = socket.socket(socket.AF_UNIX)
    while server.connect_ex(sys.argv[1]):  # until it listens
        time.sleep(0.05)
    while data := server.recv(65536):
        rows = np.frombuffer(data, np.float32)
        server.sendall((rows + rows).tobytes())


if __name__ == "__main__":
    main()
