"""The benchmark script runs on shapes of its own, and its tables say known figures."""

import pytest
from rich.table import Table

from specbench.decoding.loop import Generation
from specbench.decoding.proposal import Step
from specbench.models.causal_lm import ModelPair
from tests.limits import known_report
from tools.bench_limit import Setting, bounds_table, measure, random_model, rates_table


def cells(table: Table) -> list[list[str]]:
    return [[str(cell) for cell in column.cells] for column in table.columns]


@pytest.mark.slow
def test_every_row_is_made() -> None:
    target, drafter = (random_model("2 × 64", "float32", "cpu", seed=seed) for seed in range(2))
    setting = Setting(context=24, num_tokens=21, num_prompts=2, num_draft_tokens=3, rates=(0.0, 1.0))
    rate, measured, tau, expected, *_ = cells(rates_table(measure(ModelPair(target, drafter), setting), setting))
    assert (rate, measured) == (["0", "1"], ["0.000", "1.000"])
    assert (tau, expected) == (["1.00", "4.00"], ["1.00", "4.00"])


def generation(num_steps: int, accepted: int, drafted: int, seconds: float, verifying: float) -> Generation:
    """`num_steps` target passes of `verifying` seconds, each behind drafts of 0.1 s a token; `seconds` in all."""
    num_tokens = 1 + num_steps * (accepted + 1)
    return Generation(
        token_ids=[0] * num_tokens, finish="length",
        steps=[Step(drafted, min(drafted, accepted + 1), accepted, accepted + 1)] * num_steps, positions={},
        target_passes=[(drafted + 1, verifying)] * num_steps, draft_passes=[(1, 0.1)] * (drafted * num_steps),
        ttft_seconds=1.0, draft_prefill_seconds=0.0, decode_seconds=seconds,
    )  # fmt: skip


def test_speedups_stand_beside_their_formulas() -> None:
    """AR's 12 tokens in 12 s; 3 steps of 3 draft tokens, all accepted, at c = 0.1 and v = 1.7: 6 s. f is 4 / 1.3, with
    v 4 / 2."""
    found: dict[float | None, list[Generation]] = {
        None: [generation(12, 0, 0, 12.0, 1.0)], 1.0: [generation(3, 3, 3, 6.0, 1.7)],
    }  # fmt: skip
    table = rates_table(found, Setting(24, 13, 1, 3, rates=(1.0,)))
    assert str(table.title) == "synthetic, γ = 3: c = 0.100, v = 1.700 single passes; wanted: ÷ f from 0.9 to 1.1"
    assert cells(table) == [[each] for each in ("1", "1.000", "4.00", "4.00", "2.00", "3.08", "0.65", "2.00", "1.00")]


@pytest.mark.parametrize(("num_rounds", "interval"), [(3, ""), (9, " [{0}, {0}]")])
def test_what_is_wanted_stands_beside_what_is_so(num_rounds: int, interval: str) -> None:
    """Drafting is judged by drafting, 2 ms of 4, and not by the drafter alone, 2 of 2.5."""
    what, wanted, measured = cells(bounds_table(known_report(num_rounds)))
    assert (what[:3], wanted[:3]) == (["AR", "drafting", "the drafter alone"], ["≥ 0.75", "≥ 0.5", ""])
    assert measured[:3] == [share + interval.format(share) for share in ("0.71", "0.50", "0.80")]
    assert measured[3:] == ["0.89", "0.83"]
