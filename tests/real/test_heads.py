"""Heads and a drafter trained for SmolLM2: the loss falls, and `specbench run` drafts with them without a change of the
greedy output."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

PROMPTS = ["Name three colors.", "What is 12 + 30?", "Translate to French: Good morning.", "Count from 1 to 9.",
           "Who wrote Hamlet?"]  # fmt: skip
TRAININGS = {  # methods, settings of the training, and of the run
    "eagle3": (
        ("eagle3-chain", "eagle3"),
        ("eagle3.draft_vocab_size=4096", "eagle3.batch_size=2", "eagle3.num_draft_steps=2", "learning_rate=1e-3"),
        (),
    ),
    "medusa": (
        ("medusa",),
        ("medusa.own_output=false", "medusa.num_heads=2", "medusa.batch_size=2", "learning_rate=2e-3"),
        ("drafter.num_nodes=6", "num_draft_tokens=2"),
    ),
}


def options(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]


@pytest.mark.parametrize("kind", TRAININGS)
def test_a_few_steps_lower_the_loss_and_lose_nothing(
    specbench: Callable[..., tuple[int, str, str]], real_models: Path, tmp_path: Path, kind: str
) -> None:
    methods, training, run = TRAININGS[kind]
    (tmp_path / "prompts.txt").write_text("".join(f"{prompt}\n" for prompt in PROMPTS))
    target = ("--target", str(real_models / "smollm2-135m"))
    code, _, err = specbench(
        "train", kind, *target, "--text", f"en={tmp_path / 'prompts.txt'}", "--num-steps", "12", *options(
            f"{kind}.validation_share=0.2", "checkpoint_every=1", "max_new_tokens=24", *training,
        ), "--output", str(tmp_path / "head"),
    )  # fmt: skip
    assert code == 0, err
    record = json.loads((tmp_path / "head" / "training.json").read_text())
    (curve,) = record["curves"]
    losses = [step["loss"]["en"] for step in curve["steps"]]
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4])  # on the two batches that take turns
    assert curve["validation"]["12"] < curve["validation"]["1"]

    code, _, err = specbench(
        "run", *target, "--task", "gsm8k", "--data", "sample", "--limit", "2", "--method", ",".join(("ar", *methods)),
        *options(f"drafter.path={tmp_path / 'head'}", "generation.max_new_tokens=24", *run),
        "--output", str(tmp_path / "run"),
    )  # fmt: skip
    assert code == 0, err
    lines = (tmp_path / "run" / "records.jsonl").read_text().splitlines()
    answers = [json.loads(line)["methods"] for line in lines]
    assert len(answers) == 2
    for each in answers:
        assert all(each[method]["token_ids"] == each["ar"]["token_ids"] for method in methods)
        assert all(any(step[0] for step in each[method]["steps"]) for method in methods)  # they drafted
