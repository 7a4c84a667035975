"""Heads and a drafter trained for SmolLM2: the loss falls, and `specbench run` drafts with them without a change of the
greedy output."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

PROMPTS = ["Name three colors.", "What is 12 + 30?", "Translate to French: Good morning.", "Count from 1 to 9.",
           "Who wrote Hamlet?"]  # fmt: skip
TRAININGS = {
    "eagle3": (("eagle3-chain", "eagle3"), ("--set", "eagle3.draft_vocab_size=4096", "--set", "eagle3.batch_size=2",
                                            "--set", "eagle3.num_draft_steps=2", "--learning-rate", "1e-3")),
    "medusa": (("medusa",), ("--set", "medusa.own_output=false", "--set", "medusa.num_heads=2",
                             "--set", "medusa.batch_size=2", "--learning-rate", "2e-3")),
}  # fmt: skip


@pytest.mark.parametrize("kind", TRAININGS)
def test_a_few_steps_lower_the_loss_and_lose_nothing(
    specbench: Callable[..., tuple[int, str, str]], real_models: Path, tmp_path: Path, kind: str
) -> None:
    methods, settings = TRAININGS[kind]
    (tmp_path / "prompts.txt").write_text("".join(f"{prompt}\n" for prompt in PROMPTS))
    target = ("--target", str(real_models / "smollm2-135m"))
    code, _, err = specbench(
        "train", kind, *target, "--text", f"en={tmp_path / 'prompts.txt'}", "--num-steps", "12",
        "--set", f"{kind}.validation_share=0.2", "--set", "checkpoint_every=1", "--set", "max_new_tokens=24",
        *settings, "--output", str(tmp_path / "head"),
    )  # fmt: skip
    assert code == 0, err
    record = json.loads((tmp_path / "head" / "training.json").read_text())
    (curve,) = record["curves"]
    losses = [step["loss"]["en"] for step in curve["steps"]]
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4])  # on the two batches that take turns
    assert curve["validation"]["12"] < curve["validation"]["1"]

    code, _, err = specbench(
        "run", *target, "--task", "gsm8k", "--limit", "2", "--method", ",".join(("ar", *methods)),
        "--set", f"drafter.path={tmp_path / 'head'}", "--set", "generation.max_new_tokens=24",
        *(("--set", "drafter.num_nodes=6") if kind == "medusa" else ()), "--output", str(tmp_path / "run"),
    )  # fmt: skip
    assert code == 0, err
    for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines():
        answers = json.loads(line).get("methods")
        if answers is not None:
            assert all(answers[method]["token_ids"] == answers["ar"]["token_ids"] for method in methods)
