"""Milliseconds per token by part, and the line that says why a higher acceptance rate is slower."""

import pytest
from rich.console import Console

from specbench.report.breakdown import breakdown_table, explanation_line, per_token
from specbench.statistics.bootstrap import Estimate
from tests.support.rows import row as leaderboard_row

PARTS = ("draft", "verify", "rule", "tokenizer", "other")


def row(name, speedup, alpha, parts, tau=2.0, c=0.1, interval=(None, None), **changes):
    """A method with 100 tokens of which each takes the sum of the parts, in seconds; AR takes 10 ms a token."""
    seconds = dict(zip(PARTS, parts, strict=True))
    overhead = None if None in parts[2:] else sum(parts[2:])
    values = {
        "acceptance_rate": alpha, "mean_acceptance_length": tau, "cost_ratio": c, "speedup": speedup,
        "tokens_per_second": 100 * speedup, "overhead_seconds": overhead,
        **{f"{part}_seconds": value for part, value in seconds.items()},
    }  # fmt: skip
    metrics = {key: Estimate(value=value) for key, value in values.items()}
    metrics["speedup"] = Estimate(value=speedup, low=interval[0], high=interval[1])
    if c is not None:
        metrics["speedup_expected"] = Estimate(value=1.0)
    return leaderboard_row(method=f"{name}@1:0", metrics=metrics, **changes)


AR = row("ar", 1.0, None, (0.0, 0.8, 0.1, 0.0, 0.1), tau=1.0, c=None)
SD = row("sd", 1.1, 0.74, (0.5, 0.3, 0.05, 0.0, 0.0591), tau=3.0, c=0.42)
FSD = row("ngram", 1.6, 0.61, (0.02, 0.5, 0.05, 0.0, 0.055), tau=2.5, c=0.01)
OLD = row("old", 1.2, 0.5, (0.1, 0.5, None, None, None))


def rendered(rows):
    console = Console(width=100, force_terminal=False, no_color=True)
    with console.capture() as capture:
        console.print(breakdown_table(rows))
    return capture.get()


def test_the_parts_sum_to_what_the_speed_says() -> None:
    spent = per_token(SD)
    assert spent["all"] == pytest.approx(1000 / 110)
    assert sum(spent[part] for part in ("draft", "verify", "rule and sampling", "tokenizer", "other")) == pytest.approx(
        spent["all"]
    )
    assert spent["draft"] == pytest.approx(1000 / 110 * 0.5 / 0.9091)


def test_the_table_fits_and_rows_without_parts_keep_their_whole() -> None:
    text = rendered([AR, SD, FSD, OLD])
    assert all(len(line) <= 100 for line in text.splitlines())
    lines = [line.split() for line in text.splitlines()]
    assert ["ar", "10.00", "0.00", "8.00", "1.00", "0.00", "1.00", "0%", "–", "–", "–"] in lines
    assert ["sd", "9.09", "5.00", "3.00", "0.50", "0.00", "0.59", "55%", "0.740", "0.420", "–"] in lines
    assert ["old", "8.33", *["–"] * 6, "0.500", "0.100", "–"] in lines


def test_a_higher_rate_that_is_slower_is_explained_by_its_largest_part() -> None:
    said = "sd (α 0.74, 1.10×) is slower than ngram (α 0.61, 1.60×): 4.8 ms more per token for draft"
    assert explanation_line([AR, SD, FSD]) == said
    verifying = row("sd", 1.1, 0.74, (0.02, 0.8, 0.05, 0.0, 0.06), tau=1.7)
    assert str(explanation_line([AR, verifying, FSD])).endswith("for verify")


def test_only_what_compares_is_compared() -> None:
    """Not across bridges, not with a prescribed rate, and not where the intervals overlap."""
    slow, fast = (0.5, 0.3, 0.05, 0.0, 0.0591), (0.02, 0.5, 0.05, 0.0, 0.055)
    over = row("slrs", 1.1, 0.74, slow, options={"bridge": "string"})
    assert explanation_line([AR, over, FSD]) is None
    synthetic = row("synthetic", 1.1, 0.9, slow, options={"drafter": {"type": "synthetic", "acceptance": 0.9}})
    assert explanation_line([AR, synthetic, FSD]) is None
    best = row("ngram", 1.6, 0.61, fast, interval=(1.4, 1.8))
    near, apart = ((row("sd", 1.1, 0.74, slow, interval=(1.0, high)), best) for high in (1.5, 1.3))
    assert explanation_line([AR, *near]) is None and "sd (α 0.74" in str(explanation_line([AR, *apart]))
    assert explanation_line([AR, row("sd", 0.9, 0.74, slow, interval=(0.7, 1.1))]) is None


def test_the_cost_of_verifying_is_a_mean_pass_in_passes_of_the_baseline() -> None:
    """Forty steps of 0.02 s, where a pass of the baseline takes 0.008 s: v = 2.5."""
    plain = row("ar", 1.0, None, (0.0, 0.8, 0.1, 0.0, 0.1), c=None, accepted_tokens_per_step=(100,), num_draft_tokens=0)
    method = row("sd", 0.9, 1.0, (0.2, 0.8, 0.05, 0.0, 0.05), c=0.1, accepted_tokens_per_step=(10, 30))
    assert "1.000 0.100 2.50" in " ".join(rendered([plain, method]).split())


def test_what_is_slower_than_the_baseline_is_explained_and_nothing_else() -> None:
    slow = row("sd", 0.8, 0.74, (0.75, 0.4, 0.05, 0.0, 0.05), c=0.6)
    said = "sd (α 0.74, 0.80×) is slower than ar (α –, 1.00×): 7.5 ms more per token for draft"
    assert explanation_line([AR, slow]) == said
    tokenizing = row("slem", 0.8, 0.74, (0.1, 0.4, 0.05, 0.6, 0.1))
    assert str(explanation_line([AR, tokenizing])).endswith("6.0 ms more per token for tokenizer")
    assert explanation_line([AR, SD]) is None and explanation_line([AR]) is None


def test_answers_of_one_token_have_no_pass_to_compare_with() -> None:
    """A model that ends every answer at once."""
    rows = [AR.model_copy(update={"accepted_tokens_per_step": (0,)}), SD]
    assert any(
        line.split()[:1] == ["sd"] and line.endswith("–") for line in map(str.rstrip, rendered(rows).splitlines())
    )
