"""A layer for multi-token prediction in a file of its own: read as speculators writes it, and trained as it drafts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from specbench.core.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.models.heads.checkpoints import read_checkpoint
from specbench.models.heads.eagle import EagleModel
from specbench.models.heads.mtp import MtpLayerHead, load_mtp_layer
from specbench.results.leaderboard import load
from specbench.specs.components import build
from specbench.training.heads import DraftHead, HeadLosses
from specbench.training.passes import Batch, Sample
from specbench.training.spec import TrainSpec
from tests.support import tiny
from tests.support.heads import VOCAB, Draws, audited

TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 7, 11]


def trained_head(target: CausalLM, **mtp: Any) -> tuple[TrainSpec, DraftHead]:
    """A head with random weights, those of its norms too, so that a norm that is left out is seen."""
    settings = {"kind": "mtp", "data": {"text": {"en": "x.txt"}}, "output": "x", "mtp": mtp}
    spec = build(TrainSpec, settings)
    draft = DraftHead.of(spec, target)
    draw = Draws(7)
    for name, value in draft.own_parameters.items():
        value.data = draw.gain(len(value)) if "norm" in name else draw(*value.shape)
    draft.model.eval().requires_grad_(False)
    return spec, draft


def last_states(target: CausalLM, ids: list[int]) -> torch.Tensor:
    states: torch.Tensor = target.model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1]
    return states


def drafted(head: MtpLayerHead, target: CausalLM, ids: list[int], num_read: int) -> list[torch.Tensor]:
    """The logits after each token of `ids` from number `num_read` on, the first that the target has not read."""
    model = EagleModel(head, VOCAB, frozenset())
    model.read_target([last_states(target, ids[:num_read])[0]], range(num_read))
    return [model.score(ids[:end], 1).logits[0] for end in range(num_read + 1, len(ids) + 1)]


@torch.no_grad()
def test_logits_are_those_of_the_decoder_layer_of_transformers() -> None:
    """The first draft token continues the target's last hidden state, the second one the layer's own normalized
    output. Rows of the text stay in the cache, with the target's states."""
    target = tiny.causal_lm()
    _, draft = trained_head(target)
    head: MtpLayerHead = draft.model
    layer = head.layer
    reference = Qwen3DecoderLayer(head.config, 0).eval()
    own = dict(layer.named_parameters())
    reference.load_state_dict({name: own[name] for name in reference.state_dict()})

    def of_network(states: torch.Tensor, tokens: list[int]) -> torch.Tensor:
        embeddings = head.embed_tokens(torch.tensor([tokens]))
        joined = layer.input_proj(
            torch.cat([layer.token_layernorm(embeddings), layer.hidden_layernorm(states)], dim=-1)
        )
        places = torch.arange(len(tokens))[None]
        mask = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()[None, None]
        made = reference(joined, attention_mask=mask, position_embeddings=head.rotary_emb(joined, places))
        return layer.final_layernorm(made)  # type: ignore[no-any-return]

    ids, num_read = TEXT[:9], 6
    first, second, _ = drafted(head, target, ids, num_read)
    states = last_states(target, ids[:num_read])
    made = of_network(states, ids[1 : num_read + 1])
    torch.testing.assert_close(first, head.lm_head(made[0, -1])[:VOCAB], rtol=1e-4, atol=1e-4)
    made = of_network(torch.cat([states, made[:, -1:]], dim=1), ids[1 : num_read + 2])
    torch.testing.assert_close(second, head.lm_head(made[0, -1])[:VOCAB], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_the_loss_is_that_of_the_drafts() -> None:
    """Each learnt token is drafted as the first, second and third token behind the text; the weights sum to 1."""
    target = tiny.causal_lm()
    spec, draft = trained_head(target, num_draft_steps=3)
    sample = Sample("en", tuple(TEXT), 5)
    losses = HeadLosses(spec, target, draft.model)
    found = losses(Batch([sample]), draft.model)
    wanted = []
    for place in range(5, len(TEXT)):
        total = torch.tensor(0.0)
        for step, weight in enumerate((1 / 1.96, 0.6 / 1.96, 0.36 / 1.96)):
            logits = drafted(draft.model, target, TEXT[:place], place - 1 - step)[-1]
            total += weight * functional.cross_entropy(logits, torch.tensor(TEXT[place]))
        wanted.append(total)
    torch.testing.assert_close(found, torch.stack(wanted), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_layer_is_read_as_it_was_trained(name: str, tmp_path: Path) -> None:
    target = tiny.causal_lm(name)
    _, draft = trained_head(target)
    draft.save(tmp_path, torch.float32)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["speculators_model_type"] == "mtp" and config["num_nextn_predict_layers"] == 1
    layers = Qwen3Config(**config["transformer_layer_config"])  # speculators takes the hidden state's number from it
    assert config["transformer_layer_config"]["model_type"] == "qwen3"
    assert layers.num_hidden_layers == target.model.config.num_hidden_layers
    assert layers.layer_types == ["full_attention"] * layers.num_hidden_layers
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 3
    names = {each.removeprefix("mtp_layers.0.") for each in load_file(tmp_path / "model.safetensors")}
    assert {"input_proj.weight", "hidden_layernorm.weight", "token_layernorm.weight", "final_layernorm.weight"} < names
    assert {"self_attn.q_norm.weight", "mlp.down_proj.weight"} < names and not any("embed" in each for each in names)
    checkpoint = read_checkpoint(str(tmp_path))
    assert checkpoint.kind == "mtp"
    again = load_mtp_layer(checkpoint, target)
    with torch.no_grad():
        found, expected = (torch.stack(drafted(head, target, TEXT, 7)) for head in (again, draft.model))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    # Trained further, it unrolls as many draft steps as it is told.
    settings = {"kind": "mtp", "data": {"text": {"en": "x.txt"}}, "output": "x", "drafter": str(tmp_path)}
    further = DraftHead.of(build(TrainSpec, {**settings, "mtp": {"num_draft_steps": 5}}), target)
    (tmp_path / "further").mkdir()
    further.save(tmp_path / "further", torch.float32)
    config = json.loads((tmp_path / "further" / "config.json").read_text())
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 5
    before, after = (load_file(folder / "model.safetensors") for folder in (tmp_path, tmp_path / "further"))
    assert before.keys() == after.keys() and all(torch.equal(before[each], after[each]) for each in before)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"num_nextn_predict_layers": 2}, "num_nextn_predict_layers = 2 is not supported, expected 1"),
        ({"transformer_layer_config": {"model_type": "gemma4_text"}}, "model_type 'gemma4_text'"),
        ({"lm_head.weight": torch.zeros(4, 4)}, "is in the format MTP"),
        ({"mtp_layers.0.gate.weight": torch.zeros(4, 4)}, "unknown tensor mtp_layers.0.gate.weight"),
        ({"mtp_layers.0.input_proj.weight": None}, "missing tensor mtp_layers.0.input_proj.weight"),
    ],
)
def test_a_layer_that_does_not_fit_is_refused(change: dict[str, Any], problem: str, tmp_path: Path) -> None:
    target = tiny.causal_lm()
    trained_head(target)[1].save(tmp_path, torch.float32)
    tensors, config = load_file(tmp_path / "model.safetensors"), json.loads((tmp_path / "config.json").read_text())
    for key, value in change.items():
        if value is None:
            del tensors[key]
        elif isinstance(value, torch.Tensor):
            tensors[key] = value
        else:
            config[key] = {**config[key], **value} if isinstance(value, dict) else value
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"drafter\.path") as error:
        load_mtp_layer(read_checkpoint(str(tmp_path)), target)
    assert problem in str(error.value) and "\n" not in str(error.value)


@pytest.mark.slow
def test_a_trained_layer_drafts_better_than_a_new_one(
    specbench: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:  # fmt: skip
    """A new layer has trained for one step with a learning rate of almost nothing. The trained one is trained further,
    and an audit samples from it. The target has one layer: only its last hidden states are read."""
    target = ("--target", "embedded:drafter")
    tau: dict[str, float] = {}
    for name, steps, rate in (("new", "1", "1e-9"), ("trained", "120", "1e-3")):
        path, run = str(tmp_path / name), str(tmp_path / f"run-{name}")
        common = ("train", "mtp", *target, "--task", "world:mgsm", "--subset", "en", "--limit", "32", "--set",
                  "max_new_tokens=48", "--threads", "1")  # fmt: skip
        code, _, err = specbench(*common, "--num-steps", steps, "--learning-rate", rate, "--output", path)
        assert code == 0 and f"--method mtp --set drafter.path={path}" in err, err
        code, _, err = specbench(
            "run", *target, "--task", "mgsm", "--subset", "en", "--limit", "3", "--method", "ar,mtp",
            "--set", f"drafter.path={path}", "--set", "num_draft_tokens=3", "--warm-up", "0", "--output", run,
        )  # fmt: skip
        assert code == 0, err
        row = next(row for row in load(Path(run) / "leaderboard.json") if row.method.startswith("mtp@"))
        assert row.verdict == "greedy equal" and row.drafter == path
        value = row.value("mean_acceptance_length")
        assert value is not None
        tau[name] = value
    assert tau["new"] < 1.3 and tau["trained"] > tau["new"] + 0.7, tau
    again = str(tmp_path / "again")
    code, _, err = specbench(*common, "--drafter", path, "--num-steps", "2", "--output", again)
    assert code == 0 and read_checkpoint(again).kind == "mtp", err
    mtp = audited(specbench, "mtp", *target, "--set", f"drafter.path={path}", "--set", "num_draft_tokens=3")
    assert mtp.verdict == "lossless"
