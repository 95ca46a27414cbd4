"""Processes of ranks, as recorded in the page of another launcher: an id that was reused since does not
count.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddpbench.records.heartbeat import PAGE_BYTES, WORDS_BYTES, noted_lives, noted_pid, shared_page

NOTING = """
import sys
from pathlib import Path
from ddpbench.records.heartbeat import note_pid, shared_page
note_pid(shared_page(Path(sys.argv[1])), 1)
print("noted", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "page"
    path.write_bytes(bytes(PAGE_BYTES + WORDS_BYTES))
    return path


def test_a_rank_lives_until_it_ends_whatever_it_is_called(path: Path) -> None:
    rank = subprocess.Popen(
        [sys.executable, "-c", NOTING, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert rank.stdout is not None
    assert rank.stdout.readline() == b"noted\n"
    words = memoryview(shared_page(path)).cast("Q")
    assert noted_pid(words, 1) == rank.pid
    assert noted_lives(words, 1)
    assert not noted_lives(words, 0)  # it was never recorded
    own = PAGE_BYTES // 8 + 2
    words[own] += 1 << 22  # a process that began a tick later, with the same id
    assert noted_pid(words, 1) == rank.pid
    assert not noted_lives(words, 1)
    words[own] -= 1 << 22
    rank.communicate()
    assert not noted_lives(words, 1)
