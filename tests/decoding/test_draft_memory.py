"""Drafters that learn from prompt to prompt."""

import json
from collections.abc import Callable
from pathlib import Path

Specbench = Callable[..., tuple[int, str, str]]


def test_a_memory_lasts_for_the_prompts_of_one_subset(
    specbench: Specbench, tiny_pair: tuple[str, str], tmp_path: Path
) -> None:
    """The second subset has the steps that it has alone, and neither the warm-up nor another subset helps it."""
    command = ["run", "--task", "mgsm", "--method", "token-recycling", "--set", "drafter.memory=cell", "--limit", "1",
               "--threads", "1", "--target", tiny_pair[0], "--data", "sample",
               "--set", "generation.max_new_tokens=12"]  # fmt: skip
    steps = {}
    for subsets in ("en,de", "de"):
        code, out, err = specbench(*command, "--subset", subsets, "--output", str(tmp_path / subsets))
        assert code == 0, err
        assert "the drafter keeps state across prompts" in " ".join(out.split())
        lines = (tmp_path / subsets / "records.jsonl").read_text(encoding="utf-8").splitlines()
        found = [record for record in map(json.loads, lines) if record["subset"] == "de"]
        steps[subsets] = [record["methods"]["token-recycling"]["steps"] for record in found]
    assert steps["en,de"] == steps["de"] and steps["de"]
    code, _, err = specbench(*command, "--repeats", "2", "--output", str(tmp_path / "again"))
    assert code == 2 and "keeps state across prompts" in err
