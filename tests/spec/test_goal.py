"""A loss to train down to: accepted settings, skipped cases, and when the loss counts as reached."""

from __future__ import annotations

import pytest

from ddpbench.errors import ExperimentError
from ddpbench.launch.catalog import TableCatalog
from ddpbench.spec import Case, Devices, TargetLoss, expand, parse_experiment
from ddpbench.spec.target_loss import mean_losses, smoothed, smoothing_steps, steps_to

CATALOG = TableCatalog()
FOUR_CORES = Devices(kind="cpu", gpus=0, cores=4)


def test_a_budget_without_a_loss_has_no_goal_and_one_with_it_has_limits() -> None:
    assert parse_experiment("", CATALOG, name="none").budget.target_loss is None
    given = parse_experiment('[budget]\nuntil_loss = 2\nuntil_s = "1 min"', CATALOG, name="some")
    assert given.budget.target_loss == TargetLoss(loss=2.0, steps=2000, seconds=60.0)
    assert parse_experiment(given.to_toml(), CATALOG, name="again") == given


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("until_loss = 0", "budget.until_loss"),
        ("until_loss = -1.5", "budget.until_loss"),
        ("until_loss = inf", "budget.until_loss"),
        ("until_loss = true", "budget.until_loss"),
        ('until_loss = "low"', "budget.until_loss"),
        ("until_steps = 0", "budget.until_steps"),
        ("until_steps = 1.5", "budget.until_steps"),
        ('until_s = "long"', "budget.until_s"),
    ],
)
def test_odd_losses_and_limits_are_refused(text: str, path: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        parse_experiment(f"[budget]\n{text}", CATALOG, name="odd")
    (problem,) = caught.value.problems
    assert str(problem).startswith(path)


def test_a_replay_asked_for_its_loss_is_skipped_and_says_why() -> None:
    text = """
        [base]
        world_size = 2
        [axes]
        workload = ["replay:resnet50-v100", "mlp:small"]
        [budget]
        until_loss = 2.0
    """
    cases = expand(parse_experiment(text, CATALOG, name="replays"), CATALOG, FOUR_CORES)
    reasons = {entry.case.workload: entry.skip_reason for entry in cases}
    assert "a replay has no loss" in (reasons["replay:resnet50-v100"] or "")
    assert reasons["mlp:small"] is None
    without = text.replace("until_loss = 2.0", "")
    cases = expand(parse_experiment(without, CATALOG, name="replays"), CATALOG, FOUR_CORES)
    assert all(entry.skip_reason is None for entry in cases)


def test_where_scaling_is_an_axis_each_kind_takes_the_batch_it_fixes() -> None:
    text = """
        [base]
        local_batch = 6
        global_batch = 8
        world_size = 2
        [axes]
        scaling = ["weak", "strong"]
    """
    cases = expand(parse_experiment(text, CATALOG, name="both"), CATALOG, FOUR_CORES)
    found = [(c.case.strategy, c.case.scaling, c.case.local_batch, c.case.global_batch) for c in cases]
    assert found == [
        ("ddp", "weak", 6, 12),
        ("ddp", "strong", 4, 8),
        ("single", "weak", 6, 6),
        ("single", "strong", 8, 8),
    ]


def test_losses_are_averaged_over_as_many_samples_whatever_the_batch() -> None:
    def steps(scaling: str, world_size: int) -> int:
        batch = 8 * world_size if scaling == "weak" else 8
        case = Case(
            workload="mlp:small",
            strategy="ddp",
            world_size=world_size,
            scaling="weak" if scaling == "weak" else "strong",
            local_batch=batch // world_size,
            global_batch=batch,
        )
        return smoothing_steps(case)

    assert [steps("strong", n) for n in (1, 2, 4)] == [32, 32, 32]
    assert [steps("weak", n) for n in (1, 2, 3, 4, 100)] == [32, 16, 11, 8, 1]


def test_a_loss_is_reached_by_the_mean_over_the_last_steps() -> None:
    losses = [5.0, 4.0, 1.0, 3.0, 2.0, 1.0]
    assert smoothed(losses, 3) == pytest.approx([10 / 3, 8 / 3, 2.0, 2.0])
    assert steps_to(2.0, losses, 3) == 5  # a single 1.0 at step 3 is not enough
    assert steps_to(2.0, losses, 1) == 3
    assert steps_to(1.9, losses, 3) is None
    assert steps_to(2.0, losses, 7) is None


def test_the_jobs_loss_is_the_mean_over_the_ranks_that_know_one() -> None:
    assert mean_losses([(), (1.0, 2.0), (3.0, 5.0)]) == [2.0, 3.5]
