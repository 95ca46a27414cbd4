"""A PNG written here holds the pixels it was made from, as another library reads it."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from ddpbench.report.draw.png import png_of


def test_another_library_reads_the_same_pixels() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5, 4), np.uint8)
    image = Image.open(io.BytesIO(png_of(pixels, dpi=200)))
    image.load()
    assert image.mode == "RGBA"
    assert image.size == (5, 7)
    assert (np.asarray(image) == pixels).all()
    assert round(image.info["dpi"][0]) == 200


def test_equal_pixels_give_equal_bytes() -> None:
    white = np.full((300, 400, 4), 255, np.uint8)
    assert png_of(white, dpi=200) == png_of(white.copy(), dpi=200)
    assert len(png_of(white, dpi=200)) < 5_000
