"""Drafters that learn from prompt to prompt."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.decoding.drafters import Drafter, memory_of
from specbench.results.leaderboard import load
from specbench.specs.catalogue import load_method, versioned_name, with_overrides

Specbench = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(("method", "memory"), [("token-recycling", "run"), ("suffix", "run")])
def test_a_memory_lasts_for_the_prompts_of_one_subset(
    method: str, memory: str, specbench: Specbench, tiny_pair: tuple[str, str], tmp_path: Path
) -> None:
    """The second subset has the steps that it has alone, and neither the warm-up nor another subset helps it."""
    command = ["run", "--task", "mgsm", "--method", method, "--set", f"drafter.memory={memory}", "--limit", "1",
               "--threads", "1", "--target", tiny_pair[0], "--data", "sample",
               "--set", "generation.max_new_tokens=12"]  # fmt: skip
    steps = {}
    for subsets in ("en,de", "de"):
        code, out, err = specbench(*command, "--subset", subsets, "--output", str(tmp_path / subsets))
        assert code == 0, err
        assert "answers to the prompts before, in one random order" in " ".join(out.split())
        lines = (tmp_path / subsets / "records.jsonl").read_text(encoding="utf-8").splitlines()
        found = [record for record in map(json.loads, lines) if record["subset"] == "de"]
        steps[subsets] = [record["methods"][method]["steps"] for record in found]
    assert steps["en,de"] == steps["de"] and steps["de"]


@pytest.mark.parametrize("method", ["token-recycling", "suffix"])
def test_repeats_are_orders_that_begin_with_an_empty_memory(
    method: str, specbench: Specbench, tiny_pair: tuple[str, str], tmp_path: Path
) -> None:
    command = ["run", "--task", "mgsm", "--method", method, "--subset", "en", "--limit", "4", "--threads", "1",
               "--target", tiny_pair[0], "--data", "sample", "--set", "generation.max_new_tokens=12",
               "--set", "generation.temperature=0"]  # fmt: skip

    def measured(name: str, *words: str) -> tuple[list[dict[str, Any]], str]:
        code, out, err = specbench(*command, *words, "--output", str(tmp_path / name))
        assert code == 0, err
        lines = (tmp_path / name / "records.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines], " ".join(out.split())

    cold, out = measured("cold", "--set", "drafter.memory=prompt")
    assert "memory: empty before each prompt (cold)" in out
    steps = {record["example"]: record["methods"][method]["steps"] for record in cold}
    found, out = measured("run", "--set", "drafter.memory=run", "--repeats", "3")
    assert "in 3 random orders, which intervals resample with the prompts" in out
    by_order = [[record for record in found if record["repeat"] == repeat] for repeat in range(3)]
    assert len({tuple(record["example"] for record in records) for records in by_order}) > 1
    for records in by_order:
        first, *others = records
        assert first["methods"][method]["steps"] == steps[first["example"]], "nothing is remembered of other orders"
        assert any(each["methods"][method]["steps"] != steps[each["example"]] for each in others)
        assert not any(each["methods"][method].get("left_out_own") for each in records)
    rows = load(tmp_path / "run" / "leaderboard.json")
    assert [(row.method_name, row.memory, row.shown_method) for row in rows] == [
        ("ar", None, "ar"), (method, "shuffled", f"{method} (shuffled)")
    ]  # fmt: skip
    assert (rows[1].value("num_own_answers") == 0) == (method == "suffix")
    assert "in only 3 orders of the prompts" in out and "few_orders" in {each.code for each in rows[1].warnings}
    assert load(tmp_path / "cold" / "leaderboard.json")[1].memory == "cold"
    # Boards name it, and a comparison lists it.
    code, out, err = specbench("leaderboard", "show", str(tmp_path / "run" / "leaderboard.json"))
    assert code == 0 and "(shuffled)" in out, err
    code, out, err = specbench("compare", *(f"{tmp_path / name}:{method}" for name in ("cold", "run")))
    assert code == 0 and "memory cold shuffled" in " ".join(out.replace("│", " ").split()), err


def test_the_memory_of_token_recycling_has_the_usual_words() -> None:
    """Files of earlier versions name it cell."""
    (new, old) = (
        with_overrides([], [load_method("token-recycling")], [f"drafter.memory={word}"])[1][0]
        for word in ("run", "cell")
    )
    assert new == old and versioned_name(new) != versioned_name(load_method("token-recycling"))


def test_a_run_is_a_memory_for_another_one(specbench: Specbench, tiny_pair: tuple[str, str], tmp_path: Path) -> None:
    """The same prompts, each drafted from the answers to the others; another memory is another run."""
    command = ["run", "--task", "mgsm", "--subset", "en", "--limit", "3", "--threads", "1", "--target", tiny_pair[0],
               "--data", "sample", "--set", "generation.max_new_tokens=12",
               "--set", "generation.temperature=0"]  # fmt: skip
    before, warm = tmp_path / "before", tmp_path / "warm"
    code, _, err = specbench(*command, "--method", "suffix", "--output", str(before))
    assert code == 0, err
    code, out, err = specbench(
        *command, "--method", "suffix", "--set", f"drafter.memory={before}", "--repeats", "2", "--output", str(warm)
    )
    assert code == 0, err
    told = " ".join(out.split())
    assert "memory: AR's answers of another run to all other prompts (warm)" in told
    assert "of 3 prompts it held an earlier answer, which was left out" in told
    records = [json.loads(line) for line in (warm / "records.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(records) == 6
    for record in records:  # both repeats draft the same, since nothing is learnt
        assert record["methods"]["suffix"]["token_ids"] == record["methods"]["ar"]["token_ids"]
        twin = next(each for each in records if each["id"] == record["id"] and each["repeat"] != record["repeat"])
        assert twin["methods"]["suffix"]["steps"] == record["methods"]["suffix"]["steps"]
    row = load(warm / "leaderboard.json")[1]
    assert (row.memory, row.value("num_own_answers"), row.options["drafter"]["memory"]) == ("warm", 3, "folder")
    # The answers identify the run, not their place: from another folder it is resumed, with other answers it is not.
    identity = json.loads((warm / "run.json").read_text(encoding="utf-8"))
    assert str(before) in identity.pop("command") and str(before) not in json.dumps(identity)
    moved = tmp_path / "moved"
    shutil.copytree(before, moved)
    more = ("--method", "suffix", "--set", f"drafter.memory={moved}", "--output", str(warm))
    code, _, err = specbench(*command, *more, "--repeats", "2")
    assert code == 0, err
    lines = (moved / "records.jsonl").read_text(encoding="utf-8").splitlines()
    (moved / "records.jsonl").write_text("\n".join(lines[:2]) + "\n", encoding="utf-8")
    code, _, err = specbench(*command, *more)
    assert code == 2 and "drafter of method suffix" in err
    (before / "records.jsonl").unlink()
    code, _, err = specbench(*command, "--method", "suffix", "--set", f"drafter.memory={before}", "--output", "x")
    assert code == 2 and "drafter.memory" in err and "give none, prompt, run, or the folder of a run" in err


def test_drafters_of_others_may_call_anything_a_memory() -> None:
    class Mine(Drafter):
        memory = ["anything"]  # noqa: RUF012

    assert memory_of(Mine()) is None
    mine = Mine()
    mine.learns_over_prompts = True
    assert memory_of(mine) == "shuffled"
