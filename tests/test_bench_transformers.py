"""The benchmark script runs, on a small part of what it measures, and both sides emit the same tokens."""

from rich.table import Table

from tests.bench_transformers import embedded, long_context


def test_every_row_is_made() -> None:
    table = Table("what", "wanted", "ratio", "own", "other")
    embedded(table, num_prompts_per_language=1)
    long_context(table, context=48, num_prompts=1)
    what, _, ratios, *_ = (list(column.cells) for column in table.columns)
    assert len(what) == 6
    assert ratios[4] == "11 of 11"
    assert ratios[5].endswith("[no interval]")
