from __future__ import annotations

from collections.abc import Iterator

import pytest
from shiva_container import models, pictures
from shiva_container.kept import KEPT

DECODERS = {"simplejpeg": {"simplejpeg", "cv2"}, "cv2": {"cv2"}, "pillow": {"PIL.Image"}}


@pytest.fixture(autouse=True)
def no_models_left_over() -> Iterator[None]:
    yield
    models._declared.clear()


@pytest.fixture(params=list(DECODERS))
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each decoder alone."""
    there: set[str] = DECODERS[request.param]
    load = pictures._module.__wrapped__
    monkeypatch.setattr(pictures, "_module", lambda name: load(name) if name in there else None)
    return str(request.param)


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    yield
    KEPT.free(float("inf"))
