"""Messages about unknown settings know the words that tables use."""

from __future__ import annotations

import pytest

from ddpbench.errors import MOST_LISTED, ExperimentError, nearest
from ddpbench.launch.catalog import TableCatalog
from ddpbench.spec import parse_experiment
from ddpbench.spec.settings import Base
from ddpbench.spec.spoken import nearest_setting, setting_meant


def test_words_of_tables_lead_to_their_settings() -> None:
    for word, name in (
        ("ranks", "world_size"),
        ("Bucket", "bucket_cap_mb"),
        ("batch", "local_batch"),
        ("threads", "threads_per_rank"),
    ):
        assert nearest_setting(word, Base.model_fields) == f"did you mean {name!r}?"
        assert setting_meant(word, Base.model_fields) == f"did you mean {name!r}? "
    assert setting_meant("ranks", ["strategy"]) == ""


@pytest.mark.parametrize("text", ["[axes]\nranks = [2]\n", "[[exclude]]\nranks = 2\n"])
def test_an_experiment_asks_whether_a_setting_was_meant(text: str) -> None:
    with pytest.raises(ExperimentError, match="did you mean 'world_size'"):
        parse_experiment(f'[base]\nworkload = "mlp"\nstrategy = "ddp"\n{text}', TableCatalog(), name="own")


def test_names_that_are_not_near_are_not_suggested() -> None:
    assert "did you mean" not in nearest("forecast", ["resnet", "mlp", "gpt"])
    assert "did you mean 'mlp'" in nearest("mpl", ["resnet", "mlp", "gpt"])


def test_of_many_names_only_the_nearest_is_listed() -> None:
    names = [f"name{number}" for number in range(MOST_LISTED)]
    assert nearest("nmae3", names).startswith("did you mean 'name3'? known: name0, ")
    assert nearest("nmae3", [*names, "more"]) == "did you mean 'name3'?"
