"""The target as its own drafter: with fewer bits, with skipped sub-layers, with a window of the text."""

import copy
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from specbench.core.errors import ConfigError
from specbench.decoding.build import build_decoder
from specbench.decoding.decoder import DraftingDecoder
from specbench.decoding.drafters.self_drafting import SelfSkipDrafter, chosen, neighbour
from specbench.decoding.loop import GenerationOutput, StopRules, decode
from specbench.decoding.proposal import Proposal
from specbench.decoding.sampling import Distributions, Sampling, process
from specbench.decoding.verification import rejection
from specbench.models import own_drafts
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.kv_cache import attention_mask, cache_parameter
from specbench.models.own_drafts import OwnDraftModel, SkippingSequence, SubLayers, WindowSequence
from specbench.models.packed import packs_bfloat16, store_weights, stored_layers
from specbench.models.quantized_copy import quantized_copy
from specbench.specs.catalogue import load_method, with_overrides
from tests.support import tiny
from tests.support.distributions import chi_square_p

GREEDY, PLAIN, TOP_P = Sampling(0.0), Sampling(1.0), Sampling(1.0, None, 0.8)
KINDS = ("llama", "qwen2", "mistral", "gemma2", "gemma3_text")
SKIP = SubLayers((1, 2), (2,))
TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
FEW = ["drafter.attention=[1]", "drafter.mlp=[1, 2]"]
WAYS = {
    "self-quantized": ["num_draft_tokens=2"],
    "self-skip": [*FEW, "num_draft_tokens=2"],
    "self-skip-swift": ["drafter.tried_on=4", "num_draft_tokens=2"],
    "self-window": ["drafter.sink=1", "drafter.window=2", "num_draft_tokens=2"],
}


def decoder(method: str, target: CausalLM, sampling: Sampling, overrides: Sequence[str] = ()) -> DraftingDecoder:
    _, (spec,) = with_overrides([], [load_method(method)], [*WAYS[method], *overrides])
    made = build_decoder(spec, ModelPair(target), sampling)
    assert isinstance(made, DraftingDecoder)
    return made


def model(kind: str = "llama", seed: int = 0, **options: Any) -> CausalLM:
    return tiny.causal_lm(kind, seed, **options)


# What a draft pass computes.


def without(network: Any, skipped: SubLayers) -> Any:
    """A copy in which the skipped sub-layers add zero, as their last matrix is zero."""
    made = copy.deepcopy(network)
    for number in skipped.attention:
        made.model.layers[number].self_attn.o_proj.weight.data.zero_()
    for number in skipped.mlp:
        made.model.layers[number].mlp.down_proj.weight.data.zero_()
    return made


@torch.inference_mode()
def rows(network: Any, text_network: Any, text: Sequence[int], draft: Sequence[int]) -> torch.Tensor:
    """The logits after the last token of a text and after draft tokens, over the keys of `text_network`."""
    cache = {cache_parameter(network.forward): DynamicCache(config=network.config)}
    text_network(input_ids=torch.tensor([text[:-1]]), **cache)
    found = [network(input_ids=torch.tensor([[token]]), **cache).logits[0, -1] for token in
             (text[-1], *draft)]  # fmt: skip
    return torch.stack(found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("skipped", [SKIP, SubLayers((0, 3), (0, 1, 2, 3)), SubLayers((), ())])
def test_skipping_passes_read_the_targets_keys_and_skip_sub_layers(kind: str, skipped: SubLayers) -> None:
    target = model(kind)
    sequence = SkippingSequence(target, "self_skip")
    sequence.skipped = skipped
    drafts = OwnDraftModel(target, sequence)
    target.score(TEXT, 1)
    with drafts.drafting(TEXT):
        found = torch.cat([drafts.score([*TEXT, 7, 8][:end], 1).logits for end in (16, 17, 18)])
    expected = rows(without(target.model, skipped), target.model, TEXT, [7, 8])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    # The target then reads the draft as if no draft pass had been made.
    after = target.score([*TEXT, 7, 8], 3).logits
    torch.testing.assert_close(after, model(kind).score([*TEXT, 7, 8], 3).logits, rtol=1e-4, atol=1e-4)
    assert drafts.passes.num_passes == 3


def window_rows(network: Any, text: Sequence[int], draft: Sequence[int], sink: int, window: int) -> torch.Tensor:
    """The logits of passes that mask the middle of the text."""
    total, start = len(text) + len(draft), len(text) - 1
    columns = torch.arange(total)
    hidden = (columns >= sink) & (columns < max(sink, start - window))
    visible = (columns <= columns[:, None]) & ~(hidden & (columns[:, None] >= start))
    sliding = visible & (columns[:, None] - columns < (getattr(network.config, "sliding_window", None) or total))
    named = (("full_attention", visible), ("sliding_attention", sliding))
    masks = {name: attention_mask(mask, network) for name, mask in named}
    kinds = set(getattr(network.config, "layer_types", None) or ["full_attention"])
    if network.config.model_type == "mistral":
        kinds = {"sliding_attention"}
    given = masks if len(kinds) > 1 else masks[kinds.pop()]
    ids = torch.tensor([[*text, *draft]])
    with torch.inference_mode():
        logits = network(input_ids=ids, attention_mask=given, position_ids=columns[None]).logits
    return torch.as_tensor(logits[0, start:])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("sink", "window"), [(2, 4), (0, 1), (3, 12), (9, 100)])
def test_window_passes_read_the_first_and_the_last_tokens_at_their_positions(kind: str, sink: int, window: int) -> None:
    target = model(kind)
    drafts = OwnDraftModel(target, WindowSequence(target, "self_window", sink, window))
    for text in (TEXT[:12], TEXT):  # a second draft begins with the keys of the first text
        target.score(text, 1)
        with drafts.drafting(text):
            found = torch.cat([drafts.score([*text, 7, 8][:end], 1).logits for end in range(len(text), len(text) + 3)])
        torch.testing.assert_close(found, window_rows(target.model, text, [7, 8], sink, window), rtol=1e-4, atol=1e-4)
        after = target.score([*text, 7, 8], 3).logits
        torch.testing.assert_close(after, model(kind).score([*text, 7, 8], 3).logits, rtol=1e-4, atol=1e-4)
    assert drafts.passes.num_passes == 6


def test_a_window_of_the_whole_text_drafts_what_the_target_writes() -> None:
    made = decoder("self-window", model(), GREEDY, ["drafter.window=64", "num_draft_tokens=3"])
    found = made.generate(TEXT, StopRules(20), 0)
    assert sum(step.num_accepted for step in found.steps) == sum(step.num_drafted for step in found.steps) > 10


def test_agreement_counts_the_tokens_that_are_found_and_keeps_the_keys() -> None:
    target = model()
    sequence = SkippingSequence(target, "self_skip")
    sequence.skipped = SKIP
    drafts = OwnDraftModel(target, sequence)
    target.score(TEXT[:-1], 1)
    before = [(layer.keys[:, :, :15].clone(), layer.values[:, :, :15].clone()) for layer in sequence._attention_layers]
    network = without(target.model, SKIP)
    cache = {cache_parameter(network.forward): DynamicCache(config=network.config)}
    with torch.inference_mode():
        target.model(input_ids=torch.tensor([TEXT[:9]]), **cache)
        best = network(input_ids=torch.tensor([TEXT[9:15]]), **cache).logits[0].argmax(-1).tolist()
    text = [*TEXT[:10], *best[:2], *TEXT[12:]]  # two of six are found for sure, if what stands before them is the same
    with drafts.drafting(TEXT):
        found = sequence.agreement(TEXT, 6)
    assert found == sum(a == b for a, b in zip(best, TEXT[10:], strict=True)) / 6
    for layer, (keys, values) in zip(sequence._attention_layers, before, strict=True):
        assert torch.equal(layer.keys[:, :, :15], keys) and torch.equal(layer.values[:, :, :15], values)
        assert layer.length == 15
    target.score(text[:-1], 1)
    with drafts.drafting(text):
        assert sequence.agreement(text, 6) >= 1 / 6


# Outputs.


def ar(target: CausalLM, prompt: list[int], length: int) -> list[int]:
    ids = list(prompt)
    for _ in range(length):
        ids.append(int(target.score(ids, 1).logits[0].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", WAYS)
def test_greedy_output_is_that_of_the_target(method: str, kind: str) -> None:
    target = model(kind)
    expected = [ar(target, prompt, 24) for prompt in (TEXT, TEXT[:5])]
    made = decoder(method, target, GREEDY, ["num_draft_tokens=3"])
    found = [made.generate(prompt, StopRules(24), 0) for prompt in (TEXT, TEXT[:5])]
    assert [each.token_ids for each in found] == expected
    assert sum(step.num_drafted for each in found for step in each.steps) > 20


SMALL = {"vocab_size": 4, "num_hidden_layers": 4}
PROMPT, LENGTH = [1, 2, 0, 3], 3
NUM_DRAWS = 400
TEMPERATURE = 4.0


def small(seed: int = 3) -> CausalLM:
    """Few tokens, all of which are likely."""
    return tiny.causal_lm("llama", seed, **SMALL)


def law(target: CausalLM, sampling: Sampling) -> dict[tuple[int, ...], float]:
    found = {(): 1.0}
    for _ in range(LENGTH):
        found = {
            (*tokens, token): mass * chance
            for tokens, mass in found.items()
            for token, chance in enumerate(
                process(target.score([*PROMPT, *tokens], 1).logits, sampling)[0].tolist()
            )
            if chance
        }  # fmt: skip
    return found


def draws(made: DraftingDecoder, num_draws: int = NUM_DRAWS) -> tuple[Counter[tuple[int, ...]], list[GenerationOutput]]:
    with made.model.reading_prompts_once():
        outputs = [made.generate(PROMPT, StopRules(LENGTH + 1), seed) for seed in range(num_draws)]
    return Counter(tuple(each.token_ids[:LENGTH]) for each in outputs), outputs


@pytest.mark.parametrize("sampling", [PLAIN, TOP_P], ids=["T=1", "top-p"])
@pytest.mark.parametrize("method", ["self-quantized", "self-skip", "self-window"])
def test_sampled_output_follows_the_target(method: str, sampling: Sampling) -> None:
    target = small()
    expected = law(target, sampling)
    counts, outputs = draws(decoder(method, target, sampling))
    assert not set(counts) - set(expected)
    assert chi_square_p(counts, expected) > 1e-3
    steps = [step for each in outputs for step in each.steps]
    assert sum(step.num_accepted for step in steps) > 100
    if method != "self-quantized":
        assert sum(step.num_accepted < step.num_verified for step in steps) > 20


def test_a_set_chosen_on_the_fly_follows_the_target() -> None:
    """It is chosen by the answer's own tokens, before the draft."""
    target = small()
    made = decoder("self-skip-swift", target, PLAIN, ["drafter.enough=1.0", "drafter.tried_on=4"])
    with target.reading_prompts_once():
        outputs = [made.generate(PROMPT, StopRules(10), seed) for seed in range(NUM_DRAWS)]
    drafter = made.drafter
    assert isinstance(drafter, SelfSkipDrafter) and drafter._num_tried > 0
    counts = Counter(tuple(each.token_ids[6:9]) for each in outputs if len(each.token_ids) == 10)
    expected: dict[tuple[int, ...], float] = defaultdict(float)  # after the tokens that were drawn, on average
    for drawn, number in Counter(tuple(each.token_ids[:6]) for each in outputs).items():
        for tokens, mass in after(target, [*PROMPT, *drawn]).items():
            expected[tokens] += mass * number / len(outputs)
    assert chi_square_p(counts, expected) > 1e-3


@torch.inference_mode()
def after(target: CausalLM, ids: list[int]) -> dict[tuple[int, ...], float]:
    """The law of the three tokens after a text, by one pass over all pairs of tokens that may come first."""
    pairs = [*product(range(target.vocab_size), repeat=2)]
    rows = target.model(torch.tensor([[*ids, *pair] for pair in pairs])).logits[:, len(ids) - 1 :]
    chances = process(rows.flatten(0, 1), PLAIN).view(rows.shape)
    return {
        (first, second, third): float(of_pair[0, first] * of_pair[1, second] * chance)
        for (first, second), of_pair in zip(pairs, chances, strict=True)
        for third, chance in enumerate(of_pair[2])
    }


class Unheated(SelfSkipDrafter):
    """Draws at a temperature, and says that it drew from the distribution before it."""

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        made = super().propose(ids, num_draft_tokens, generator)
        if made.num_drafted:
            made.probs = Distributions(made.probs.logits, PLAIN)  # type: ignore[union-attr]
        return made


def test_control_q_of_another_temperature_is_caught() -> None:
    target = small()
    drafter = Unheated(ModelPair(target), PLAIN, attention=[1], mlp=[1, 2], temperature=TEMPERATURE)
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(NUM_DRAWS):
        found = decode(
            target, drafter, rejection, PROMPT, num_draft_tokens=2, sampling=PLAIN, stop=StopRules(LENGTH + 1),
            generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip
        counts[tuple(found.token_ids[:LENGTH])] += 1
    assert chi_square_p(counts, law(target, PLAIN)) < 1e-6


@pytest.mark.parametrize("method", ["self-skip", "self-window"])
def test_control_keys_of_draft_passes_that_stay_are_caught(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass that verifies would then read the draft behind the draft's own keys."""
    target = model()
    expected = ar(target, TEXT, 24)
    monkeypatch.setattr(SkippingSequence, "end", lambda self: None)

    def shared(self: WindowSequence) -> None:
        """Hands the window's keys to the target."""
        for own, whole in zip(self._attention_layers, self.whole._attention_layers, strict=True):
            assert own.keys is not None and whole.keys is not None
            length = min(own.length, whole.length)
            whole.keys[:, :, :length] = own.keys[:, :, :length]

    monkeypatch.setattr(WindowSequence, "end", shared)
    try:
        found = decoder(method, target, GREEDY, ["num_draft_tokens=3"]).generate(TEXT, StopRules(24), 0).token_ids
    except ConfigError:
        return
    assert found != expected


@pytest.mark.parametrize("method", ["self-skip", "self-skip-swift", "self-window"])
def test_a_prompt_is_read_by_the_target_alone_and_its_keys_stay(method: str) -> None:
    """Where several answers to a prompt share one pass over it, too, as in an audit."""
    target = model()
    made = decoder(method, target, PLAIN)
    made.drafter.prefill(TEXT)
    assert made.drafter.passes is not None and made.drafter.passes.num_passes == 0
    expected = [made.generate(TEXT, StopRules(8), seed) for seed in range(4)]
    with target.reading_prompts_once():
        found = [made.generate(TEXT, StopRules(8), seed) for seed in range(4)]
    assert [(each.token_ids, each.steps) for each in found] == [(each.token_ids, each.steps) for each in expected]


# State.


def steps_of(made: DraftingDecoder, prompt: list[int], seed: int) -> list[Any]:
    return made.generate(prompt, StopRules(16), seed).steps


@pytest.mark.parametrize("method", WAYS)
def test_a_prompt_alone_is_drafted_as_after_others(method: str) -> None:
    first = decoder(method, model(), PLAIN)
    steps_of(first, TEXT, 1)
    second = decoder(method, model(), PLAIN)
    assert steps_of(first, TEXT[:6], 2) == steps_of(second, TEXT[:6], 2)
    assert not first.drafter.learns_over_prompts


def test_control_a_set_that_crosses_prompts_is_told() -> None:
    made = decoder("self-skip-swift", model(), GREEDY, ["drafter.memory=run", "drafter.trials=200"])
    drafter = made.drafter
    assert isinstance(drafter, SelfSkipDrafter) and drafter.learns_over_prompts
    made.generate(TEXT, StopRules(24), 0)
    found, tried = drafter.sequence.skipped, drafter._num_tried
    made.generate(TEXT[:6], StopRules(2), 0)
    assert drafter._num_tried == tried > 5 and drafter.sequence.skipped == found
    drafter.begin_cell()
    assert drafter._num_tried == 0 and drafter.sequence.skipped == drafter.first_choice
    forgets = decoder("self-skip-swift", model(), GREEDY)
    assert isinstance(forgets.drafter, SelfSkipDrafter)
    forgets.generate(TEXT, StopRules(24), 0)
    assert forgets.drafter._num_tried > 5
    forgets.generate(TEXT[:6], StopRules(2), 0)
    assert forgets.drafter._num_tried == 0 and forgets.drafter.sequence.skipped == forgets.drafter.first_choice


def test_the_search_keeps_the_best_set_and_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([0.3, 0.2, 0.5, 0.5, 0.9, 0.1])
    tried: list[SubLayers] = []

    def agreement(self: SkippingSequence, ids: list[int], num_tokens: int) -> float:
        tried.append(self.skipped)
        return next(scores)

    monkeypatch.setattr(own_drafts.SkippingSequence, "agreement", agreement)
    made = decoder("self-skip-swift", model(), GREEDY, ["drafter.enough=0.8", "num_draft_tokens=1"])
    made.generate(TEXT, StopRules(40), 0)
    drafter = made.drafter
    assert isinstance(drafter, SelfSkipDrafter)
    assert len(tried) == 5 and tried[0] == drafter.first_choice and drafter.sequence.skipped == tried[4]
    scores = iter([0.3, 0.2, 0.1])
    made = decoder("self-skip-swift", model(), GREEDY, ["drafter.trials=3", "num_draft_tokens=1"])
    made.generate(TEXT, StopRules(40), 0)
    assert len(tried) == 8
    assert isinstance(made.drafter, SelfSkipDrafter) and made.drafter.sequence.skipped == made.drafter.first_choice


def test_neighbours_have_the_same_size_and_keep_the_first_and_the_last_layer() -> None:
    coins = torch.Generator().manual_seed(0)
    start = chosen(12, 0.45, None, None)
    assert start == SubLayers((2, 4, 7, 9), (2, 4, 7, 9))
    seen = {neighbour(start, 12, coins) for _ in range(60)}
    assert len(seen) > 40 and start not in seen
    for each in seen:
        assert len(each.attention) + len(each.mlp) == len(start.attention) + len(start.mlp)
        assert not {0, 11} & {*each.attention, *each.mlp}
    assert 10 < sum(changed(start, each) == 1 for each in seen) < 50


def changed(first: SubLayers, second: SubLayers) -> int:
    pairs = [{(kind, n) for kind, numbers in enumerate(each) for n in numbers} for each in (first, second)]
    return len(pairs[0] - pairs[1])


# A copy of few bits.


def in_bfloat16(**options: Any) -> CausalLM:
    network = tiny.network("llama", 0, hidden_size=64, intermediate_size=96, vocab_size=256, **options)
    return CausalLM(network.to(torch.bfloat16), tiny.tokenizer(), "tiny", "abc")


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_a_copy_shares_what_is_not_quantized_and_leaves_the_target_as_it_is(quantize: Any, tied: bool) -> None:
    target = in_bfloat16(tie_word_embeddings=tied)
    before = target.score(TEXT, 4).logits.clone()
    made = quantized_copy(target, quantize)
    assert made is quantized_copy(target, quantize) and made.precision == f"{quantize} (bfloat16)"
    embeddings = [each.model.get_input_embeddings().weight for each in (target, made)]
    assert embeddings[0] is embeddings[1] and not stored_layers(target.model)
    kinds = [layer.kind for layer in stored_layers(made.model)]
    assert set(kinds[:-1]) == {quantize} and kinds[-1] == "int8"
    target.reset()
    assert torch.equal(target.score(TEXT, 4).logits, before)
    plain = in_bfloat16(tie_word_embeddings=tied)
    store_weights(plain.model, quantize)
    assert torch.equal(made.score(TEXT, 4).logits, plain.score(TEXT, 4).logits)
    assert not torch.equal(made.score(TEXT, 1).logits, before[-1:])


def test_a_copy_of_a_target_in_float32_computes_in_bfloat16() -> None:
    target = tiny.causal_lm("llama", vocab_size=256)
    before = target.score(TEXT, 4).logits.clone()
    made = quantized_copy(target, "int8")
    assert made.dtype == "bfloat16" and target.dtype == "float32"
    target.reset()
    assert torch.equal(target.score(TEXT, 4).logits, before)


def test_a_packed_target_is_copied_too() -> None:
    if not packs_bfloat16():
        pytest.skip("torch packs no bfloat16 products on this machine")
    plain, packed = in_bfloat16(), in_bfloat16()
    store_weights(packed.model)
    kinds = [layer.kind for layer in stored_layers(packed.model)]
    assert set(kinds) == {"packed"}
    expected, found = (quantized_copy(each, "int8").score(TEXT, 4).logits for each in (plain, packed))
    assert torch.equal(expected, found)
    assert [layer.kind for layer in stored_layers(packed.model)] == kinds


# What is refused.


def refused(method: str, target: CausalLM, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        decoder(method, target, GREEDY, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_does_not_fit_is_refused_in_one_line() -> None:
    few = tiny.causal_lm("llama", num_hidden_layers=2)
    nothing = ["drafter.attention=[]", "drafter.mlp=[]"]
    assert "drafter.share = 0.45: the target has 2 layers" in refused("self-skip-swift", few)
    assert "drafter.attention = [4]: give different layers in ascending order, from 0 to 3" in refused(
        "self-skip", model(), "drafter.attention=[4]"
    )
    assert "nothing is skipped: name a layer" in refused("self-skip", model(), *nothing)
    assert "drafter.mlp = [2, 1]" in refused("self-skip", model(), "drafter.mlp=[2, 1]")
    for method in ("self-skip", "self-window"):
        recurrent = tiny.causal_lm("qwen3_5_text")
        assert "has recurrent layers, whose one state drafts cannot share" in refused(method, recurrent)
    quantized = tiny.causal_lm("llama")
    quantized.quantization = "int8"
    assert "has int8 weights already: leave out --quantize" in refused("self-quantized", quantized)
    assert "needs either quantize or checkpoint, and neither is given" in refused(
        "self-quantized", model(), "drafter.quantize=null"
    )
    odd = tiny.causal_lm("llama", hidden_size=24, head_dim=6, intermediate_size=20)
    assert "has no linear layer of a size that torch's kernels take" in refused("self-quantized", odd)


def test_a_file_is_a_draft_model_that_the_method_names() -> None:
    """Only then does the method need one."""
    words = ["drafter.quantize=null", "drafter.checkpoint=model-Q4_K_M.gguf"]
    _, (named,) = with_overrides([], [load_method("self-quantized")], words)
    assert named.needs_drafter and named.checkpoint == "model-Q4_K_M.gguf" and named.same_vocabulary
    plain = load_method("self-quantized")
    assert not plain.needs_drafter and plain.checkpoint is None
    _, (folder,) = with_overrides([], [plain], ["drafter.quantize=null", "drafter.checkpoint=org/model"])
    _, (both,) = with_overrides([], [plain], ["drafter.checkpoint=model.gguf"])
    models = ModelPair(model(), model(seed=1))
    with pytest.raises(ConfigError, match=r"drafter.checkpoint = 'org/model': is not a GGUF file: give the target's"):
        build_decoder(folder, models, GREEDY)
    with pytest.raises(ConfigError, match="needs either quantize or checkpoint, and both are given"):
        build_decoder(both, models, GREEDY)


def test_layers_that_take_other_outputs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_drafts, "skipped_attention", lambda cached: lambda hidden_states, **_: (hidden_states,) * 3)
    assert "the layers of 'tiny-llama' cannot be skipped in part" in refused("self-skip", model())


def test_compiled_passes_are_refused(made: list[str]) -> None:
    for method in WAYS:
        target = model()
        target.make_static()
        assert "take --engine eager" in refused(method, target)
