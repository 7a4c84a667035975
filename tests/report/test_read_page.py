"""docs/guide/read.md explains every line that tables print, and every warning."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import pytest

from specbench.core.table import Table
from specbench.report.captions import COUNTS_OF_ANSWERS, MARK, SHARES_OF_ANSWERS
from specbench.report.compare import compare, comparison_tables
from specbench.report.ranking import ranking_tables
from specbench.report.tables import RunRows, comparison_table, overview_table, run_table
from specbench.results.leaderboard import load
from specbench.results.metric_format import metric_of
from specbench.results.paired import RowWithRecords
from specbench.results.row import Row, RowWarning
from specbench.results.runs import ComparisonInput
from specbench.statistics.bootstrap import Estimate
from tests.support.report_rows import METRICS, row

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = (CHECKOUT / "docs" / "guide" / "read.md").read_text(encoding="utf-8")
EXPLAINED_ELSEWHERE = ("acceptance by depth", "answers of servers", "load by")  # titles of tables of other pages
LINES = PAGE.partition("## Every line below a table")[2].partition("\n## Contexts")[0]


def beginnings() -> list[re.Pattern[str]]:
    """The beginning of each line that the page explains. Words in capitals stand for anything."""
    spans = [" ".join(text.split()) for text in re.findall(r"`([^`]+)`", LINES)]
    told = [text for text in spans if " " in text and len(re.findall(r"[a-z]", text)) >= 4]  # no words, no `NAME: TEXT`
    return [re.compile(re.sub(r"\b(?:[A-Z]{2,}|N|A|B)\b", ".+?", re.escape(text))) for text in told]


BEGINNINGS = beginnings()


def is_explained(line: str) -> bool:
    return any(pattern.match(line) for pattern in BEGINNINGS)


def unexplained(tables: Iterable[Table], signatures: Iterable[str] = ()) -> list[str]:
    labels = [f"{text}: " for name in signatures for text in (name, metric_of(name).label)]
    return [
        line for table in tables for line in table.caption
        if not any(name in table.title for name in EXPLAINED_ELSEWHERE)
        and not line.startswith((f"{MARK} ", "tokenizer: ", "draft cost c: ", "verification cost v: ", *labels))
        and not is_explained(line)
    ]  # fmt: skip


def test_every_warning_has_a_line() -> None:
    section = PAGE.partition("## Warnings")[2].partition("\n## ")[0]
    found = {code for cell in re.findall(r"^\| (`.+?`) \|", section, re.M) for code in re.findall(r"`(\w+)`", cell)}
    assert found == set(get_args(RowWarning.model_fields["code"].annotation))


def test_every_note_on_answers_has_a_line() -> None:
    for text in (*COUNTS_OF_ANSWERS.values(), *SHARES_OF_ANSWERS.values()):
        assert is_explained(f"{text}: 3 in en"), text


CONTEXT = {"model": "org/drafter", "tokens": 512, "share_cut_ar": 0.25}
ROWS: dict[str, dict[str, Any]] = {
    "chat": {"chat": {"enable_thinking": False}, "template_date": "2024-07-26", "system": "Be brief."},
    "sampled": {"sampling": {"temperature": 1.0, "top_k": 50, "top_p": None},
                "coverage": {"available": 1319, "chosen": "first"}},
    "external": {"options": {"decoder": {"entry": "mine.py:make", "revision": "local-1", "options": {}}},
                 "verdict": "lossy by design"},
    "synthetic": {"options": {"drafter": {"type": "synthetic", "acceptance": 0.9}}},
    "memory": {"memory": "shuffled", "repeats": 5},
    "kept": {"options": {"drafter": {"type": "suffix", "memory": "run"}}},
    "ids": {"common_ids": {"org/drafter": {"common": 990, "target": 1000, "drafter": 1001}}},
    "cut": {"metrics": {**METRICS, **{name: Estimate(value=0.5) for name in (
        "share_cut_by_length", "share_cut_by_context", "share_truncated", "share_looping", "judge_score",
        "num_unscored", "draft_length", "oracle_share", "tree_nodes", "tree_depth", "language_share")}},
            "context": CONTEXT},
    "bridged": {"options": {"bridge": "string"}, "engine": "graphs", "n": 12},
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_every_line_about_a_row_is_explained(name: str) -> None:
    made = row(**{"metrics": METRICS, "quality": "accuracy", "lossless": True, **ROWS[name]})
    plain = row(metrics=METRICS, method="ar@1:0", num_draft_tokens=0)
    other = row(metrics=METRICS, method="sd@1:0", n=made.n)
    tables = [run_table([made]), comparison_table([plain, made]), overview_table([[plain, made], [plain, made]]),
              *ranking_tables({"0": RowWithRecords(made), "1": RowWithRecords(other)})]  # fmt: skip
    found = unexplained(tables)
    assert not found, f"docs/guide/read.md explains no line that begins so: {found}"


def test_every_line_of_a_comparison_is_explained(tmp_path: Path) -> None:
    first = row(metrics=METRICS, verdict="diverged", method="sd@1:0")
    second = row(metrics=METRICS, verdict="greedy equal", method="sd@1:0", seed=1, n=12)
    sides = [ComparisonInput(name, tmp_path / name, (each,)) for name, each in (("a", first), ("b", second))]
    assert not unexplained(comparison_tables(compare(*sides)))


def test_every_line_of_real_tables_is_explained() -> None:
    rows = load(CHECKOUT / "leaderboards" / "real.json")
    runs: dict[str, list[Row]] = {}
    for each in rows:
        runs.setdefault(f"{each.run}", []).append(each)
    tables = [table for own in runs.values() for table in RunRows(own).tables()]
    tables += ranking_tables({str(place): RowWithRecords(each) for place, each in enumerate(rows)})
    assert len(tables) > 100
    assert not sorted(set(unexplained(tables, {name for each in rows for name in each.signatures})))


def test_control_a_line_that_nobody_explains_is_found() -> None:
    assert not is_explained("the moon was full") and is_explained("target org/target (ffff)")
    assert is_explained("graphs: sd; do not compare rows of different engines")
    assert not is_explained("graphs: sd; of another engine")
