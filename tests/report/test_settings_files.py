"""A file of matplotlib's settings in the working directory, which may be a stranger's run, is not read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DRAW = """
import os
from ddpbench.report.draw.lines import text_width_in
here = os.getcwd()
assert text_width_in("a name", 9) > 0
assert os.getcwd() == here
import matplotlib
assert matplotlib.rcParams["font.size"] == 10
assert matplotlib.__spec__.loader.get_data(matplotlib.__file__)
"""
HELPER = """
import ddpbench.helper_process as helper
import importlib
for module in helper._OF_A_REPORT:
    importlib.import_module(module)
"""


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        pytest.param("text", DRAW, id="text-draw"),
        pytest.param("pipe", HELPER, id="pipe-helper"),
        pytest.param("pipe", DRAW, id="pipe-draw", marks=pytest.mark.thorough),
        pytest.param("text", HELPER, id="text-helper", marks=pytest.mark.thorough),
    ],
)
def test_settings_in_the_working_directory_are_not_read(tmp_path: Path, code: str, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(tmp_path / "matplotlibrc")
    else:
        (tmp_path / "matplotlibrc").write_bytes(b"font.size: 33\nno colon \x1b]0;title\x07\n# \xff\n")
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_list_of_fonts_that_does_not_fit_is_nobodys_business(tmp_path: Path) -> None:
    from matplotlib.font_manager import FontManager

    code = (
        "from ddpbench.matplotlib_folder import settle_matplotlib; settle_matplotlib()\n"
        "import matplotlib.font_manager as fonts; fonts._log.warning('another warning')"
    )
    fonts = tmp_path / f"fontlist-v{FontManager.__version__}.json"
    fonts.mkdir()  # as on a full disk: it cannot be written
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "MPLCONFIGDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "another warning\n")
