"""Tuning the shape of draft trees: chances and costs from records, the best size and depth, and a file that runs."""

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specbench.analysis.tuning.tune import (
    Shape,
    TreeCosts,
    candidate_shapes,
    chances_by_level,
    chances_by_rank,
    has_shape,
    measure_costs,
    node_chances,
    rank_shapes,
    read_chances,
    with_shape,
)
from specbench.cli.run import run
from specbench.core.errors import ConfigError
from specbench.decoding.tree_shape import best_shape
from specbench.models.loading import load_model
from specbench.records.generation import Generation
from specbench.specs.catalogue import load_file, load_method
from specbench.specs.method import MethodSpec
from tests.support.heads import saved_head
from tests.support.records import generation, record
from tests.support.tuning import call as call

CHANCES = [0.6, 0.2, 0.1]


def most_tokens(num_nodes: int, depth: int, chances: list[float]) -> float:
    """The dynamic programme of arXiv:2402.12374: the largest expected number of accepted tokens."""

    @functools.cache
    def below(size: int, levels: int, rank: int) -> float:
        """Of the children of a node from this rank on, given their nodes in all and the levels below the node."""
        if size == 0 or levels == 0 or rank == len(chances):
            return 0.0
        return max(
            chances[rank] * (1 + below(own, levels - 1, 0)) + below(size - 1 - own, levels, rank + 1)
            for own in range(size)
        )

    return below(num_nodes, depth, 0)


@pytest.mark.parametrize("chances", [CHANCES, [0.9, 0.05], [0.3, 0.29, 0.28, 0.1]])
def test_the_best_shape_is_that_of_the_dynamic_programme(chances: list[float]) -> None:
    for num_nodes in range(1, 13):
        for depth in range(1, 6):
            shape = best_shape(chances, num_nodes, depth)
            found = sum(node_chances(shape.parents, [chances[rank] for rank in shape.ranks]))
            assert found == pytest.approx(most_tokens(num_nodes, depth, chances))


def test_the_size_and_the_depth_follow_from_the_costs() -> None:
    """Free drafts and verification: as many nodes as there may be. Costly levels: wide trees; costly nodes: few."""
    free = TreeCosts({0.0: 1.0, 64.0: 1.0}, (0.0, 0.0))
    assert rank_shapes([CHANCES] * 16, free, 24)[0].num_nodes == 24
    deep, flat = (
        rank_shapes([CHANCES] * 16, TreeCosts({0.0: 1.0, 24.0: 1.0}, (0.0, cost)), 24)[0] for cost in (0.01, 0.5)
    )
    assert deep.depth > flat.depth
    steep = rank_shapes([CHANCES] * 16, TreeCosts({0.0: 1.0, 64.0: 65.0}, (0.0, 0.0)), 24)[0]
    assert steep.num_nodes == 1
    best = rank_shapes([CHANCES] * 16, free, 8)[0]
    assert best.speed == pytest.approx(1 + most_tokens(8, 8, CHANCES))


def test_costs_between_sizes_are_interpolated() -> None:
    costs = TreeCosts({0.0: 1.0, 4.0: 1.2, 8.0: 2.0}, (0.1, 0.05))
    assert costs.step(2, 0) == pytest.approx(1.1 + 0.1)
    assert costs.step(6, 3) == pytest.approx(1.6 + 0.1 + 0.15)


def trees(size: int, depth: int, draft: float, verify: float, rest: float, steps: int = 4, **lists: Any) -> Generation:
    """Steps of one size and depth, with their seconds."""
    passes = {"target": [(size + 1, verify)] * steps, "draft": [(1, draft)] * (depth * steps)}
    return generation(
        steps=[[depth, 1, 0, 1]] * steps, decode_seconds=steps * (depth * draft + verify + rest), passes=passes,
        tree_nodes=[size] * steps, **{"tree_ranks": [[steps, 0]] * 2, **lists},
    )  # fmt: skip


PLAIN = generation(steps=[[0, 0, 0, 1]] * 4, decode_seconds=8.8, passes={"target": [(1, 2.0)] * 4, "draft": []})


def test_costs_are_those_of_the_records() -> None:
    """In target passes of 2 s: a level of drafts takes 0.2, and AR's step 1.1."""
    made = {"small": [trees(4, 2, 0.4, 2.4, 0.2)], "large": [trees(16, 5, 0.4, 4.0, 0.6)]}
    costs = measure_costs(made, [PLAIN])
    assert costs.verifying == pytest.approx({0.0: 1.1, 4.0: 1.3, 16.0: 2.3})
    assert costs.drafting == pytest.approx((0.0, 0.2), abs=1e-9)
    same = measure_costs({"one": [trees(4, 2, 0.4, 2.4, 0.2)], "two": [trees(8, 2, 0.4, 2.4, 0.2)]}, [PLAIN])
    assert same.drafting == pytest.approx((0.4, 0.0)), "trees of one depth show no cost of a level"


def test_chances_are_pooled_and_fall() -> None:
    own = [{"tree_ranks": [[50, 30], [40, 4], [30, 6]]}, {"tree_ranks": [[50, 30], [10, 1], [10, 2], [10, 9]]}, {}]
    assert chances_by_rank([each.get("tree_ranks", []) for each in own]) == [0.6, 0.1, 0.1], (
        "the third may not exceed the second; the fourth has too few"
    )
    assert chances_by_rank([[[90, 0]]]) == [] == chances_by_rank([[]])


def test_chances_of_each_level() -> None:
    levels = [[[40, 30], [40, 4]], [[30, 3]], [[3, 3]]]
    own = [generation(tree_levels=levels), generation(tree_levels=[[[60, 20]]]), generation()]
    assert chances_by_level(own) == [[0.5, 0.1], [0.1]], "the third level was verified too rarely"
    assert chances_by_level([generation()]) == []
    made = with_shape(load_method("medusa"), 4, [[0.5, 0.4], [0.9], [0.1]])
    assert made.drafter.options["head_chances"] == [[0.5, 0.4], [0.9]] and made.num_draft_tokens == 2
    best = rank_shapes([[0.5, 0.4], [0.9], [0.1]], TreeCosts({0.0: 1.0, 9.0: 1.0}, (0.0, 0.0)), 4)[0]
    assert (best.num_nodes, best.depth) == (4, 2) and best.speed == pytest.approx(1 + 0.5 + 0.4 + 0.45 + 0.36)


def test_a_second_run_tries_the_best_and_its_neighbours() -> None:
    ranked = [Shape(n, 3, speed) for n, speed in ((16, 3.0), (15, 2.9), (32, 2.8), (8, 2.7), (33, 2.6))]
    assert [shape.num_nodes for shape in candidate_shapes(ranked)] == [16, 8, 32]
    assert [shape.num_nodes for shape in candidate_shapes(ranked[:2])] == [16]


def test_which_methods_have_a_shape() -> None:
    names = ("sd-tree", "token-recycling", "eagle", "eagle2", "medusa", "sd", "lookahead", "routed", "hf-sd", "fsd")
    assert [name for name in names if has_shape(load_method(name))] == [
        "sd-tree", "token-recycling", "eagle", "medusa",
    ]  # fmt: skip
    made = with_shape(load_method("sd-tree"), 3, [CHANCES] * 9)
    assert made.drafter.options["widths"] is None and made.drafter.options["depth"] == made.num_draft_tokens == 3
    assert made.name == "nodes-3-depth-3"


def test_a_tree_is_tuned_and_its_file_runs(call: Callable[..., tuple[str, str]], tiny_pair: tuple[str, str]) -> None:
    """A model that drafts for itself: the first child is always the accepted one, so that a chain is best."""
    same = {"drafter": tiny_pair[0], "overrides": ["generation.max_new_tokens=10"]}
    _, err = call("sd-tree", output="my-tree.yaml", sizes="2,6", **same)
    said = " ".join(err.split())
    assert "acceptance by rank: 1.000" in said and re.search(r"drafting [0-9.]+ \+ [0-9.]+ per level", said)
    assert re.search(r"draft tokens: \d on \d levels is the fastest", said)
    spec = load_file("my-tree.yaml")
    assert isinstance(spec, MethodSpec) and spec.drafter.options["rank_chances"] == [1.0]
    assert spec.drafter.options["num_nodes"] == spec.drafter.options["depth"] == spec.num_draft_tokens <= 6
    assert spec.calibration is not None and "sizes-2-6" in {path.name for path in Path(".").rglob("sizes-2-6")}
    run(task="mgsm", method="my-tree.yaml", target=tiny_pair[0], drafter=tiny_pair[0], data=".", subsets="en",
        limit=6, overrides=["generation.max_new_tokens=2"], output=Path("out"))  # fmt: skip


def test_the_levels_are_those_that_were_measured() -> None:
    """Chances are the same at all levels, but a level that no tree had is not chosen, however cheap it would be."""
    levels = [[[40, 36]], [[40, 34]]]
    own = trees(4, 2, 0.4, 2.4, 0.2, tree_ranks=[[80, 70], [80, 5]], tree_levels=levels)
    run_ = SimpleNamespace(records=[record({"ar": PLAIN, "small": own, "large": own})])
    chances, _ = read_chances(run_, ["small", "large"], by_level=False)  # type: ignore[arg-type]
    assert chances == [[0.875, 0.0625]] * 2
    free = TreeCosts({0.0: 1.0, 64.0: 1.0}, (0.0, 0.0))
    assert max(shape.depth for shape in rank_shapes(chances, free, 24)) == 2


def test_the_size_of_a_growing_tree_is_tuned(
    call: Callable[..., tuple[str, str]], tiny_pair: tuple[str, str], tmp_path: Path
) -> None:
    head = saved_head("eagle", load_model(tiny_pair[0]), tmp_path / "head")
    overrides = ["generation.max_new_tokens=8", f"drafter.path={head}", "drafter.top_k=3"]
    _, err = call("eagle2", output="my-tree.yaml", sizes="3,9", drafter=None, overrides=overrides)
    spec = load_file("my-tree.yaml")
    assert isinstance(spec, MethodSpec) and spec.drafter.options["num_nodes"] in (3, 9)
    assert f"draft tokens: {spec.drafter.options['num_nodes']} is the fastest" in err
    records = next(Path(".").rglob("draft-tokens-3-9/records.jsonl")).read_text("utf-8").splitlines()
    nodes = [json.loads(line)["methods"][f"draft-tokens-{size}"]["tree_nodes"] for line in records for size in (3, 9)]
    assert max(nodes[0]) == 3 < max(nodes[1]) <= 9
    levels = min(load_method("eagle2").num_draft_tokens, spec.drafter.options["num_nodes"])
    assert spec.num_draft_tokens == levels and spec.drafter.options["top_k"] == 3


@pytest.mark.slow
def test_the_levels_of_a_growing_tree_are_tuned(
    call: Callable[..., tuple[str, str]], tiny_pair: tuple[str, str], tmp_path: Path
) -> None:
    head = saved_head("eagle", load_model(tiny_pair[0]), tmp_path / "head")
    overrides = ["generation.max_new_tokens=8", f"drafter.path={head}", "drafter.top_k=3"]
    _, err = call("eagle2", output="levels.yaml", lengths="1,2", drafter=None, overrides=overrides)
    assert "draft length: " in err


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"method": "sd-tree", "lengths": "2,4"}, "--lengths 2,4: sd-tree drafts trees: give --sizes"),
        (
            {"method": "token-recycling", "lengths": "2,4", "sizes": "4,8"},
            "--lengths 2,4: token-recycling drafts trees: give --sizes",
        ),
        ({"method": "sd", "sizes": "2,4"}, "--sizes 2,4: the drafter of sd has no shape to choose"),
        ({"method": "sd-tree", "sizes": "4,x"}, "--sizes x: not a number of draft tokens from 1 to 512"),
        ({"method": "sd-tree", "sizes": "4,0"}, "--sizes 0: not a number of draft tokens"),
        ({"method": "sd-tree", "sizes": "4"}, "--sizes: one size shows no costs by size"),
    ],
)
def test_bad_sizes_are_one_line(call: Callable[..., tuple[str, str]], options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as error:
        call(**options)
    assert "\n" not in str(error.value)


def test_a_slice_without_accepted_tokens_shapes_no_tree(call: Callable[..., tuple[str, str]]) -> None:
    with pytest.raises(ConfigError, match="no draft token of this slice was accepted often enough to shape a tree"):
        call("token-recycling", sizes="2,4", overrides=["generation.max_new_tokens=2"])
