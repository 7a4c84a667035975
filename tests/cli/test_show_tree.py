"""The drawings of draft trees, look-ups and drafts of a varying length in `specbench show`, and of their steps."""

import re
from pathlib import Path

import pytest
import torch

from specbench.cli.help.method import drawing, first_sentence, tree_lines
from specbench.cli.show import help_lines
from specbench.core.environment import builtin_dir
from specbench.decoding.drafters.lookahead import Lookahead, largest_tree
from specbench.decoding.proposal import TreeProposal
from specbench.decoding.sampling import Sampling
from specbench.decoding.tree_shape import TreeShape, best_shape, regular_shape
from specbench.specs.catalogue import load_method, with_overrides
from specbench.specs.method import proposes_trees
from tests.support.toys import models


def test_a_tree_is_drawn_from_left_to_right() -> None:
    shape = regular_shape([2, 2])
    assert drawing(shape, set(range(6))) == [
        "last token─┬─1─┬─1",
        "           │   └─2",
        "           └─2─┬─1",
        "               └─2",
    ]
    assert drawing(shape, {0, 1, 2}) == ["last token─┬─1───1", "           └─2"]
    assert drawing(TreeShape((-1, -1), (-1, 0)), {0, 1}) == ["last token─┬─1", "           └─w"]


def test_a_large_tree_is_cut() -> None:
    lines = drawing(best_shape([0.5, 0.3, 0.2], 300, 8), set(range(300)))
    assert len(lines) == 25 and lines[-1].startswith("… and ") and lines[-1].endswith(" more paths")


@pytest.mark.parametrize(
    ("method", "by_depth", "num_own"),
    [
        ("sd-tree", [3, 6, 6, 6, 6], 0),
        ("token-recycling", [8, 21, 25, 15, 10, 1], 0),
        ("lookahead", [7, 7, 7, 7], 28),
        ("medusa", [10, 28, 23, 2], 0),
        ("eagle", [4, 8, 7, 5, 1], 0),
    ],
)
def test_every_method_with_trees_is_drawn(method: str, by_depth: list[int], num_own: int) -> None:
    text = "\n".join(help_lines(method))
    size = f"{sum(by_depth)} draft tokens on {len(by_depth)} levels ({', '.join(map(str, by_depth))})"
    assert f"tree: at most {size}; " in " ".join(text.split())
    assert (f"w: {num_own} tokens that the target reads only" in " ".join(text.split())) == bool(num_own)
    assert f"up to {sum(by_depth) + num_own} tokens of the tree" in " ".join(text.split())
    assert "a step:\n  1. draft: " in text and "\n  2. one pass: " in text and "\n  4. cache: " in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_fewer_draft_tokens_cut_the_drawing() -> None:
    _, (method,) = with_overrides([], [load_method("sd-tree")], ["num_draft_tokens=2"])
    text = " ".join(" ".join(tree_lines(method)).split())
    assert "9 draft tokens on 2 levels (3, 6)" in text and text.endswith("and one more: 1 to 3")


def test_a_tree_that_grows_is_an_example() -> None:
    text = "\n".join(help_lines("eagle3"))
    heading = "it grows as it is drafted; with example acceptance rates 0.5, 0.2, 0.1 by rank: 12 draft tokens"
    assert heading in " ".join(text.split())
    assert "1. draft: An EAGLE head drafts a tree; it grows as it is drafted" in " ".join(text.split())
    assert "up to 59 tokens of the tree" in text


@pytest.mark.parametrize("method", ["ar", "sd", "pld", "routed", "hf-sd", "draft-only"])
def test_other_methods_have_no_tree(method: str) -> None:
    assert not [*tree_lines(load_method(method))]


def test_the_tree_of_lookahead_is_that_of_its_drafter() -> None:
    """With a full window and as many guesses as it keeps."""
    drafter = Lookahead(models(), Sampling(), window=3, ngram=4, guesses=2)
    drafter.prefill([7, 8])
    drafter._pool = {8: {(1, 2, 3): None, (4, 5, 6): None}}
    drafter._levels = [[10, 11, 12], [13, 14, 15], [16, 17, 18]]
    tree = drafter.propose([7, 8], 3, torch.Generator())
    assert isinstance(tree, TreeProposal)
    shape = largest_tree(window=3, ngram=4, guesses=2)
    assert tuple(tree.parents) == shape.parents
    own = [node for node, rank in enumerate(shape.ranks) if rank < 0]
    assert own == list(range(6, 15)) and not any(tree.has_children(node) for node in own)
    assert [shape.ranks[node] for node in tree.children(-1)] == [0, 1]


def test_a_sentence_ends_before_a_capital() -> None:
    def code() -> None:
        """Draws one token (arXiv:1, Alg. 2). Then another."""

    assert first_sentence(code) == "Draws one token (arXiv:1, Alg. 2)"


@pytest.mark.parametrize(
    ("method", "said"),
    [("suffix", "0.1"), ("sam", "at least 5 tokens"), ("ngram-mod", "24"), ("pld", "at most 3 per matched token")],
)
def test_a_look_up_is_drawn(method: str, said: str) -> None:
    lines = help_lines(method)
    start = lines.index("a look-up:")
    assert [line for line in lines[start + 1 : start + 5] if line.startswith("  draft  ")]
    shown = " ".join(" ".join(lines[start:]).split())
    assert said in shown and "1. draft: Drafts" in shown and "rule exact_match" in shown
    assert f"1 to {load_method(method).num_draft_tokens + 1}" in shown


@pytest.mark.parametrize(
    ("method", "drafted", "end"),
    [
        ("sd-confidence", "yes yes yes yes", "the draft ends after token 4, which is kept"),  # 0.35 < 0.4
        ("sd-svip", "yes yes yes", "the draft ends after token 3, which is kept"),  # √(0.15 · 1.1) = 0.41
        ("sd-adaedl", "yes yes yes yes –", "the draft ends before token 5, of whose distribution a pass was made"),
    ],
)
def test_a_draft_of_a_varying_length_is_drawn(method: str, drafted: str, end: str) -> None:
    lines = help_lines(method)
    shown = [" ".join(line.split()) for line in lines[lines.index("an example:") :]]
    assert shown[4] == f"draft {drafted}"
    assert shown[5] == end
    assert "1. draft: A small language model" in " ".join(shown)
    assert "rule rejection" in " ".join(shown)


def test_a_schedule_is_drawn_by_its_drafts() -> None:
    lines = help_lines("sd-heuristic")
    shown = [" ".join(line.split()) for line in lines[lines.index("an example:") :]]
    assert shown[2] == "drafted 5 7 9 8 7"


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("mtp", "the target's last hidden state, behind its norm"),
        ("eagle3-chain", "joined of three"),
        ("eagle", "the target's last hidden state;"),
        ("eagle3", "joined of three"),
    ],
)
def test_the_chain_of_a_head_is_drawn(method: str, said: str) -> None:
    lines = help_lines(method)
    drawing = lines[lines.index("a draft:") + 1 :][:4]
    assert [line.split()[0] for line in drawing] == ["text", "state", "token", "draft"]
    shown = " ".join(" ".join(lines).split())
    is_tree = proposes_trees(load_method(method))
    read = "tokens of the tree" if is_tree else f"{load_method(method).num_draft_tokens} draft tokens"
    assert f"h is {said}" in shown and re.search(rf"up to (\d+ )?{read}", shown) and lines.count("a step:") == 1
    assert ("a draft pass for each level" in shown) == is_tree


def test_a_look_up_of_a_tree_has_one_step(tmp_path: Path) -> None:
    text = (builtin_dir("methods") / "suffix.yaml").read_text().replace("memory: prompt", "memory: prompt, tree: true")
    (tmp_path / "mine.yaml").write_text(text)
    lines = help_lines(str(tmp_path / "mine.yaml"))
    shown = " ".join(" ".join(lines).split())
    assert lines.count("a step:") == lines.count("a look-up:") == 1
    assert "gives a tree of its continuations" in shown and "it grows as it is drafted" in shown


@pytest.mark.parametrize(
    ("method", "said"),
    [("dflash", "no draft token depends"), ("dspark", "Markov"), ("domino", "GRU"), ("peagle", "causal")],
)
def test_a_block_is_drawn(method: str, said: str) -> None:
    lines = help_lines(method)
    start = lines.index("a block:")
    assert [line for line in lines[start + 1 : start + 5] if line.startswith("  draft ")]
    shown = " ".join(" ".join(lines[start:]).split())
    assert said in shown and "1. draft: A head drafts a block" in shown and "nothing was found" not in shown
