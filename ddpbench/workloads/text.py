"""Real text as bytes for the language workloads, and datasets that cut it into windows."""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

VOCABULARY = 256
"""Number of different tokens, because each byte is a token."""
DEFAULT_TEXT_BYTES = 2_000_000
"""Maximum length of the default text (bytes). It is enough for thousands of windows, and is read in a few
milliseconds.
"""


def default_files() -> list[Path]:
    """Return the sorted paths of the top-level modules of Python's standard library, as text that is always available.

    The text differs between Python versions, but is the same for all ranks of a machine.
    """
    return sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))


def read_text(files: Sequence[str], *, at_least: int) -> torch.Tensor:
    """Return the bytes of these files, concatenated, as a uint8 tensor of shape [bytes].

    If `files` is empty, return the first `DEFAULT_TEXT_BYTES` of `default_files()`.

    Raises:
        ValueError: a file cannot be read, or all files together have fewer than `at_least` bytes.
    """
    import torch

    text = bytearray()
    if not files:
        for path in default_files():
            text += path.read_bytes()
            if len(text) >= DEFAULT_TEXT_BYTES:
                del text[DEFAULT_TEXT_BYTES:]
                break
    for name in files:
        try:
            text += Path(name).read_bytes()
        except OSError as error:
            looked = Path(name).absolute()
            reason = error.strerror or str(error)
            raise ValueError(f"text file {name!r} cannot be read ({reason}; looked for {looked})") from None
    if len(text) < at_least:
        where = ", ".join(files) if files else "Python's standard library"
        raise ValueError(
            f"{where}: {len(text)} bytes of text, but one sample needs {at_least}: "
            "name longer files in the workload's option `text`, or use a smaller block"
        )
    return torch.frombuffer(text, dtype=torch.uint8)


@dataclass(frozen=True, slots=True)
class Windows:
    """A dataset of non-overlapping windows of a text, whose targets are the same windows shifted by one byte.

    Item i is `(inputs, targets)`, both int64 of shape [block_size]. A remainder too short for a window is left out.
    """

    text: torch.Tensor
    block_size: int

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.block_size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = index * self.block_size
        window = self.text[start : start + self.block_size + 1].long()
        return window[:-1], window[1:]


@dataclass(frozen=True, slots=True)
class Contexts:
    """A dataset of non-overlapping pieces of a text. The target of a piece is the byte that follows it.

    Item i is `(context, target)`: uint8 of shape [context_size], and an int64 scalar.
    """

    text: torch.Tensor
    context_size: int

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context_size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start, end = index * self.context_size, (index + 1) * self.context_size
        return self.text[start:end], self.text[end].long()
