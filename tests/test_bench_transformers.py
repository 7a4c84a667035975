"""The benchmark script runs, on a small part of what it measures, and all sides emit the same tokens."""

import pytest
from rich.table import Table

from tools import bench_transformers
from tools.bench_transformers import PAIRS, bridges, embedded, long_context


@pytest.fixture(autouse=True)
def few_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of two languages."""
    made = bench_transformers.embedded_prompts
    monkeypatch.setattr(bench_transformers, "embedded_prompts", lambda *arguments: made(*arguments)[::6])


def columns(table: Table) -> list[list[str]]:
    return [[str(cell) for cell in column.cells] for column in table.columns]


@pytest.mark.slow
def test_every_row_is_made() -> None:
    table = Table("what", "wanted", "ratio", "own", "other")
    embedded(table, num_prompts_per_language=1, max_new_tokens=6)
    long_context(table, context=48, num_prompts=1)
    what, _, ratios, *_ = columns(table)
    assert len(what) == 6
    assert ratios[4] == "2 of 2"
    assert ratios[5].endswith("[no interval]")


@pytest.mark.slow
def test_bridges_and_prompt_lookup_write_what_transformers_own_write() -> None:
    """One row of speeds and one of equal outputs for each: ours, theirs and AR's."""
    table = Table("what", "wanted", "ratio", "own", "other")
    bridges(table, num_prompts_per_language=1, max_new_tokens=5)
    what, _, ratios, *_ = columns(table)
    assert len(what) == 2 * len(PAIRS)
    for row, name in enumerate(PAIRS):
        assert f"({name})" in what[2 * row]
    assert ratios[1::2] == ["2 of 2"] * len(PAIRS)
