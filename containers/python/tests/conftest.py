from __future__ import annotations

from collections.abc import Iterator

import pytest
from shiva_container import models


@pytest.fixture(autouse=True)
def no_models_left_over() -> Iterator[None]:
    yield
    models._declared.clear()
