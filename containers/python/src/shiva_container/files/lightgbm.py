"""Boosted trees of LightGBM, saved as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import lightgbm
import numpy as np

from ..tensors import Array
from .network import Network, Options, Port, Unusable


def read(path: Path, options: Options) -> Network:
    if options.device not in ("auto", "cpu"):
        raise Unusable(f"{path}: device {options.device}: LightGBM predicts on the CPU: expected auto or cpu")
    booster = lightgbm.Booster(model_file=str(path))
    features = booster.num_feature()

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        return [np.asarray(booster.predict(arrays[0], num_threads=options.share), np.float64)]

    example = run([np.zeros((1, features))])[0]
    return Network(
        platform="lightgbm",
        device="cpu",
        inputs=[Port("input-0", "FP64", ("", features))],
        outputs=[Port("predict", "FP64", ("", *example.shape[1:]))],
        run=run,
    )
