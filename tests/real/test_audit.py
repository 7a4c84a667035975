"""`specbench audit` on two real models of different vocabularies: `tli` is lossless by its samples, which the audit's
control and a wrong rule on the same drafts do not pass."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from specbench.results.verdict import FAILS_BELOW

pytestmark = pytest.mark.real

# Five tokens each. A token drawn from another model, or at 1.5 times the temperature, has a log p that is about one nat
# lower, and the standard deviation of log p in a text is about two. So N tokens show the mistake by √N / 2 standard
# errors if each of them has it, by √N / 6 if a third has: by 6 to 19 for 1500. A power of .99 takes 6.0.
NUM_DRAWS = 300
MIN_POWER = 0.99


def power(test: Mapping[str, Any]) -> float:
    """The probability that other samples of the same wrong method fail the test by their log p alone, given its
    deviation in standard errors."""
    score = abs(test["mean_log_p"] - test["expected_log_p"]) / test["standard_error"]
    return float(stats.norm.sf(stats.norm.isf(FAILS_BELOW / 4) - score))  # two statistics, each two-sided


def test_an_audit_by_draws(real_models: Path, tmp_path: Path, specbench: Callable[..., tuple[int, str, str]]) -> None:
    everything = tmp_path / "everything.yaml"
    everything.write_text(
        "name: everything\nversion: 1\ntitle: Accepts every draft token\ndrafter: {type: model, temperature: 1}\n"
        "verification: {rule: fuzzy, divergence: js, threshold: .inf}\nbridge: intersection\nnum_draft_tokens: 3\n"
    )
    code, out, err = specbench(
        "audit", "--task", "gsm8k", "--data", "sample", "--limit", "2", "--target", real_models / "smollm2-135m",
        "--drafter", real_models / "gemma3-270m", "--dtype", "bfloat16", "--method", f"tli,{everything}",
        "--set", "num_draft_tokens=3", "--set", "generation.max_new_tokens=64", "--draws", NUM_DRAWS, "--json",
    )  # fmt: skip
    assert code == 0, (out, err)
    report = json.loads(out)
    assert Path(report["drafters"]["tli"]).name == "gemma3-270m"
    verdicts = {each["method"]: each for each in report["verdicts"]}
    assert verdicts["ar"]["verdict"] == "lossless"
    tli = verdicts["tli"]
    assert tli["verdict"] in ("lossless", "near-tie only", "width only"), tli["reason"]
    assert tli["distribution"]["num_draws"] == NUM_DRAWS and tli["distribution"]["p_value"] > 1e-3
    assert 20 < tli["distribution"]["num_accepted"] < tli["distribution"]["num_drafted"]
    assert tli["greedy"]["num_prompts"] == 2 and tli["greedy"]["num_accepted"] > 20
    control = report["control"]["distribution"]
    assert control["num_draws"] == NUM_DRAWS and control["p_value"] < FAILS_BELOW and power(control) > MIN_POWER
    lossy = verdicts["everything"]
    assert lossy["verdict"] == "lossy by design" and lossy["distribution"]["p_value"] < FAILS_BELOW
    assert power(lossy["distribution"]) > MIN_POWER, "a verdict on tli would be luck"
