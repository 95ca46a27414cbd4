"""Other programs can read a written PNG file, and find the same pixels."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from ddpbench.report.draw.png import png_of


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (200, 301)])
def test_what_is_read_is_what_was_written(shape: tuple[int, int], channels: int) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (*shape, channels), np.uint8)
    with Image.open(io.BytesIO(png_of(pixels, 200))) as image:
        image.verify()
    with Image.open(io.BytesIO(png_of(pixels, 200))) as image:
        assert image.mode == "RGB"
        assert image.info["dpi"] == pytest.approx((200, 200), abs=0.01)
        assert np.array_equal(np.asarray(image), pixels[:, :, :3])
