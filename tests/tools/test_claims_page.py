"""The page of published speed-ups: written from the claims and the archived records as they are."""

from pathlib import Path

import pytest

from specbench.analysis.claims.claim import public_claims, read_claim
from tools.claims import HEAD, MEASURED, PAGE, claims_part, explanations, page, series_part

TEXT = PAGE.read_text(encoding="utf-8")
CLAIMS = list(public_claims().values())
AGAIN = "claims or explanations have changed: `python -m tools.claims --write` writes the page anew"


def test_the_page_has_the_claims_as_they_are() -> None:
    assert TEXT.startswith(HEAD), AGAIN
    assert claims_part(CLAIMS, [read_claim(claim) for claim in CLAIMS]) in TEXT, AGAIN
    assert series_part(CLAIMS) in TEXT, AGAIN


def test_the_page_has_a_gap_for_each_measured_row() -> None:
    for name, runs in MEASURED.items():
        assert all(f"- `{name}`, `{run}`: Of the factor" in TEXT for run in runs), AGAIN


def test_a_series_gives_the_cost_of_a_draft_token() -> None:
    """R = a + b · k of EAGLE-3 in vLLM, by the normal equations: k is 2, 4 and 7."""
    costs = [2.36 * 4.32 / 7.07, 3.08 * 4.05 / 7.07, 3.54 * 4.29 / 7.07]  # τ · TPOT ÷ TPOT of AR
    slope = (-7 * costs[0] - costs[1] + 8 * costs[2]) / 38
    start = sum(costs) / 3 - slope * 13 / 3
    line = next(line for line in series_part(CLAIMS).splitlines() if "`eagle3-vllm`" in line)
    assert line.endswith(f"| {start:.2f} | {slope:.3f} |")


@pytest.mark.slow
def test_the_page_is_that_of_the_archived_records(tmp_path: Path) -> None:
    assert page(CLAIMS, list(explanations(tmp_path))) == TEXT, AGAIN
