"""A model whose tensors go through TLS, as the environment configures, not shared memory."""

from __future__ import annotations

import sys

from shiva_container import Tensor, model, serve

numbers = [Tensor("x", "FP32", [-1, -1])]
model(name=sys.argv[1], batched=True, inputs=numbers, outputs=numbers)(lambda x: x)
serve(arena=False)
