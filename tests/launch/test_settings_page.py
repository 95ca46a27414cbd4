"""docs/settings.md: every key has a sentence, every number a unit, and types and limits are those of validation."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from ddpbench.launch.settings_page import SettingKey, keys, page, sections
from ddpbench.spec import Case
from ddpbench.spec.settings import Base
from ddpbench.units import Unit

PACKAGE = Path(__file__).parents[2] / "ddpbench"
WITHOUT_UNIT = {"seed", "replicate", "slow_rank"}
"""Numbers that only identify something."""


class Said(BaseModel):
    size: Annotated[int, Field(gt=0), Unit("samples")] | Literal["auto"] = 3
    """How many
    samples."""
    part: float | None = Field(default=None, ge=0.5, lt=1)
    """A | part."""


class Unsaid(BaseModel):
    said: int = 1
    """Has a sentence."""
    planted: int = 2
    other: str = ""
    """Has one, too."""


def test_a_key_is_described_as_it_is_declared() -> None:
    assert keys(Said) == [
        SettingKey(
            name="size",
            type="integer or string",
            default="3",
            unit="samples",
            allowed='≥ 1; `"auto"`',
            meaning="How many samples.",
        ),
        SettingKey(
            name="part", type="number", default="", unit="", allowed="≥ 0.5, < 1", meaning="A | part."
        ),
    ]


def test_a_key_without_a_sentence_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Unsaid has no sentence for planted: write one"):
        keys(Unsaid)


def test_every_setting_is_a_field_of_a_case_and_every_field_is_used() -> None:
    own = {field.name for field in dataclasses.fields(Case)}
    assert set(Base.model_fields) - own == set(), "a setting without a field changes nothing"
    modules = [path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE / "spec"]
    source = "\n".join(path.read_text(encoding="utf-8") for path in modules)
    unused = {name for name in own if not re.search(rf"\.{name}\b", source)}
    assert unused == {"env_json"}, (
        "nothing outside ddpbench/spec reads such a field (`env_json` is read as `env`)"
    )


def test_every_key_has_a_sentence_and_every_number_a_unit() -> None:
    for heading, listed in sections().items():
        for key in listed:
            assert key.meaning.endswith("."), (heading, key.name)
            assert key.meaning[0].isupper(), (heading, key.name)
            if ("integer" in key.type or "number" in key.type) and key.name not in WITHOUT_UNIT:
                assert key.unit, (
                    f"{heading} {key.name}: declare its unit, as in Annotated[int, Unit('samples')]"
                )


def test_strategies_and_workloads_are_on_the_page() -> None:
    text = page()
    assert "## [options.post_local_sgd]" in text
    assert "| `period` | integer | `4` | steps | 2 to 10 (less: 1 is DDP; more: the smallest" in text
    assert "## [options.replay]" in text
    assert "[options.master]" not in text
    assert '`"halving_doubling"`' in text


def test_the_page_needs_no_torch() -> None:
    program = (
        "import sys; from ddpbench.launch.settings_page import page; page(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
