"""The functions that call other packages' verifiers, and the table of docs/guide/verifiers.md."""

from pathlib import Path

import pytest

from tools import public_verifiers
from tools.public_verifiers import VERIFIERS, line_of

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guide" / "verifiers.md").read_text(encoding="utf-8")


def test_the_page_has_a_line_for_each() -> None:
    for verifier in VERIFIERS:
        assert f"| {verifier.package}, {verifier.what} |" in PAGE
        assert f"| {verifier.kind} | " in PAGE


@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda verifier: verifier.function.__name__)
def test_each_is_called_if_it_is_installed(
    verifier: public_verifiers.Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(public_verifiers, "DRAWS", 60)
    name, number, kind, result, p_value = line_of(verifier)
    assert name.startswith(verifier.package) and kind == verifier.kind
    if number == "–":
        assert (result, p_value) == ("not installed", "–") and verifier.package != "transformers"
    elif verifier.function is not public_verifiers.ascend_block:  # which fails, as the page says
        assert result.split()[0] == result.split()[2] and float(p_value) > 1e-4
