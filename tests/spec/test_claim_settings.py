"""Claims of an experiment file: accepted claims, the message for every mistake, and which cases are pairs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddpbench.cli import run as cli
from ddpbench.errors import ExperimentError
from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.plan import make_plan
from ddpbench.records import RunDir
from ddpbench.records.plan import read_plan
from ddpbench.runtime.equal_caps import without_equal
from ddpbench.spec import Case, Devices, Experiment, expand, parse_experiment
from ddpbench.spec.claims import PlannedClaim

CATALOG = TableCatalog()
EXPERIMENTS = Path(__file__).parents[2] / "experiments"
FOUR_CORES = Devices(kind="cpu", gpus=0, cores=4)
ROUNDS = """
[budget]
rounds_min = 5
rounds_max = 5
"""
MATRIX = f"""{ROUNDS}
[base]
workload = "mlp:small"
[axes]
strategy = ["ddp", "data_parallel", "master"]
world_size = [2, 4]
bucket_cap_mb = ["default", 1]
[[exclude]]
strategy = "master"
world_size = 4
[[claims]]
says = "DDP trains faster than DataParallel"
"""
SIDES = 'faster = { strategy = "ddp" }\nthan = { strategy = "data_parallel" }\n'


def parsed(text: str) -> Experiment:
    return parse_experiment(text, CATALOG, name="test")


def planned(text: str) -> tuple[list[PlannedClaim], dict[str, Case]]:
    """Return the claims of an experiment with their pairs, and its cases by id."""
    experiment = parsed(text)
    cases = expand(experiment, CATALOG, FOUR_CORES)
    plan = make_plan(experiment, cases)
    return list(plan.claims), {entry.case.case_id: entry.case for entry in cases}


def pairs_of(text: str) -> list[tuple[str, str]]:
    (claim,), cases = planned(text)
    return [(_short(cases[a]), _short(cases[b])) for a, b in claim.pairs]


def _short(case: Case) -> str:
    cap = "" if case.bucket_cap_mb in (None, "default") else f"/{case.bucket_cap_mb:g}"
    return f"{case.strategy}@{case.world_size}{cap}"


def problems_of(text: str) -> list[str]:
    with pytest.raises(ExperimentError) as caught:
        expand(parsed(text), CATALOG, FOUR_CORES)
    return [str(problem) for problem in caught.value.problems]


def test_cases_that_are_alike_in_all_that_a_claim_does_not_name_are_pairs() -> None:
    # DataParallel has no buckets: one case of it is compared with DDP under either cap
    assert pairs_of(MATRIX + SIDES) == [
        ("ddp@2", "data_parallel@2"),
        ("ddp@2/1", "data_parallel@2"),
        ("ddp@4", "data_parallel@4"),
        ("ddp@4/1", "data_parallel@4"),
    ]


def test_a_key_that_one_side_names_alone_holds_for_both() -> None:
    text = MATRIX + SIDES.replace('"ddp"', '"ddp", world_size = 4, bucket_cap_mb = "default"')
    assert pairs_of(text) == [("ddp@4", "data_parallel@4")]


def test_a_key_that_both_sides_name_may_differ_and_may_list_several() -> None:
    text = MATRIX + (
        'of = "step time"\n'
        'faster = { strategy = "ddp", world_size = 2 }\n'
        'than = { strategy = ["data_parallel", "master"], world_size = [2, 4] }\n'
    )
    found = pairs_of(text)
    assert set(found) == {
        (mine, other)
        for mine in ("ddp@2", "ddp@2/1")
        for other in ("data_parallel@2", "data_parallel@4", "master@2")
    }
    assert len(found) == 6, "each once, although master and DataParallel have no buckets"


def test_what_is_excluded_and_base_cases_are_no_partners() -> None:
    assert pairs_of(MATRIX + SIDES.replace("data_parallel", "master")) == [
        ("ddp@2", "master@2"),
        ("ddp@2/1", "master@2"),
    ]
    (problem,) = problems_of(MATRIX + SIDES.replace("data_parallel", "single"))
    assert problem.startswith("claims[0].than.strategy: selects no case: none has 'single'; known: ")


def test_options_links_and_workloads_select_too() -> None:
    text = """
        [base]
        strategy = "ddp"
        world_size = 2
        [axes]
        workload = ["mlp:small", "gpt:nano"]
        "options.ddp.compression" = ["none", "bf16"]
        [axes.fabric]
        bandwidth = ["1 Gbit/s", "10 Gbit/s"]
        [[claims]]
        says = "compression pays on slow links"
        faster = { "options.ddp.compression" = "bf16", fabric.bandwidth = "1 Gbit/s" }
        than = { "options.ddp.compression" = "none" }
        [[claims]]
        says = "a mlp takes less"
        faster = { workload = "mlp:small" }
        than = { workload = "gpt:nano" }
    """
    (first, second), cases = planned(ROUNDS + text)
    assert len(first.pairs) == 2
    for a, b in first.pairs:
        assert {cases[a].fabric, cases[b].fabric} == {cases[a].fabric}
        assert "1 Gbit/s" in cases[a].fabric
        assert cases[a].workload == cases[b].workload
        assert [cases[one].options["compression"] for one in (a, b)] == ["bf16", "none"]
    assert len(second.pairs) == 4


def test_margins_are_fractions_or_per_cent() -> None:
    claims = [
        planned(MATRIX + SIDES + f"by = {value}\n")[0][0].margin for value in ('"3 %"', "0.03", '"150 %"')
    ]
    assert claims == [pytest.approx(0.03), pytest.approx(0.03), pytest.approx(1.5)]
    equal = 'cases = { strategy = "ddp" }\nas_fast_as = { strategy = "master" }\nwithin = "2.5%"\n'
    (claim,), _ = planned(MATRIX + equal)
    assert (claim.kind, claim.margin) == ("as fast", pytest.approx(0.025))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ": needs faster and than, or cases, as_fast_as and within"),
        ('faster = { strategy = "ddp" }', ".than: is missing"),
        ('than = { strategy = "ddp" }', ".faster: is missing"),
        (SIDES + 'fatser = { strategy = "ddp" }', ".fatser: unknown key; did you mean 'faster'?"),
        (SIDES + "by = 3", '.by: 3 given; must be a fraction: write "3 %", or 0.03'),
        (SIDES + 'by = "3 parsecs"', ".by: '3 parsecs' given; must be above 0"),
        (SIDES + "by = -0.1", ".by: -0.1 given; must be above 0"),
        (SIDES + "by = true", ".by: True given; must be above 0"),
        (SIDES + 'within = "3 %"', ".within: belongs to a claim of equality"),
        ('cases = { strategy = "ddp" }\nas_fast_as = { strategy = "master" }', ".within: is missing"),
        ('cases = { strategy = "ddp" }\nwithin = "2 %"', ".as_fast_as: is missing"),
        (
            SIDES + 'of = "stepp time"',
            ".of: 'stepp time' given; did you mean 'step time'? must be 'throughput' or 'step time'",
        ),
        (SIDES.replace('{ strategy = "ddp" }', '"ddp"'), ".faster: must be a table with at least one key"),
        (SIDES.replace('{ strategy = "ddp" }', "{}"), ".faster: must be a table with at least one key"),
        (
            SIDES.replace('strategy = "ddp"', 'strategyy = "ddp"'),
            ".faster.strategyy: unknown key; did you mean 'strategy'?",
        ),
        (SIDES.replace('"ddp"', '"dpd"'), ".faster.strategy: unknown strategy 'dpd'; did you mean 'ddp'?"),
        (
            SIDES.replace('"ddp"', '"ddp", world_size = "two"'),
            ".faster.world_size: 'two' is not a value of world_size, so it would select",
        ),
        (
            SIDES.replace('"ddp"', '"fsdp"'),
            ".faster.strategy: selects no case: none has 'fsdp'; known: ",
        ),
        (
            SIDES.replace('"ddp"', '"ddp", world_size = [8, 16]'),
            ".faster.world_size: selects no case: none has 8 or 16; known: 2, 4",
        ),
        (
            SIDES.replace('"ddp"', '"master", world_size = 4'),
            ".faster: selects no case: no combination has all of these",
        ),
        (
            SIDES.replace('"ddp"', '"ddp", "options.ddp.accumulate" = 2'),
            ".faster.options.ddp.accumulate: is not set by any case: make it an axis",
        ),
        (
            SIDES.replace('than = { strategy = "data_parallel" }', "than = { world_size = 4 }"),
            ".than: shares no key with faster",
        ),
        (
            SIDES.replace("data_parallel", "ddp"),
            ".than: selects the same cases as faster: give strategy another value",
        ),
        (
            SIDES.replace('"ddp"', '"ddp", world_size = 4').replace("data_parallel", "master"),
            ".than: no case here equals a case of faster in everything except strategy: the closest also differ in",
        ),
        (
            'faster = { strategy = "ddp", world_size = 2 }\nthan = { strategy = "ddp", world_size = 4 }',
            '.of: is missing: steps of the two sides take 16 and 32 samples; set of = "throughput" or "step time"',
        ),
    ],
)
def test_every_mistake_is_told_with_advice(text: str, expected: str) -> None:
    found = problems_of(MATRIX + text)
    assert any(one.startswith(f"claims[0]{expected}") for one in found), found
    assert len(found) == 1, found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("claims = 3", "claims: must be a list of tables: write [[claims]]"),
        ("claims = [3]", "claims[0]: must be a table, not 3"),
        (
            '[[claims]]\nfaster = { strategy = "ddp" }\nthan = { strategy = "master" }',
            "claims[0].says: is missing",
        ),
        (f'[[claims]]\nsays = "{"word " * 13}"\n{SIDES}', "claims[0].says: 'word word"),
        (
            f'[[claims]]\nsays = "one\\ntwo"\n{SIDES}',
            "claims[0].says: 'one\\ntwo' given; must be one line of 1 to 12 words",
        ),
        (
            f'[[claims]]\nsays = "a wins; b loses"\n{SIDES}',
            "claims[0].says: 'a wins; b loses' given; must be one statement, without a semicolon or a question mark",
        ),
        (
            f'[[claims]]\nsays = "does a win?"\n{SIDES}',
            "claims[0].says: 'does a win?' given; must be one statement, without a semicolon or a question mark",
        ),
        (f'[[claims]]\nsays = ""\n{SIDES}', "claims[0].says: '' given; must be one line of 1 to 12 words"),
        (
            f'[[claims]]\nsays = "red \\u001b[31m"\n{SIDES}',
            "claims.says: 'red \\x1b[31m' holds the control character",
        ),
        (f'[[claims]]\nsays = "x"\n{SIDES}' * 51, "claims: has 51 claims; must be 50 at most"),
    ],
)
def test_claims_are_tables_that_say_something(text: str, expected: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        parsed(text + "\n[axes]\nstrategy = ['ddp', 'data_parallel', 'master']\nworld_size = [2]\n")
    found = [str(problem) for problem in caught.value.problems]
    assert any(one.startswith(expected) for one in found), found


PAST = 'number = 1\nsays = "DDP wins"\nsettings = "4 rounds"\ndate = "2026-11-24"\nverdict = "cannot tell"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("number = 0", "claims[0].number: 0 given; must be a whole number, 1 to 1,000"),
        (
            f"number = 2\n[[claims]]\nnumber = 2\nsays = 'x'\n{SIDES}",
            "claims[1].number: is 2, the number of claims[0]: give each its own",
        ),
        ("history = 3", "claims[0].history: must be a list of tables: write [[claims.history]]"),
        ("history = [3]", "claims[0].history[0]: must be a table, not 3"),
        (
            f"[[claims.history]]\n{PAST}[[claims.history]]\n{PAST.replace('says', 'sayz')}",
            "claims[0].history[1].sayz: unknown key; did you mean 'says'?",
        ),
        (
            f"[[claims.history]]\n{PAST.replace('cannot tell', 'was fine')}",
            "claims[0].history[0].verdict: 'was fine' given",
        ),
        (f"[[claims.history]]\n{PAST.replace('-24', '')}", "claims[0].history[0].date: '2026-11' given"),
        (f"[[claims.history]]\n{PAST}run = 'best'", "claims[0].history[0].run: 'best' given"),
        (f"[[claims.history]]\n{PAST}" * 101, "claims[0].history: has 101 entries; must be 100 at most"),
    ],
)
def test_mistakes_in_numbers_and_histories_are_reported(text: str, message: str) -> None:
    found = problems_of(MATRIX + SIDES + text)
    assert any(one.startswith(message) for one in found), found


def test_claims_need_a_number_of_rounds_that_is_fixed_in_advance() -> None:
    """Otherwise a sweep that stops once its intervals are narrow could stop at a convenient result."""
    for rounds in ("rounds_min = 5\nrounds_max = 6", "rounds_min = 5", "rounds_max = 6", "measured_s = 1.0"):
        (message,) = problems_of((MATRIX + SIDES).replace("rounds_min = 5\nrounds_max = 5", rounds))
        assert message.startswith("budget.rounds_max: is "), message
        assert "fixed in advance; give both the same, or leave the claims out: --set 'claims=[]'" in message
    text = (MATRIX + SIDES).replace("rounds_max = 5", "rounds_max = 6")
    assert parse_experiment(text, CATALOG, name="test", overrides=["claims=[]"]).budget.rounds_max == 6
    assert parse_experiment(text, CATALOG, name="test", overrides=["budget.rounds_min=6"]).claims


def test_a_plan_keeps_a_claim_s_number_and_history(tmp_path: Path) -> None:
    text = (
        f"{MATRIX}{SIDES}number = 2\n[[claims.history]]\n{PAST}run = '0123456789ab'\nwhy = 'too few rounds'\n"
    )
    experiment = parsed(text)
    assert parsed(experiment.to_toml()) == experiment
    plan = make_plan(experiment, expand(experiment, CATALOG, FOUR_CORES))
    run = RunDir(tmp_path / "run")
    run.create()
    run.plan.write_text(plan.dumps(), encoding="utf-8")
    run.machine.write_text("{}", encoding="utf-8")
    (claim,) = read_plan(run).claims
    assert claim == plan.claims[0]
    assert (claim.number, [(one.run, one.why) for one in claim.history]) == (
        2,
        [("0123456789ab", "too few rounds")],
    )
    without = make_plan(parsed(MATRIX + SIDES), expand(experiment, CATALOG, FOUR_CORES))
    assert not {"number", "history"} & without.to_json()["claims"][0].keys()


def test_a_plan_keeps_what_a_claim_answers(tmp_path: Path) -> None:
    text = f"{MATRIX}{SIDES}answers = 'no'\n"
    experiment = parsed(text)
    plan = make_plan(experiment, expand(experiment, CATALOG, FOUR_CORES))
    run = RunDir(tmp_path / "run")
    run.create()
    run.plan.write_text(plan.dumps(), encoding="utf-8")
    run.machine.write_text("{}", encoding="utf-8")
    assert [claim.answers for claim in read_plan(run).claims] == ["no"]
    without = make_plan(parsed(MATRIX + SIDES), expand(experiment, CATALOG, FOUR_CORES))
    assert "answers" not in without.to_json()["claims"][0]
    (problem,) = problems_of(f"{MATRIX}{SIDES}answers = 'maybe'\n")
    assert problem.startswith("claims[0].answers: "), problem


def test_mistakes_of_all_claims_are_told_at_once() -> None:
    found = problems_of(
        MATRIX + SIDES + "by = 7\n[[claims]]\nsays = 'x'\nfaster = { stratgy = 'ddp' }\nthan = {}\n"
    )
    assert [one.partition(": ")[0] for one in found] == [
        "claims[0].by",
        "claims[1].faster.stratgy",
        "claims[1].than",
    ]


def test_an_experiment_with_claims_is_read_back_from_its_own_toml() -> None:
    text = MATRIX + SIDES + 'by = "150 %"\nsource = "A page"\nof = "throughput"\n'
    experiment = parsed(text)
    again = parsed(experiment.to_toml())
    assert again == experiment
    assert again.to_toml() == experiment.to_toml()
    without = parsed(MATRIX.partition("[[claims]]")[0])
    assert "claims" not in without.to_toml(), "experiments without claims keep their digest"
    assert "history" not in experiment.to_toml(), "nor do those without a history change theirs"


def test_claims_can_be_left_out_for_a_sweep() -> None:
    experiment = parse_experiment(MATRIX + SIDES, CATALOG, name="test", overrides=["claims=[]"])
    assert experiment.claims == []


def test_a_plan_keeps_claims_and_a_resumed_one_those_that_are_stored(tmp_path: Path) -> None:
    experiment = parsed(MATRIX + SIDES + 'by = "3 %"\n')
    cases = expand(experiment, CATALOG, FOUR_CORES)
    plan = make_plan(experiment, cases)
    run = RunDir(tmp_path / "run")
    run.create()
    run.plan.write_text(plan.dumps(), encoding="utf-8")
    run.machine.write_text("{}", encoding="utf-8")
    stored = read_plan(run)
    assert stored.claims == plan.claims
    assert make_plan(experiment, cases, stored).claims == plan.claims
    assert "claims" not in json.loads(make_plan(parsed("[axes]\nworld_size = [1]"), cases).dumps())


def test_of_bucket_caps_that_are_run_once_the_one_that_stands_for_others_is_the_partner() -> None:
    text = MATRIX.replace('["default", 1]', '["default", 30, 50]') + SIDES.replace(
        '"ddp"', '"ddp", bucket_cap_mb = 50'
    )
    experiment = parsed(text)
    cases = without_equal(expand(experiment, CATALOG, FOUR_CORES), lambda case: [1000, 2000])
    (claim,) = make_plan(experiment, cases).claims
    known = {entry.case.case_id: entry for entry in cases}
    assert [(known[a].case.bucket_cap_mb, known[b].case.strategy) for a, b in claim.pairs] == [
        ("default", "data_parallel"),
        ("default", "data_parallel"),
    ]
    assert all(50.0 in known[a].stands_for for a, _ in claim.pairs)


def test_a_dry_run_lists_claims_with_their_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "claimed.toml"
    path.write_text(MATRIX.replace("[2, 4]", "[2, 4096]") + SIDES, encoding="utf-8")
    assert cli(["sweep", str(path), "--dry-run", "--out", str(tmp_path / "run")]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "claims: 1 DDP trains faster than DataParallel: 4 pairs of cases" in output
    assert cli(["sweep", str(path), "--dry-run", "--json", "--out", str(tmp_path / "run")]) == 0
    (claim,) = json.loads(capsys.readouterr().out)["claims"]
    assert len(claim["pairs"]) == 4
    assert (claim["says"], claim["kind"]) == ("DDP trains faster than DataParallel", "faster")
    wrong = path.read_text(encoding="utf-8").replace('"ddp" }', '"fsdp" }')
    path.write_text(wrong, encoding="utf-8")
    assert cli(["sweep", str(path), "--dry-run", "--out", str(tmp_path / "run")]) == 2
    assert "selects no case: none has 'fsdp'" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("claim_*.toml")), ids=lambda path: path.stem)
def test_the_claims_of_tutorials_can_be_swept_in_twenty_minutes(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        parse_experiment(path.read_text(encoding="utf-8"), TableCatalog(path.parent), name="x").budget.total
        <= 1200
    )
    assert cli(["sweep", str(path), "--dry-run", "--out", str(tmp_path / "run")]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "has room for" not in output, "all rounds that it needs at least fit into its budget"
    claims = output.partition(" claims: ")[2]
    assert "pair" in claims
    assert "skipped" not in claims
    assert "oversubscribed" not in claims
