"""A handmade report, built once for all tests that only read it."""

from pathlib import Path

import pytest

from ddpbench.records import RunDir
from ddpbench.report import write_report
from tests.lighter.sitecustomize import PAINTS
from tests.made_once import made_once
from tests.report.handmade import bucket_comparisons, handmade_summary
from tests.report.reading import Read, read


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(PAINTS, "1")
            write_report(handmade_summary(comparisons=bucket_comparisons()), RunDir(folder))

    return RunDir(made_once(tmp_path_factory, "painted", make)).report


@pytest.fixture(scope="session")
def document(page: Path) -> Read:
    return read(page.read_text(encoding="utf-8"))
