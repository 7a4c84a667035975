"""Arbitrary trees in the place of any part of a sound file: a command ends in exit code 0 or 2 and whole lines."""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specbench.core.environment import builtin_dir
from specbench.results.leaderboard import write
from tests.attacks.bounds import within_bounds
from tests.support.site_rows import some_rows

DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
FAST, MANY = 10, 100  # examples of each of five commands; the many are others in every run
WORDS = (
    "", "none", "all", "default", "row", "a\0b", "../x", "/etc/passwd", "{{ row.x }}", "{% for", "{task}", "inf", "NaN",
    "<b>", "\x1b[2J", "\u202e", "é", "-", "x@1:0123456789ab", "model", "fuzzy", "embedded:target", "true",
)  # fmt: skip
NUMBERS = (0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**299, 0.5, -0.0, 1e308, -1e-308, float("inf"), float("nan"))
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.sampled_from(WORDS),
    st.sampled_from(NUMBERS),
)  # fmt: skip
KEYS = st.one_of(st.text(max_size=8), st.sampled_from(("name", "type", "rule", "value", "subsets", "0", "options")))
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)


def places(tree: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a tree has a part, as keys and indices from the root."""
    yield place
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, part in items:
        yield from places(part, (*place, key))


@st.composite
def damaged(draw: st.DrawFn, sound: list[Any]) -> Any:
    """One of the sound trees with up to three parts that are replaced, taken out, or moved from elsewhere."""
    tree = deepcopy(draw(st.sampled_from(sound)))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(list(places(tree))))
        part = draw(TREES | st.just(tree).flatmap(lambda tree: st.sampled_from(list(values(tree)))))
        if not place:
            tree = part
            continue
        holder = at(tree, place[:-1])
        if draw(st.integers(0, 5)):
            holder[place[-1]] = deepcopy(part)
        else:
            del holder[place[-1]]
    return tree


def at(tree: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        tree = tree[key]
    return tree


def values(tree: Any) -> list[Any]:
    return [at(tree, place) for place in places(tree)][:100]


def read(kind: str) -> list[Any]:
    return [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(builtin_dir(kind).glob("*.yaml"))]


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("board") / "x.json"
    write(path, some_rows(1)[:3])
    return json.loads(path.read_text(encoding="utf-8"))


def with_digest(tree: Any) -> Any:
    """The tree with digests that its rows have, so that what lies behind the digest is reached."""
    from specbench.results.row import with_digest as seal

    rows = tree.get("rows") if isinstance(tree, dict) else None
    for number, row in enumerate(rows if isinstance(rows, list) else []):
        if isinstance(row, dict) and all(isinstance(key, str) for key in row):
            try:
                rows[number] = seal(row)
            except (ValueError, TypeError, RecursionError):
                continue
    return tree


COMMANDS = {  # what is damaged, and the command that reads it as x.yaml or x.json
    "validate a task": ("tasks", ("validate", "x.yaml")),
    "validate a method": ("methods", ("validate", "x.yaml")),
    "leaderboard validate": ("rows", ("leaderboard", "validate", "x.json")),
    "leaderboard show": ("rows", ("leaderboard", "show", "x.json")),
    "site": ("rows", ("site", "x.json", "--output", "site")),
}


@pytest.mark.parametrize("num_examples", [FAST, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_tree_ends_in_a_traceback(specbench, board, command, num_examples):
    kind, arguments = COMMANDS[command]
    sound = [board] if kind == "rows" else read(kind)
    specbench(*arguments)  # what is imported is none of the attack's time

    @settings(
        max_examples=num_examples, deadline=None, database=None, derandomize=num_examples == FAST,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(damaged(sound))
    def holds(tree: Any) -> None:
        text = json.dumps(with_digest(tree)) if kind == "rows" else yaml.dump(tree, Dumper=DUMPER, allow_unicode=True)
        Path(arguments[-1] if command != "site" else "x.json").write_text(text, encoding="utf-8", errors="replace")
        with within_bounds():
            code, _, err = specbench(*arguments)
        assert code in (0, 2) and "Traceback" not in err and "out of memory" not in err
        assert (code == 2) == any(line.startswith("error: ") for line in err.splitlines()), err

    holds()
