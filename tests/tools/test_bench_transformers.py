"""The benchmark script runs, on a small part of what it measures, and all sides emit the same tokens."""

import pytest

from tools import bench_transformers
from tools.bench_transformers import PAIRS, bridges, embedded, long_context


@pytest.fixture(autouse=True)
def few_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of two languages."""
    made = bench_transformers.embedded_prompts
    monkeypatch.setattr(bench_transformers, "embedded_prompts", lambda *arguments: made(*arguments)[::6])


@pytest.mark.slow
def test_every_row_is_made() -> None:
    rows = [*embedded(num_prompts_per_language=1, max_new_tokens=6), long_context(context=48, num_prompts=1)]
    ratios = [row[2] for row in rows]
    assert len(rows) == 6
    assert ratios[4] == "2 of 2"
    assert float(ratios[5]) > 0, "one prompt has no interval"


@pytest.mark.slow
def test_bridges_and_prompt_lookup_write_what_transformers_own_write() -> None:
    """One row of speeds and one of equal outputs for each: ours, theirs and AR's."""
    rows = list(bridges(num_prompts_per_language=1, max_new_tokens=5))
    assert len(rows) == 2 * len(PAIRS)
    for row, name in zip(rows[::2], PAIRS, strict=True):
        assert f"({name})" in row[0]
    assert [row[2] for row in rows[1::2]] == ["2 of 2"] * len(PAIRS)
