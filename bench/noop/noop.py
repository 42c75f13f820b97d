"""A container whose models answer with their input: what a batch costs on its way, and no more.

    noop.py [-servers ADDR] [-max-batch N] NAME:DATATYPE:SHAPE ...

The counterpart of noop in Go, with the same command line.
"""

from __future__ import annotations

import argparse

from shiva_container import Tensor, model, serve
from shiva_container.tensors import Array


def declare(text: str, max_batch: int) -> None:
    """Register the model that name:datatype:shape describes."""
    name, datatype, shape = text.split(":")
    x = Tensor("x", datatype, [-1, *(int(size) for size in shape.split(",") if size)])

    @model(name=name, batched=True, inputs=[x], outputs=[x], max_batch=max_batch, platform="noop")
    def echo(x: Array) -> Array:
        return x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-servers", default=None, help="server addresses, with commas between")
    parser.add_argument("-max-batch", type=int, default=0, help="most rows in a batch; 0: the server's default")
    parser.add_argument("models", nargs="+", metavar="NAME:DATATYPE:SHAPE")
    args = parser.parse_args()
    for text in args.models:
        declare(text, args.max_batch)
    serve(servers=args.servers)


if __name__ == "__main__":
    main()
