"""docs/measured/trees.md is what tools/trees.py writes: its commands, its table of rules, and a tiny run."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from specbench.core.registry import RULES
from tests.support.processes import subprocess_in_process
from tools import trees
from tools.trees import DRAFT_PROBS, DRAWS, HEAD, METHODS, NUM_CHILDREN, PAGE, TARGET_PROBS, chances, rules_part

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_page_names_its_commands() -> None:
    assert TEXT.startswith(HEAD) and "python -m tools.trees --write" in HEAD
    methods, *speeds = (shlex.split(line) for line in TEXT.splitlines() if line.startswith("specbench run"))
    assert tuple(methods[methods.index("--method") + 1].split(",")) == METHODS
    assert [words[words.index("--method") + 1] for words in speeds] == ["sd,eagle3-chain", "sd,sd-block"]
    assert all(words[words.index("--threads") + 1] == "1" for words in (methods, *speeds))
    assert speeds[1][-2:] == ["--set", "generation.temperature=1"]


def test_a_row_of_the_table_of_rules_is_computed_again() -> None:
    accepted, variation = trees.exact("block", "independent", trees.CHAIN)
    assert variation < 1e-12
    assert f"| `block` | yes | chain of 3 | independent | {accepted:.4f} | < 1e-12 |" in TEXT


@pytest.mark.slow
def test_the_table_of_rules_is_computed_again() -> None:
    assert TEXT.endswith(rules_part() + "\n"), "`python -m tools.trees --write-rules` writes this part anew"


def test_the_chances_are_the_published_formulas_and_at_most_the_optimum() -> None:
    """Fixed children: p of both; one draw: Σ min(p, q); the most probable token and one of the others."""
    pairs = list(zip(TARGET_PROBS, DRAFT_PROBS, strict=True))
    rest = sum(min(p, q / (1 - DRAFT_PROBS[0])) for p, q in pairs[1:])
    expected = {
        ("exact_match", "fixed", NUM_CHILDREN): sum(TARGET_PROBS[:2]),
        ("block", "independent", 1): sum(min(pair) for pair in pairs),
        ("greedy_multi_draft", "top_and_one", NUM_CHILDREN): TARGET_PROBS[0] + rest,
    }
    for place, value in expected.items():
        assert chances(*place) == pytest.approx((value, value)), place  # type: ignore[arg-type]
    for rule in ("exact_match", "recursive_rejection", "k_seq", "traversal", "best_path_block"):
        for draws in (each for each in DRAWS if each in (RULES.features(rule).draws or DRAWS)):
            found = chances(rule, draws, NUM_CHILDREN)
            assert found is not None and 0 < found[0] <= found[1] + 1e-9, (rule, draws)


def test_the_exact_laws_tell_the_rules_apart() -> None:
    accepted = {rule: trees.exact(rule, "independent", trees.CHAIN) for rule in trees.CHAIN_RULES}
    assert accepted["block"][0] > accepted["rejection"][0] + 0.05
    assert accepted["block"][0] == pytest.approx(accepted["traversal"][0])
    assert accepted["block"][0] == pytest.approx(accepted["best_path_block"][0])
    for rule in trees.CHAIN_RULES:
        assert (accepted[rule][1] < 1e-12) == RULES.features(rule).lossless


@pytest.mark.slow
def test_the_page_of_a_tiny_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, specbench: Callable[..., tuple[int, str, str]]
) -> None:
    monkeypatch.setattr(trees, "subprocess", subprocess_in_process(specbench))
    monkeypatch.setattr(trees, "METHODS", ("sd", "eagle3-chain"))
    short = {"--method": "sd", "--limit": "1", "--draws": "20"}
    audit = [short.get(before, word) for before, word in zip(("", *trees.AUDIT), trees.AUDIT, strict=False)]
    monkeypatch.setattr(trees, "AUDIT", audit)
    words = trees.run_words

    def shorter(tasks: list[str], methods: list[str], subsets: int, limit: int, *more: str) -> list[str]:
        return [*words(tasks, methods, 1, limit, *more), "--set", "generation.max_new_tokens=6"]

    monkeypatch.setattr(trees, "run_words", shorter)
    text = trees.page(tmp_path, ["mgsm"], 1, (1, 5), 2)
    assert "Prompts: 1 of mgsm." in text and text.startswith(HEAD)
    cells = {line.split(" | ")[0][2:]: line.rstrip(" |").split(" | ")[1:] for line in text.splitlines() if "| " in line}
    for method in ("sd", "eagle3-chain"):
        assert re.search(rf"^\| {method} \| \d\.\d\d · \d+\.\d\d · greedy equal ", text, re.MULTILINE)
    assert re.search(r"^\| sd \| (lossless|undecided) \| 1/1 \| \d+ \| \d+ \| ", text, re.MULTILINE)
    ratio = r"\d+\.\d{3} \[\d+\.\d{3}, \d+\.\d{3}\]"
    for name in ("eagle3-chain ÷ sd, mgsm, temperature 0", "sd-block ÷ sd, mgsm, temperature 1"):
        assert re.fullmatch(ratio, cells[name][1]), name
