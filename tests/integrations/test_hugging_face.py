"""transformers' own decoders beside ours: the same tokens, whole counts, nothing left behind on the models."""

import json
from typing import Any

import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.decoding.build import build_decoder
from specbench.decoding.loop import GenerationOutput, StopRules
from specbench.decoding.sampling import Sampling
from specbench.integrations.external import LoadedModel
from specbench.integrations.transformers_decoders import AssistedGeneration, TokenIntersection
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.loading import load_model
from specbench.specs.catalogue import load_method, with_overrides
from specbench.specs.run import embedded_drafter
from tests.support import tiny

GREEDY, WARM = Sampling(0.0), Sampling(4.0, top_k=900, top_p=0.99)
WHOLE_HEAD = ("decoder.options.prune_lm_head=false",)
METHODS = [("hf-sd", ()), ("hf-pld", ()), ("hf-slem", ()), ("hf-tli", WHOLE_HEAD), ("hf-tli", ())]


@pytest.fixture(scope="module")
def models() -> dict[str, CausalLM]:
    """The smaller members of the embedded family: one was trained on from the other, and one has its own tokens."""
    names = {
        "target": "embedded:drafter",
        "same": "embedded:drafter-distill-general",
        "other": embedded_drafter("retokenize"),
    }
    return {name: load_model(source, device="cpu") for name, source in names.items()}


def generate(
    models: dict[str, CausalLM], name: str, overrides: tuple[str, ...], prompt: list[int], sampling: Sampling = GREEDY,
    seed: int = 0, max_new_tokens: int = 40,
) -> GenerationOutput:  # fmt: skip
    _, [method] = with_overrides([], [load_method(name)], list(overrides))
    kinds = {"none": None, "same_vocabulary": models["same"], "other_vocabulary": models["other"]}
    drafter = kinds[method.decoder.drafter] if method.decoder else models["same"]
    decoder = build_decoder(method, ModelPair(models["target"], drafter), sampling)
    return decoder.generate(prompt, StopRules(max_new_tokens, models["target"].eos_token_ids), seed)


@pytest.fixture(scope="module")
def baseline(
    models: dict[str, CausalLM], embedded_prompts: dict[str, list[list[int]]]
) -> list[tuple[list[int], int, GenerationOutput]]:
    """Prompts, the tokens that are asked for behind them, and AR's generations."""
    asked = [(embedded_prompts[language][0], length) for language, length in (("en", 24), ("th", 12), ("ja", 1))]
    return [(prompt, length, generate(models, "ar", (), prompt, max_new_tokens=length)) for prompt, length in asked]


@pytest.mark.parametrize(("name", "overrides"), METHODS)
def test_greedy_output_is_that_of_our_baseline(
    name: str,
    overrides: tuple[str, ...],
    models: dict[str, CausalLM],
    baseline: list[tuple[list[int], int, GenerationOutput]],
) -> None:
    for prompt, length, own in baseline:
        found = generate(models, name, overrides, prompt, max_new_tokens=length)
        assert (found.token_ids, found.finish) == (own.token_ids, own.finish)
        assert found.ttft_seconds is not None and found.external is not None
        assert 1 <= found.external.num_first_tokens <= length
        num_passes = found.external.num_target_passes
        assert num_passes is not None and num_passes <= len(found.token_ids)
        if name != "hf-slem":  # its counts were checked on the way
            assert len(found.steps) == num_passes
            assert sum(step.num_emitted for step in found.steps) + 1 == len(found.token_ids)
            assert length == 1 or max(step.num_drafted for step in found.steps) > 0


def test_accepted_drafts_are_those_of_our_own_loop(
    models: dict[str, CausalLM], embedded_prompts: dict[str, list[list[int]]]
) -> None:
    """It drafts before the first target pass; ours takes one token from the prefill first, so it starts from there."""
    prompt = embedded_prompts["sw"][1]
    own = generate(models, "sd", (), prompt)
    theirs = generate(models, "hf-sd", (), [*prompt, own.token_ids[0]], max_new_tokens=39)
    counts = [[(s.num_drafted, s.num_verified, s.num_accepted) for s in g.steps] for g in (own, theirs)]
    assert own.token_ids[1:] == theirs.token_ids and len(counts[0]) > 5
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("name", "overrides"), [METHODS[0], *(pytest.param(*each, marks=pytest.mark.slow) for each in METHODS[1:])]
)
def test_no_run_depends_on_the_one_before(
    name: str, overrides: tuple[str, ...], models: dict[str, CausalLM], embedded_prompts: dict[str, list[list[int]]]
) -> None:
    first, second = embedded_prompts["en"][:2]
    forth = [generate(models, name, overrides, prompt, WARM, 5, 12) for prompt in (first, second)]
    back = [generate(models, name, overrides, prompt, WARM, 5, 12) for prompt in (second, first)]
    assert [g.token_ids for g in forth] == [g.token_ids for g in back[::-1]]
    assert [g.steps for g in forth] == [g.steps for g in back[::-1]]
    assert generate(models, name, overrides, first, WARM, 6, 12).token_ids != forth[0].token_ids


def test_the_models_are_as_they_were(models: dict[str, CausalLM], embedded_prompts: dict[str, list[list[int]]]) -> None:
    """Pruning the output layer and setting the draft length happen on copies, which share the weights."""
    prompt = embedded_prompts["de"][0]
    before = {name: (str(m.model), str(m.model.generation_config), set(vars(m.model))) for name, m in models.items()}
    own = generate(models, "sd", (), prompt, max_new_tokens=12).token_ids
    for name, overrides in METHODS:
        for sampling in (GREEDY, WARM):
            generate(models, name, overrides, prompt, sampling, max_new_tokens=4)
    assert generate(models, "sd", (), prompt, max_new_tokens=12).token_ids == own
    for name, model in models.items():
        assert (str(model.model), str(model.model.generation_config), set(vars(model.model))) == before[name]


def test_copies_share_the_weights(models: dict[str, CausalLM]) -> None:
    model = models["same"].model
    target, drafter = (LoadedModel(models[name].model, models[name].tokenizer) for name in ("target", "same"))
    made = AssistedGeneration(target=target, drafter=drafter, num_draft_tokens=7, sampling=GREEDY).assistant
    pairs = zip(model.named_parameters(), made.named_parameters(), strict=True)
    assert all(name == other and first is second for (name, first), (other, second) in pairs)
    assert made.generation_config.num_assistant_tokens == 7
    assert model.generation_config is not made.generation_config and made.get_submodule("model") is not model.model


def test_a_draft_model_without_tokens_of_its_own_is_one_line() -> None:
    """There transformers fails in the middle of a generation."""
    target = CausalLM(tiny.network(vocab_size=260), tiny.tokenizer(num_extra=3), "target", None)
    drafter = CausalLM(tiny.network(), tiny.tokenizer(), "drafter", None)
    pair = ModelPair(target, drafter)
    with pytest.raises(ConfigError, match=r"method 'hf-tli': .* set decoder.options.prune_lm_head=false"):
        build_decoder(load_method("hf-tli"), pair, GREEDY)
    _, [whole] = with_overrides([], [load_method("hf-tli")], list(WHOLE_HEAD))
    stop, prompt = StopRules(12), list(range(40, 60))
    expected = build_decoder(load_method("ar"), pair, GREEDY).generate(prompt, stop, 0).token_ids
    assert build_decoder(whole, pair, GREEDY).generate(prompt, stop, 0).token_ids == expected


def test_the_pruned_layer_has_its_rows_in_one_order(models: dict[str, CausalLM]) -> None:
    """tokenizers gives a vocabulary in another order in every process; then one seed drew other tokens in each."""
    target, drafter = (LoadedModel(models[name].model, models[name].tokenizer) for name in ("target", "other"))
    decoder = TokenIntersection(target=target, drafter=drafter, num_draft_tokens=3, sampling=Sampling(1.0))
    ids = decoder.translator.assistant_overlap_token_ids.tolist()
    assert len(ids) > 100 and ids == sorted(ids)


def test_defaults_of_a_checkpoint_do_not_leak_in() -> None:
    """transformers would take top_k, a repetition penalty and more from the target's own generation config."""
    network = tiny.network(num_hidden_layers=1)
    model = CausalLM(network, tiny.tokenizer(), "target", None)
    decoder = build_decoder(load_method("hf-pld"), ModelPair(model), Sampling(1.0))
    expected = [decoder.generate([5, 6, 5, 6], StopRules(16), seed).token_ids for seed in range(3)]
    greedy = (
        build_decoder(load_method("ar"), ModelPair(model), GREEDY).generate([5, 6, 5, 6], StopRules(16), 0).token_ids
    )
    assert greedy not in expected
    changed = tiny.network(num_hidden_layers=1)
    changed.generation_config.update(top_k=1, repetition_penalty=9.0, temperature=0.1, do_sample=True)
    pair = ModelPair(CausalLM(changed, tiny.tokenizer(), "target", None))
    again = build_decoder(load_method("hf-pld"), pair, Sampling(1.0))
    assert [again.generate([5, 6, 5, 6], StopRules(16), seed).token_ids for seed in range(3)] == expected
    assert (
        build_decoder(load_method("hf-pld"), pair, GREEDY).generate([5, 6, 5, 6], StopRules(16), 0).token_ids == greedy
    )


def test_top_k_is_off_unless_asked_for() -> None:
    """Draws of a flat distribution over 257 tokens: transformers' own default would leave 50 of them."""
    network = tiny.network(num_hidden_layers=1)
    with torch.no_grad():
        network.get_output_embeddings().weight.zero_()
    pair = ModelPair(CausalLM(network, tiny.tokenizer(), "flat", None), CausalLM(network, tiny.tokenizer(), "f", None))
    for name in ("hf-sd", "hf-pld"):
        decoder = build_decoder(load_method(name), pair, Sampling(1.0))
        assert len({t for s in range(3) for t in decoder.generate([1, 2], StopRules(24), s).token_ids}) > 50
        limited = build_decoder(load_method(name), pair, Sampling(1.0, top_p=0.1))
        assert len({t for s in range(2) for t in limited.generate([1, 2], StopRules(24), s).token_ids}) < 35


def test_a_whole_run_beside_our_own(specbench: Any, tmp_path: Any) -> None:
    code, out, err = specbench(
        "run", "--task", "mgsm", "--method", "sd,hf-sd,hf-slem", "--subset", "en", "--limit", "1", "--output", "out",
        "--set", "generation.max_new_tokens=16", "--json",
    )  # fmt: skip
    assert code == 0, err
    rows = {row["method"].partition("@")[0]: row for row in json.loads(out)}
    metrics = {name: {key: metric["value"] for key, metric in row["metrics"].items()} for name, row in rows.items()}
    assert metrics["hf-sd"]["new_tokens"] == metrics["ar"]["new_tokens"]
    assert metrics["hf-sd"]["acceptance_rate"] == pytest.approx(metrics["sd"]["acceptance_rate"], abs=0.1)
    assert metrics["hf-sd"]["speedup"] > 0 and metrics["hf-sd"]["ttft_seconds"] > 0
    assert metrics["hf-slem"]["acceptance_rate"] is None and metrics["hf-slem"]["mean_acceptance_length"] > 1
    assert all(metrics["hf-sd"][name] is None for name in ("cost_ratio", "draft_seconds", "overhead_share"))
    assert [rows[name]["drafter"] for name in ("hf-sd", "hf-slem")] == ["embedded:drafter", "embedded:drafter-bpe"]
    assert "transformers" not in err.partition("mgsm/en")[0]
