"""python -m shivad_server FLAG...: the server, in place of this process."""

import os
import sys

from shivad_server import program

if __name__ == "__main__":
    path = program()
    os.execv(path, [path, *sys.argv[1:]])
