"""The target's own layer for multi-token prediction drafts as transformers' own network does."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from specbench.core.errors import ConfigError
from specbench.models.heads.eagle import EagleModel, load_mtp
from specbench.models.loading import load_model
from tests.support import tiny
from tests.support.heads import VOCAB, Draws, audited

MELLUM = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_mtp_layers": 1, "sliding_window": 4,
    "layer_types": ["full_attention", "sliding_attention"] * 2,
}  # fmt: skip


def save_mellum(folder: Path, layer_type: str = "full_attention") -> Path:
    """A checkpoint in the layout of transformers: the layer's tensors begin with `mtp.`."""
    tiny.save(folder, "mellum", **MELLUM, mtp_layer_types=[layer_type])
    mtp = MtpModel(tiny.network("mellum", **MELLUM, mtp_layer_types=[layer_type]), 1)
    draw = Draws(5)
    own = {
        f"mtp.{name}": draw.gain(len(value)) if "norm" in name else draw(*value.shape)
        for name, value in mtp.state_dict().items() if name.startswith("layers.")
    }  # fmt: skip
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, **own}, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("layer_type", ["full_attention", "sliding_attention"])
@torch.no_grad()
def test_logits_are_those_of_transformers(layer_type: str, tmp_path: Path) -> None:
    """After the prompt, and after the target has read two more tokens."""
    target = load_model(str(save_mellum(tmp_path, layer_type)), device="cpu")
    head = load_mtp(target)
    model = EagleModel(head, VOCAB, frozenset())
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    target.hidden_layers = head.hidden_layers
    model.read_target(target.score(ids, 1).hidden, range(len(ids)))
    found = [model.score([*ids, 7], 1).logits[0]]
    model.score([*ids, 7, 8], 1)  # a drafted token
    model.read_target(target.score([*ids, 7, 11], 2).hidden, [0, 1])
    found.append(model.score([*ids, 7, 11, 12], 1).logits[0])
    for logits, text in zip(found, ([*ids, 7], [*ids, 7, 11, 12]), strict=True):
        hidden = target.model(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states[-1]
        places = torch.arange(len(text) - 1)[None]
        states = head.mtp.forward_layer(
            0, hidden, places, MtpCache(config=target.model.config.get_mtp_config()), input_ids=torch.tensor([text[1:]])
        )
        torch.testing.assert_close(logits, head.mtp.shared_head(states[0, -1]), rtol=1e-4, atol=1e-4)


def test_mtp_runs(tmp_path: Path, specbench: Callable[..., tuple[int, str, str]]) -> None:
    folder = save_mellum(tmp_path / "mellum")
    code, _, error = specbench(
        "run", "--task", "mgsm", "--subset", "en", "--method", "ar,mtp", "--target", str(folder), "--limit", "1",
        "--data", "sample", "--set", "num_draft_tokens=2", "--set", "generation.max_new_tokens=6", "--output", "run",
    )  # fmt: skip
    assert code == 0, error
    answers = json.loads(Path("run/records.jsonl").read_text())["methods"]
    assert answers["mtp"]["token_ids"] == answers["ar"]["token_ids"]
    assert sum(step[0] for step in answers["mtp"]["steps"]) > 0
    identity = json.loads(Path("run/run.json").read_text())
    assert identity["drafters"]["mtp"] == identity["target"]


@pytest.mark.slow
def test_mtp_is_lossless(tmp_path: Path, specbench: Callable[..., tuple[int, str, str]]) -> None:
    """Few tokens are likely, so that the layer's drafts are often accepted, and rejected too."""
    folder = save_mellum(tmp_path / "mellum")
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"][:6] *= 2
    weights["lm_head.weight"][6:] = 0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    mtp = audited(specbench, "mtp", "--target", str(folder), "--data", "sample")
    assert mtp.verdict == "lossless"
    assert mtp.distribution is not None and mtp.distribution.num_recovered is not None
    assert mtp.distribution.num_accepted is not None and mtp.distribution.num_accepted > 200
    assert mtp.distribution.num_recovered > 50


def test_targets_without_the_layer_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'tiny-llama' has no layers for multi-token prediction"):
        load_mtp(tiny.causal_lm())
    bare = tiny.save(tmp_path, "mellum", **MELLUM)
    with pytest.raises(ConfigError, match=r"cannot be loaded: .*weights are missing") as error:
        load_mtp(load_model(str(bare), device="cpu"))
    assert "\n" not in str(error.value)
