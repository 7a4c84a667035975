"""The benchmark script runs on shapes of its own, and says what it measured."""

from rich.table import Table

from specbench.limit.measuring import Asked, limits_of
from specbench.models.pair import ModelPair
from tests.bench_limit import Setting, bounds_table, measure, random_model, rates_table


def cells(table: Table) -> list[list[str]]:
    return [[str(cell) for cell in column.cells] for column in table.columns]


def test_every_row_is_made() -> None:
    target, drafter = (random_model("2 × 64", "float32", "cpu", seed=seed) for seed in range(2))
    setting = Setting(context=24, num_tokens=21, num_prompts=2, num_draft_tokens=3, rates=(0.0, 1.0))
    rate, measured, tau, expected, *_ = cells(rates_table(measure(ModelPair(target, drafter), setting), setting))
    assert (rate, measured) == (["0", "1"], ["0.000", "1.000"])
    assert (tau, expected) == (["1.00", "4.00"], ["1.00", "4.00"])
    asked = Asked(target.name, drafter.name, 24, 1, 0, "float32", "cpu", "eager")
    what, wanted, shares = cells(bounds_table(limits_of(target, drafter, asked, lambda text: None)))
    assert len(what) == 4 and wanted[1::2] == ["≥ 0.75", "≥ 0.5"] and all(float(share) >= 0 for share in shares)
