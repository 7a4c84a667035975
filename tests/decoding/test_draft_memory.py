"""Drafters that learn from prompt to prompt."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Specbench = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(("method", "memory"), [("token-recycling", "cell"), ("suffix", "run")])
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
        assert "the drafter keeps state across prompts" in " ".join(out.split())
        lines = (tmp_path / subsets / "records.jsonl").read_text(encoding="utf-8").splitlines()
        found = [record for record in map(json.loads, lines) if record["subset"] == "de"]
        steps[subsets] = [record["methods"][method]["steps"] for record in found]
    assert steps["en,de"] == steps["de"] and steps["de"]
    code, _, err = specbench(*command, "--repeats", "2", "--output", str(tmp_path / "again"))
    assert code == 2 and "keeps state across prompts" in err


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
    assert "the drafter also searches the answers of" in " ".join(out.split())
    records = [json.loads(line) for line in (warm / "records.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(records) == 6
    for record in records:  # both repeats draft the same, since nothing is learnt
        assert record["methods"]["suffix"]["token_ids"] == record["methods"]["ar"]["token_ids"]
        twin = next(each for each in records if each["id"] == record["id"] and each["repeat"] != record["repeat"])
        assert twin["methods"]["suffix"]["steps"] == record["methods"]["suffix"]["steps"]
    identity = json.loads((warm / "run.json").read_text(encoding="utf-8"))
    assert str(before) in json.dumps(identity)
    (before / "records.jsonl").unlink()
    code, _, err = specbench(*command, "--method", "suffix", "--set", f"drafter.memory={before}", "--output", "x")
    assert code == 2 and "drafter.memory" in err and "give none, prompt, run, or the folder of a run" in err
