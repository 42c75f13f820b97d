"""Boosted trees of XGBoost, saved as UBJSON or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xgboost

from ..tensors import Array
from .network import Network, Options, Port, Unusable


def read(path: Path, options: Options) -> Network:
    if options.device not in ("auto", "cpu") and not options.device.startswith("cuda:"):
        raise Unusable(f"{path}: device {options.device}: expected auto, cpu or cuda:N")
    booster = xgboost.Booster(model_file=str(path))
    device = "cpu" if options.device == "auto" else options.device
    booster.set_param({"nthread": options.share, "device": device})
    if (used := json.loads(booster.save_config())["learner"]["generic_param"]["device"]) != device:
        raise Unusable(f"{path}: device {device}: this xgboost executes on {used}")
    features = booster.num_features()

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        return [np.asarray(booster.inplace_predict(arrays[0], validate_features=False), np.float32)]

    example = run([np.zeros((1, features), np.float32)])[0]
    return Network(
        platform="xgboost",
        device=device,
        inputs=[Port("input-0", "FP32", ("", features))],
        outputs=[Port("predict", "FP32", ("", *example.shape[1:]))],
        run=run,
    )
