"""Random allocation: every query is one model's alone, by its own random stream."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specbench.core.errors import ConfigError
from specbench.decoding.build import build_decoder
from specbench.decoding.decoder import Decoder, DraftingDecoder, stream_seed
from specbench.decoding.loop import StopRules
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.records.generation import Record, convert
from specbench.running.prompts import PromptRenderer
from specbench.running.warm_up import warm_up_subset
from specbench.specs.catalogue import load_method
from specbench.specs.method import MethodSpec
from specbench.tasks.examples import Example
from tests.support import tiny
from tests.support.records import whole

Specbench = Callable[..., tuple[int, str, str]]
GREEDY, WARM = Sampling(0.0), Sampling(1.0)
PROMPT = list(range(40, 60))
STOP = StopRules(12)


def method(share: float) -> MethodSpec:
    return load_method("random-allocation").model_copy(update={"drafter_share": share})


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    return ModelPair(*(tiny.causal_lm(seed=seed, num_hidden_layers=1) for seed in range(2)))


def share_of_drafter(decoder: Decoder, seeds: list[int]) -> float:
    return sum(decoder.select_decoder(seed).method.decodes_with == "drafter" for seed in seeds) / len(seeds)


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "drawn"])
@pytest.mark.parametrize(("share", "name"), [(0.0, "ar"), (1.0, "draft-only")])
def test_at_the_ends_it_is_one_model(pair: ModelPair, sampling: Sampling, share: float, name: str) -> None:
    allocated, alone = build_decoder(method(share), pair, sampling), build_decoder(load_method(name), pair, sampling)
    for seed in (*range(3), 2**63 - 1):
        own, other = (decoder.generate(PROMPT, STOP, seed) for decoder in (allocated, alone))
        assert (own.token_ids, own.steps) == (other.token_ids, other.steps)


def test_in_between_each_query_is_of_one_model(pair: ModelPair) -> None:
    allocated = build_decoder(method(0.5), pair, WARM)
    target, drafter = (build_decoder(load_method(name), pair, WARM) for name in ("ar", "draft-only"))
    found = set()
    for seed in range(8):
        name = allocated.select_decoder(seed).method.decodes_with
        tokens = {"target": target, "drafter": drafter}[name].generate(PROMPT, STOP, seed).token_ids
        assert allocated.generate(PROMPT, STOP, seed).token_ids == tokens
        found.add(name)
    assert found == {"target", "drafter"}


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_the_share_is_kept(pair: ModelPair, share: float) -> None:
    """4,000 queries: five standard errors are at most 0.04."""
    seeds = [stream_seed(0, "task", example) for example in range(4000)]
    allocated = build_decoder(method(share), pair, GREEDY)
    assert share_of_drafter(allocated, seeds) == pytest.approx(share, abs=0.04)
    again = build_decoder(method(share), pair, GREEDY)
    assert [again.select_decoder(s).method for s in seeds[:99]] == [
        allocated.select_decoder(s).method for s in seeds[:99]
    ]


def test_a_drafter_of_other_tokens_is_refused(pair: ModelPair) -> None:
    """Tokens of two kinds in one sum make no speed."""
    with pytest.raises(ConfigError, match="'random-allocation' needs a draft model: give one with --drafter"):
        build_decoder(method(0.5), ModelPair(pair.target), GREEDY)
    wider = CausalLM(tiny.network(vocab_size=260), tiny.tokenizer(3), "wider", None)
    with pytest.raises(ConfigError, match=r"'random-allocation': .* has another vocabulary .*: use a method for two"):
        build_decoder(method(0.5), ModelPair(pair.target, wider), GREEDY)


def test_both_models_are_warmed_up(pair: ModelPair, monkeypatch: pytest.MonkeyPatch) -> None:
    warmed: list[Any] = []
    generate = DraftingDecoder.generate

    def spy(self: DraftingDecoder, *given: Any, **named: Any) -> Any:
        warmed.append(self.model)
        return generate(self, *given, **named)

    monkeypatch.setattr(DraftingDecoder, "generate", spy)
    task = SimpleNamespace(generation=SimpleNamespace(max_new_tokens=4))
    data = SimpleNamespace(examples=[Example(0, "a", ("What?",), ("1",))])
    decoders = (build_decoder(method(0.0), pair, GREEDY),)
    warm_up_subset(
        SimpleNamespace(task=task, data=data, decoders=decoders, context_limit=64, renderer=PromptRenderer())
    )  # type: ignore[arg-type]
    assert warmed == [pair.target, pair.drafter] * 2, "each a block and a long text"


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """A run in which the drafter has a chat template and the target has none: each must get its own prompts."""
    target, drafter = (
        tiny.save(tmp_path / name, seed=seed, num_hidden_layers=1) for seed, name in enumerate(("target", "drafter"))
    )
    (drafter / "chat_template.jinja").write_text("<{{ messages[0].content }}>")
    lines = [f"Question {i}: what is {i} + {i}?\t{2 * i}" for i in range(3)]
    (tmp_path / "mgsm_en.tsv").write_text("\n".join(lines), encoding="utf-8")
    return [
        "run", "--task", "mgsm", "--method", "draft-only,random-allocation", "--data", str(tmp_path), "--subset", "en",
        "--target", str(target), "--drafter", str(drafter), "--set", "generation.max_new_tokens=4", "--repeats", "2",
    ]  # fmt: skip


def records(folder: Path) -> dict[tuple[int, int], dict[str, Any]]:
    lines = (folder / "records.jsonl").read_text(encoding="utf-8").splitlines()
    return {(r["example"], r["repeat"]): r["methods"] for r in map(json.loads, lines)}


def test_a_run_says_who_decoded_and_may_be_resumed(specbench: Specbench, arguments: list[str], tmp_path: Path) -> None:
    code, out, err = specbench(*arguments, "--output", "whole", "--json")
    assert code == 0, err
    whole = records(tmp_path / "whole")
    others = {"target": "ar", "drafter": "draft-only"}
    for methods in whole.values():
        own = methods["random-allocation"]
        assert own["token_ids"] == methods[others[own["decoded_by"]]]["token_ids"]
        assert methods["ar"]["token_ids"] != methods["draft-only"]["token_ids"]
        assert own["passes"]["target"] and not own["passes"]["draft"] and "decoded_by" not in methods["ar"]
    deciders = {key: methods["random-allocation"]["decoded_by"] for key, methods in whole.items()}
    assert set(deciders.values()) == {"target", "drafter"} and len(deciders) == 6

    row = next(r for r in json.loads(out) if r["method"].startswith("random-allocation@"))
    drafted = [m["random-allocation"] for key, m in whole.items() if deciders[key] == "drafter"]
    num_new = [sum(len(g["token_ids"]) for g in some)
               for some in (drafted, [m["random-allocation"] for m in whole.values()])]  # fmt: skip
    assert row["lossless"] is False and row["drafter"].endswith("drafter")
    assert row["metrics"]["drafter_share"]["value"] == pytest.approx(num_new[0] / num_new[1])

    assert specbench(*arguments, "--output", "parts", "--limit", "2")[0] == 0
    assert "resuming" in specbench(*arguments, "--output", "parts")[2]
    parts = records(tmp_path / "parts")
    assert {key: m["random-allocation"]["decoded_by"] for key, m in parts.items()} == deciders
    assert all(parts[key][name]["token_ids"] == whole[key][name]["token_ids"] for key in whole for name in whole[key])


def test_a_record_names_one_of_the_two_models() -> None:
    convert(whole(decoded_by="drafter"), Record).check({"sd": 3})
    with pytest.raises(ValueError, match=r"decoded_by"):
        convert(whole(decoded_by="both"), Record)
