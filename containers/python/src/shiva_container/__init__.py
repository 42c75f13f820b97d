"""Serve Python functions as models behind shivad.

    from shiva_container import Tensor, model, serve

    ROWS = [-1, 4]

    @model(name="double", inputs=[Tensor("x", "FP32", ROWS)], outputs=[Tensor("y", "FP32", ROWS)])
    def double(x):
        return x * 2

    serve()

Threads: one I/O thread per process keeps the sessions with the servers alive; the functions run in
threads of their own, so heartbeats go on while a model computes. The thread of a quick function
talks to the servers itself.
"""

from .addresses import Address
from .container import Container, serve
from .feedback import Feedback
from .images import Fit, Image
from .models import Batch, Model, Request, declared_models, model
from .pictures import PictureError
from .secure import TLS
from .tensors import DATATYPES, DeclarationError, Tensor, TensorError

__version__ = "0.1.0"

__all__ = [
    "DATATYPES",
    "TLS",
    "Address",
    "Batch",
    "Container",
    "DeclarationError",
    "Feedback",
    "Fit",
    "Image",
    "Model",
    "PictureError",
    "Request",
    "Tensor",
    "TensorError",
    "__version__",
    "declared_models",
    "model",
    "serve",
]
