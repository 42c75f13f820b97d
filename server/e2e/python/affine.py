"""A model that answers 3x + 1."""

from typing import Any

from shiva_container import Tensor, model, serve


@model(name="affine", inputs=[Tensor("x", "INT64", [-1, 1])], outputs=[Tensor("x", "INT64", [-1, 1])], max_batch=32)
def affine(x: Any) -> Any:
    return 3 * x + 1


serve()
