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

from ddpbench.launch.settings_page import SettingKey, keys, options, page, sections
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
            name="size", default="3", unit="samples", values='≥ 1; `"auto"`', meaning="How many samples."
        ),
        SettingKey(name="part", default="", unit="", values="number, ≥ 0.5, < 1", meaning="A | part."),
    ]


def test_values_have_a_unit_unless_the_meaning_names_it() -> None:
    cap = next(key for key in keys(Base) if key.name == "bucket_cap_mb")
    assert cap.values == '`"default"`; number, 1e-06 to 1,048,576 MiB'
    assert next(key for key in keys(Base) if key.name == "world_size").values == '1 to 4,096; `"auto"`'


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
    for heading, listed in {**sections(), "[options]": list(options())}.items():
        for key in listed:
            assert key.meaning.endswith("."), (heading, key.name)
            assert key.meaning[0].isupper() or key.meaning[0] in "`[", (heading, key.name)
            if re.match(r"number|\d", key.values) and key.name not in WITHOUT_UNIT:
                assert key.unit, (
                    f"{heading} {key.name}: declare its unit, as in Annotated[int, Unit('samples')]"
                )


def test_strategies_and_workloads_are_on_the_page() -> None:
    text = page()
    assert "| `post_local_sgd.period` | `4` | 2 to 10 | Steps from one averaging" in text
    assert "| `accumulate` of `ddp`, `accelerate`, `lightning`, `hf_trainer`, `ray_train` | `1` |" in text
    assert "`replay.slow_rank`" in text
    assert "master." not in text, "a strategy without options"


def test_the_page_needs_no_torch() -> None:
    program = (
        "import sys; from ddpbench.launch.settings_page import page; page(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
