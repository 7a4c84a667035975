"""`specbench audit` on a real pair: sd is lossless by its samples, which the control and a method that accepts every
draft token do not pass."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specbench.models.causal_lm import CausalLM
from tests.support.public_models import save

pytestmark = pytest.mark.real

NUM_DRAWS = 300


def test_an_audit_by_draws(
    real_models: Path, smollm_drafter: CausalLM, tmp_path: Path, specbench: Callable[..., tuple[int, str, str]]
) -> None:
    drafter = save(smollm_drafter, tmp_path / "drafter")
    everything = tmp_path / "everything.yaml"
    everything.write_text(
        "name: everything\nversion: 1\ntitle: Accepts every draft token\ndrafter: {type: model, temperature: 1}\n"
        "verification: {rule: fuzzy, divergence: js, threshold: .inf}\nnum_draft_tokens: 3\n"
    )
    code, out, err = specbench(
        "audit", "--task", "gsm8k", "--data", "sample", "--limit", "2", "--target", real_models / "smollm2-135m",
        "--drafter", drafter, "--dtype", "bfloat16", "--method", f"sd,{everything}", "--set", "num_draft_tokens=3",
        "--draws", NUM_DRAWS, "--json",
    )  # fmt: skip
    assert code == 0, (out, err)
    report = json.loads(out)
    verdicts = {each["method"]: each for each in report["verdicts"]}
    assert verdicts["ar"]["verdict"] == "lossless"
    sd = verdicts["sd"]
    assert sd["verdict"] in ("lossless", "near-tie only", "width only"), sd["reason"]
    assert sd["distribution"]["num_draws"] == NUM_DRAWS and sd["distribution"]["p_value"] > 1e-3
    assert 20 < sd["distribution"]["num_accepted"] < sd["distribution"]["num_drafted"]
    assert sd["greedy"]["num_prompts"] == 2 and sd["greedy"]["num_accepted"] > 20
    control = report["control"]["distribution"]
    assert control["num_draws"] == NUM_DRAWS and control["p_value"] < 1e-3
    lossy = verdicts["everything"]
    assert lossy["verdict"] == "lossy by design" and lossy["distribution"]["p_value"] < 1e-3
