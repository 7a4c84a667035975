"""Which part of its data a row measured, and how that is told."""

from typing import Any

import pytest

from specbench.report.tables import comparison_table
from specbench.results.row import Coverage, RowCoverage, may_be, told_examples
from specbench.results.rows import MeasuredSubset, coverage_of
from specbench.running.execute import coverage_of as coverage_of_data
from specbench.tasks.examples import NO_SHOTS, Example, TaskData
from tests.support.rows import row

WORDS: list[tuple[int, dict[str, Any] | None, str, str]] = [
    (30, {"available": 1319, "chosen": "first"}, "hub", "the first 30 of 1,319 examples"),
    (6, {"available": 24, "chosen": "first"}, "sample", "the first 6 of 24 examples of the bundled sample"),
    (1319, {"available": 1319, "chosen": "all"}, "local", "all 1,319 examples of the data"),
    (8, {"available": 8, "chosen": "all"}, "sample", "all 8 examples of the bundled sample"),
    (30, {"available": None, "chosen": "first"}, "hub", "the first 30 examples, total unknown"),
    (30, {"available": 1319, "chosen": "part"}, "local", "30 chosen ones of 1,319 examples"),
    (30, None, "local", "30 examples"),
    (1, None, "sample", "1 example of the bundled sample"),
]  # fmt: skip


@pytest.mark.parametrize(("number", "coverage", "source", "words"), WORDS)
def test_the_words_tell_number_and_choice(
    number: int, coverage: dict[str, Any] | None, source: str, words: str
) -> None:
    assert told_examples(number, coverage and Coverage.model_validate(coverage), source) == words


@pytest.mark.parametrize(
    ("number", "available", "chosen", "is_possible"),
    [(6, 24, "first", True), (6, 24, "part", True), (6, 6, "all", True), (6, None, "first", True),
     (6, 24, "all", False), (6, 6, "first", False), (6, 5, "first", False), (6, None, "all", False)],
)  # fmt: skip
def test_a_coverage_that_cannot_be_is_refused(
    number: int, available: int | None, chosen: Any, is_possible: bool
) -> None:
    coverage = {"available": available, "chosen": chosen}
    assert may_be(number, Coverage.model_validate(coverage)) == is_possible
    if not is_possible:
        with pytest.raises(ValueError, match=r"coverage: .* does not go with"):
            row(n=number, coverage=coverage)
        with pytest.raises(ValueError, match=r"coverage: .* does not go with"):
            part(number, coverage)


def part(number: int, coverage: Any, subset: str = "en") -> MeasuredSubset:
    return MeasuredSubset(
        task="mgsm", subset=subset, num_examples=number, coverage=coverage, source="local", location="x", revision="1",
        worked=NO_SHOTS,
    )  # fmt: skip


def test_subsets_together_have_the_sum_or_what_is_known() -> None:
    some, whole = {"available": 250, "chosen": "first"}, {"available": 6, "chosen": "all"}
    unknown, chosen = {"available": None, "chosen": "first"}, {"available": 9, "chosen": "part"}

    def joined(*coverages: Any) -> RowCoverage | None:
        return coverage_of([part(6, each) for each in coverages], 11)

    assert joined(some, whole) == RowCoverage(available=256, chosen="first", subsets=11)
    assert joined(whole, whole) == RowCoverage(available=12, chosen="all", subsets=11)
    assert joined(some, unknown) == RowCoverage(available=None, chosen="first", subsets=11)
    assert joined(some, chosen) == RowCoverage(available=259, chosen="part", subsets=11)
    assert joined(some, None) is None  # a measurement of an earlier version


def test_what_data_has_more_of_is_the_first_or_a_part() -> None:
    examples = [Example(index, str(index), ("x",), (None,)) for index in range(4)]

    def of(chosen: list[Example], num_rows: int | None) -> Coverage:
        return coverage_of_data(TaskData("local", "x", None, tuple(chosen), num_rows=num_rows))

    assert of(examples, 4) == Coverage(available=4, chosen="all")
    assert of(examples[:3], 4) == Coverage(available=4, chosen="first")
    assert of(examples[1:], 4) == Coverage(available=4, chosen="part")
    assert of(examples, None) == Coverage(available=None, chosen="first")


def test_tables_tell_the_part_that_was_measured() -> None:
    coverage = RowCoverage(available=1500, chosen="first", subsets=11)
    rows = [row(subset="all", subsets={"en": 8, "ja": 8}, coverage=coverage, method=f"{name}@1:0123456789ab")
            for name in ("ar", "fsd")]  # fmt: skip
    told = "the first 16 of 1,500 examples of the bundled sample, in 2 of 11 subsets"
    assert rows[0].told_examples == told
    assert f"measured: {told}" in comparison_table(rows).caption
    plain = [each.model_copy(update={"coverage": None}) for each in rows]
    assert not any("measured:" in str(line) for line in comparison_table(plain).caption)
