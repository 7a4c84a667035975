"""`specbench profile`: counts by position against a count by hand and against rows, and what it leaves out."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from specbench.analysis.profile.profile import cell_of_steps, profile_of_runs, survival
from specbench.records.profile import ProfileCell, ProfileEntry, read_profile, schema
from specbench.results.leaderboard import load, write
from specbench.results.row import Row
from specbench.results.runs import RecordedRun
from tests.support.profiles import drawn_steps, steps_of

DEMO = Path(__file__).resolve().parents[2] / "leaderboards" / "demo.json"


ROWS = [("mgsm", subset, "sd") for subset in ("all", "en", "de", "sw")]
ROWS += [("mgsm", "en", "ar"), ("mgsm", "en", "pld"), ("csqa", "default", "sd")]


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A board with ROWS of the demo, in this order."""
    rows = {row.names: row for row in load(DEMO)}
    path = tmp_path_factory.mktemp("profile") / "board.json"
    write(path, [rows[names].model_copy(update={"run": str(DEMO.parent / str(rows[names].run))}) for names in ROWS])
    return path


@pytest.fixture(scope="module")
def demo(board: Path) -> tuple[Row, ProfileEntry]:
    """The row of `sd` over the languages of mgsm, and its profile."""
    (entry,) = profile_of_runs([f"{board}:0"]).entries
    return load(board)[0], entry


def recorded_steps(subset: str | None = None) -> list[tuple[int, int, int, int]]:
    records = RecordedRun(DEMO.with_suffix("") / "mgsm").records.values()
    chosen = [record for record in records if subset in (None, record.subset)]
    return [tuple(step) for record in chosen for step in record.methods["sd"].steps]


def check_by_hand(cell: ProfileCell, steps: list[tuple[int, int, int, int]]) -> None:
    """Token by token: a draft is followed up to its first rejection or to the end of the text."""
    verified, accepted = Counter(), Counter()
    for drafted, num_verified, num_accepted, _ in steps:
        for place in range(1, drafted + 1):
            if place > num_verified:
                break
            verified[place] += 1
            accepted[place] += place <= num_accepted
    product = 1.0
    for each in cell.positions:
        assert (each.verified, each.accepted) == (verified[each.position], accepted[each.position])
        product *= accepted[each.position] / verified[each.position]
        assert each.unconditional.value == pytest.approx(product)
    assert cell.steps == len(steps)
    assert cell.drafted == sum(step[0] for step in steps)
    is_cut = [emitted <= accepted for _, _, accepted, emitted in steps]
    assert sum(cell.histogram_cut) == sum(is_cut)
    uncut = Counter(step[2] for step, cut in zip(steps, is_cut, strict=True) if not cut)
    assert dict(enumerate(cell.histogram)) == {place: uncut[place] for place in range(len(cell.positions) + 1)}


def test_counts_are_those_of_a_count_by_hand(demo: tuple[Row, ProfileEntry]) -> None:
    _, entry = demo
    check_by_hand(entry.cell(), recorded_steps())
    check_by_hand(entry.cell("language=sw"), recorded_steps("sw"))
    for dimension in ("subset", "language"):
        assert sum(cell.steps for cell in entry.cells if cell.by == dimension) == entry.cell().steps


def test_its_total_is_the_row(demo: tuple[Row, ProfileEntry]) -> None:
    row, entry = demo
    total = entry.cell()
    both = np.add(total.histogram, total.histogram_cut)
    assert tuple(both.tolist()) == row.accepted_tokens_per_step
    assert total.mean_acceptance_length.pooled == row.metric("mean_acceptance_length")
    assert total.accepted / total.verified == pytest.approx(row.value("acceptance_rate_pooled"))
    assert entry.target.name == row.target and entry.conditions.temperature == row.sampling.temperature
    assert [part.subset for part in entry.conditions.prompts] == list(row.subsets)
    assert entry.sources[0].command == row.command


def test_rates_never_rise_and_lie_in_their_intervals(demo: tuple[Row, ProfileEntry]) -> None:
    _, entry = demo
    for cell in entry.cells:
        rates = cell.unconditional
        assert rates == sorted(rates, reverse=True)
        for each in cell.positions:
            for rate in (each.conditional, each.unconditional):
                if rate.low is not None:
                    assert 0 <= rate.low <= rate.value <= rate.high <= 1


def test_a_draft_is_followed_up_to_its_end_the_end_of_the_text_or_a_rejection() -> None:
    """Three drafts: one rejected at its second token, one that the text ends in, and one of a single token."""
    cell = cell_of_steps(steps_of([(3, 2, 1, 2), (3, 2, 2, 2), (1, 1, 1, 2)]), 3)
    assert [(each.verified, each.accepted) for each in cell.positions] == [(3, 3), (2, 1), (0, 0)]
    assert (cell.histogram, cell.histogram_cut) == ((0, 2, 0, 0), (0, 0, 1, 0))
    assert cell.draft_lengths == (0, 1, 0, 2) and cell.share_short == pytest.approx(1 / 3)
    assert (cell.conditional, cell.unconditional) == ([1.0, 0.5], [1.0, 0.5])
    assert cell.mean_acceptance_length.of_rates.value is None  # the third position was never verified
    assert cell.mean_acceptance_length.pooled.value == 2.0


def test_behind_a_position_that_nothing_passed_rates_are_0() -> None:
    cell = cell_of_steps(steps_of([(3, 1, 0, 1)] * 4), 3)
    assert (cell.conditional, cell.unconditional) == ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0])
    assert cell.mean_acceptance_length.of_rates.value == 1.0


@pytest.mark.parametrize("cut", [0.0, 0.8])
def test_ends_of_texts_do_not_bias_rates_which_may_rise(cut: float) -> None:
    """The shares of the steps that accepted so many tokens are the same only where no text ends inside a draft."""
    truth = [0.6, 0.9, 0.5]
    cell = cell_of_steps(steps_of(drawn_steps(truth, 8000, 1, cut), 200), 3)
    assert cell.conditional == pytest.approx(truth, abs=0.03)
    assert cell.unconditional == pytest.approx(np.cumprod(truth).tolist(), abs=0.03)
    both = np.add(cell.histogram, cell.histogram_cut)
    shares = [both[place:].sum() / both.sum() for place in (1, 2, 3)]
    is_same = shares == pytest.approx(cell.unconditional)
    assert is_same == (cut == 0)


def test_intervals_hold_the_truth() -> None:
    """Of 40 profiles of 30 prompts, whose own rates vary: at least 85 % at each position (95 % minus 3 deviations)."""
    truth, inside, number = np.array([0.8, 0.7, 0.9]), np.zeros(3), 40
    draws = np.random.default_rng(0)
    for seed in range(number):
        steps = [steps_of(drawn_steps(np.clip(truth + draws.normal(0, 0.08, 3), 0, 1), 25, 100 * seed + prompt))
                 for prompt in range(30)]  # fmt: skip
        for prompt, each in enumerate(steps):
            each[:, 0] = prompt
        cell = cell_of_steps(np.concatenate(steps), 3)
        rates = [each.unconditional for each in cell.positions]
        inside += [rate.low <= value <= rate.high for rate, value in zip(rates, np.cumprod(truth), strict=True)]
    assert inside.min() >= 0.85 * number


def test_survival_knows_unknown_positions() -> None:
    found = survival(np.array([4.0, 2.0, 0.0, 3.0, 0.0, 0.0]))
    assert found.tolist() == [0.75, 0.0, 0.0]
    assert np.isnan(survival(np.array([4.0, 0.0, 3.0, 0.0]))[1])


def test_the_file_follows_its_schema_and_is_read_back(specbench, board: Path, demo: tuple[Row, ProfileEntry]) -> None:
    code, out, err = specbench("profile", f"{board}:sd", "--task", "mgsm", "--output", "p.json")
    assert code == 0 and "sd-k5" in out and "1 + Σ r" in out, err
    content = json.loads(Path("p.json").read_text(encoding="utf-8"))
    pytest.importorskip("jsonschema").validate(content, schema())
    code, out, _ = specbench("schema", "profile")
    assert code == 0 and json.loads(out) == schema()
    profile = read_profile(Path("p.json"))
    assert profile.entry("sd-k5").cell("language=sw").positions == demo[1].cell("language=sw").positions
    assert profile.model_dump(mode="json") == content


def test_methods_without_verdicts_are_left_out_with_a_reason(specbench, board: Path) -> None:
    code, _, err = specbench("profile", f"{board}:4")
    assert code == 2 and "no method has verdicts on draft tokens" in err and err.count("\n") == 1


def test_runs_of_one_condition_are_one_entry_and_a_run_named_twice_counts_once(board: Path) -> None:
    """Two tasks, with short and long prompts."""
    texts = [f"{board}:1", f"{board}:6"]
    again = f"{board.parent}/../{board.parent.name}/{board.name}:1"
    whole, twice = (profile_of_runs(each).entries for each in (texts, [*texts, again]))
    assert len(whole) == 1 and whole[0].cells == twice[0].cells
    names = ["total", "task=mgsm", "task=csqa", "subset=mgsm/en", "subset=csqa/default", "context=0-255"]
    assert [cell.name for cell in whole[0].cells] == [*names, "context=256-511"]
    contexts = [cell for cell in whole[0].cells if cell.by == "context"]
    assert sum(cell.steps for cell in contexts) == whole[0].cell().steps
    assert len(whole[0].sources) == len(twice[0].sources) == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere"], "'nowhere': no such folder or file"),
        (["BOARD:pdl"], "no rows of method 'pdl': did you mean 'pld'?"),
        (["BOARD:sd", "--subset", "eng"], "--subset eng"),
        (["BOARD:sd", "--cell", "language=de"], "--cell: has no effect without --export"),
        (["BOARD:sd", "--export", "vlm"], "--export vlm: did you mean 'vllm'?"),
        (["BOARD:sd", "--export", "vllm", "--lengths", "x"], "--lengths x: give numbers"),
        (["BOARD:sd", "--export", "vllm", "--json"], "--json: has no effect with --export"),
        (
            ["BOARD:1", "BOARD:5", "--export", "vllm"],
            "has several entries: give one as `entry` (on the command line --entry): sd-k5, pld-k10",
        ),
        (["BOARD:5", "--export", "vllm", "--entry", "pdl"], "has no entry 'pdl': did you mean 'pld'?"),
    ],
)
def test_a_mistake_is_one_line(specbench, board: Path, words: list[str], told: str) -> None:
    code, _, err = specbench("profile", *(word.replace("BOARD", str(board)) for word in words))
    assert code == 2 and told in err and err.count("\n") == 1


@pytest.mark.slow
def test_a_synthetic_run_reproduces_the_profile_that_it_reads(specbench) -> None:
    """`sd` of two models of one layer on two languages, then `synthetic` with its profile on the same prompts."""
    words = ["--task", "mgsm", "--subset", "en,de", "--limit", "4", "--warm-up", "0", "--data", "sample",
             "--target", "embedded:drafter", "--drafter", "embedded:drafter-scdf"]  # fmt: skip
    made = []
    for name, method in (("first", ["sd"]), ("second", ["synthetic", "--set", "drafter.profile=first.json"])):
        code, _, err = specbench("run", *words, "--method", *method, "--output", name)
        assert code == 0, err
        code, _, err = specbench("profile", name, "--output", f"{name}.json")
        assert code == 0, err
        made.append(read_profile(Path(f"{name}.json")).entry(None).cell())
    prescribed, found = (cell.mean_acceptance_length for cell in made)
    for given, own in ((prescribed.pooled, found.pooled), (prescribed.of_rates, found.of_rates)):
        # within four standard errors of this run: its interval, twice as wide
        assert 2 * (own.low - own.value) <= given.value - own.value <= 2 * (own.high - own.value)
    for own, given in zip(made[1].positions, made[0].positions, strict=True):
        rate = given.conditional.value
        assert own.conditional.value == pytest.approx(rate, abs=4 * (rate * (1 - rate) / own.verified) ** 0.5)
    assert json.loads(Path("second/run.json").read_text("utf-8"))["drafters"]["synthetic"]["name"].endswith(
        "after profile sd-k5 total"
    )
