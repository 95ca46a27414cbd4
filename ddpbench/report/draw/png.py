"""Pixels as a PNG file, without filters: flat colours compress as well, in a third of the time that Pillow takes."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_RGBA = (8, 6, 0, 0, 0)
"""Bits of a channel; red, green, blue and opacity; then the usual compression, filters and order of rows."""
_PER_METRE = 1
_LEVEL = 3
"""zlib's: higher ones take half as long again, for a tenth of the bytes."""


def png_of(pixels: NDArray[np.uint8], dpi: float) -> bytes:
    """Return an image of shape (height, width, 4) as a file. Equal pixels give equal bytes.

    W3C, "Portable Network Graphics (PNG) Specification", sections 5, 9 and 11.
    """
    height, width, channels = pixels.shape
    rows = np.zeros(
        (height, 1 + channels * width), np.uint8
    )  # a row begins with the number of its filter: none
    rows[:, 1:] = pixels.reshape(height, -1)
    per_metre = round(dpi / 0.0254)
    return b"".join(
        (
            _SIGNATURE,
            _chunk(b"IHDR", struct.pack(">II5B", width, height, *_RGBA)),
            _chunk(b"pHYs", struct.pack(">IIB", per_metre, per_metre, _PER_METRE)),
            _chunk(b"IDAT", zlib.compress(rows.data, _LEVEL)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    """Return a part of the file: its length, what it is, the data and a checksum of both."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(data, zlib.crc32(kind)))
