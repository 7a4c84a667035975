"""A drafter that is itself speculative: its draft has the draft model's law, whatever drafts for the draft model."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from specbench.core.errors import ConfigError, DrafterError
from specbench.core.registry import DRAFTERS, DrafterFeatures
from specbench.decoding import sampling as sampling_module
from specbench.decoding.build import build_decoder
from specbench.decoding.drafters import Drafter, ModelDrafter
from specbench.decoding.drafters.cascade import CascadeDrafter
from specbench.decoding.loop import GenerationOutput, StopRules, decode
from specbench.decoding.proposal import PointMass, Proposal, Verification
from specbench.decoding.sampling import Distributions, Sampling, process
from specbench.decoding.verification import VerificationRule, rejection
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.loading import load_model
from specbench.results.leaderboard import load
from specbench.running.capture_plan import compile_requirements
from specbench.running.models import LoadedModels
from specbench.specs.catalogue import load_method
from specbench.specs.components import build
from specbench.specs.method import MethodSpec
from tests.support import tiny
from tests.support.distributions import PLAIN, PROMPT, VOCAB, chi_square_p
from tests.support.toys import TableModel

TOP_P = Sampling(1.0, None, 0.8)
LENGTH = 3
INNERS: dict[str, dict[str, Any]] = {
    "prompt lookup": {"type": "prompt_lookup"},
    "suffix": {"type": "suffix"},
    "jacobi": {"type": "jacobi"},
    "model": {"type": "model", "checkpoint": "third"},
    "model tree": {"type": "model_tree", "widths": [2, 1], "checkpoint": "third"},
    "token recycling": {"type": "token_recycling", "rank_chances": [0.5, 0.3], "num_nodes": 5, "depth": 2},
    "lookahead": {"type": "lookahead", "window": 2, "ngram": 2, "guesses": 2},
}


def table(seed: int, **options: Any) -> TableModel:
    made = TableModel(VOCAB, seed, **options)
    made.check_trees = lambda: None  # type: ignore[attr-defined]
    made.context_limit = None  # type: ignore[attr-defined]
    made.name = f"table {seed}"  # type: ignore[attr-defined]
    made.revision = None  # type: ignore[attr-defined]
    return made


def trio(seed: int = 1, **options: Any) -> ModelPair:
    return ModelPair(table(seed), table(seed + 1000, **options), inner=table(seed + 2000, spread=2.5))  # type: ignore[arg-type]


def cascade(
    models: ModelPair, inner: str = "prompt lookup", sampling: Sampling = PLAIN, tokens: int = 2, **options: Any
) -> CascadeDrafter:
    return CascadeDrafter(models, sampling, inner=INNERS[inner], inner_tokens=tokens, **options)


def probs(model: TableModel, ids: list[int], sampling: Sampling) -> torch.Tensor:
    return process(model.table[ids[-2], ids[-1]][None], sampling)[0]


def law(model: TableModel, sampling: Sampling, length: int = LENGTH) -> dict[tuple[int, ...], float]:
    found = {(): 1.0}
    for _ in range(length):
        found = {
            (*tokens, token): mass * chance
            for tokens, mass in found.items()
            for token, chance in enumerate(probs(model, [*PROMPT, *tokens], sampling).tolist())
            if chance
        }
    return found


# The draft itself.


class Choices:
    """Draws that are chosen one after another: all sequences of choices are tried, and the product of their chances is
    known."""

    def __init__(self) -> None:
        self.chosen: list[int] = []
        self.options: list[int] = []
        self.place, self.mass = 0, 1.0

    def draw_rows(self, rows: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return torch.tensor([self._draw(row / row.sum()) for row in rows])

    def _draw(self, row: torch.Tensor) -> int:
        able = [token for token, chance in enumerate(row.tolist()) if chance > 0]
        if self.place == len(self.chosen):
            self.chosen.append(0)
            self.options.append(len(able))
        token = able[self.chosen[self.place]]
        self.place += 1
        self.mass *= float(row[token])
        return token

    def __iter__(self) -> Iterator[None]:
        while True:
            self.place, self.mass = 0, 1.0
            yield None
            while self.chosen and self.chosen[-1] + 1 == self.options[-1]:
                self.chosen.pop()
                self.options.pop()
            if not self.chosen:
                return
            self.chosen[-1] += 1


@pytest.mark.parametrize("sampling", [PLAIN, TOP_P], ids=["T=1", "top-p"])
@pytest.mark.parametrize("inner", ["prompt lookup", "suffix", "jacobi"])
def test_the_exact_law_of_a_draft_is_the_draft_models(
    inner: str, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every outcome of every draw is tried: three tokens, of which the inner drafter gives up to two at a time. Each
    row that the target is handed is the draft model's at that place."""
    models = trio()
    small: Any = models.drafter
    choices = Choices()
    monkeypatch.setattr(sampling_module, "draw_rows", choices.draw_rows)
    made = cascade(models, inner, sampling, inner_verification={"rule": "exact_match"})
    found: dict[tuple[int, ...], float] = {}
    text = [*PROMPT, 2, *PROMPT]
    accepted = 0
    for _ in choices:
        made.prefill(text)
        proposal = made.propose(text, LENGTH, torch.Generator())
        tokens = tuple(proposal.token_ids)
        found[tokens] = found.get(tokens, 0.0) + choices.mass
        rows = torch.stack([probs(small, [*text, *tokens[:place]], sampling) for place in range(LENGTH)])
        assert isinstance(proposal.probs, Distributions)
        torch.testing.assert_close(proposal.probs.probs, rows)
        accepted += made.passes.num_passes < LENGTH
        made.passes.clear()
    expected = law(small, sampling)
    assert set(found) == set(expected) and accepted > 0
    assert max(abs(found[tokens] - mass) for tokens, mass in expected.items()) < 1e-5


def greedy_text(model: TableModel, ids: list[int], length: int) -> list[int]:
    text = list(ids)
    for _ in range(length):
        text.append(int(model.table[text[-2], text[-1]].argmax()))
    return text[len(ids) :]


@pytest.mark.parametrize("inner", INNERS)
def test_a_greedy_draft_is_what_the_draft_model_writes_in_fewer_passes(inner: str) -> None:
    models = trio(4)
    small: Any = models.drafter
    made = cascade(models, inner, Sampling(0.0))
    text = [0, 1, 2, 0, 1, 1, 0, 2]
    made.prefill(text)
    num_passes = 0
    for _ in range(4):
        proposal = made.propose(text, 6, torch.Generator())
        assert proposal.token_ids == greedy_text(small, text, 6)
        num_passes += made.passes.num_passes
        made.passes.clear()
        text = [*text, *proposal.token_ids[:3], 2]  # three stand
    assert 4 <= num_passes < 24


def test_a_draft_ends_with_its_end_token() -> None:
    models = trio(4, eos_token_ids=[2])
    small: Any = models.drafter
    made = cascade(models, "model", PLAIN)
    generator = torch.Generator().manual_seed(0)
    made.prefill(PROMPT)
    drafts = [made.propose(PROMPT, 6, generator) for _ in range(60)]
    ends = [each.token_ids.index(2) if 2 in each.token_ids else None for each in drafts]
    assert any(ends) and all(
        end is None or end == len(each.token_ids) - 1 for end, each in zip(ends, drafts, strict=True)
    )
    assert all(isinstance(each.probs, Distributions) for each in drafts)
    assert all(len(each.probs.probs) == len(each.token_ids) for each in drafts)  # type: ignore[union-attr]
    assert small.eos_token_ids == {2}


# Through the real loop.


def sequences(
    models: ModelPair, made: Any, rule: VerificationRule, sampling: Sampling, num_draws: int = 400
) -> tuple[Counter[tuple[int, ...]], list[GenerationOutput]]:
    generator = torch.Generator().manual_seed(5)
    outputs = [
        decode(
            models.target, made, rule, PROMPT, num_draft_tokens=3, sampling=sampling,
            stop=StopRules(max_new_tokens=LENGTH + 2), generator=generator,
        )
        for _ in range(num_draws)
    ]  # fmt: skip
    return Counter(tuple(each.token_ids[:LENGTH]) for each in outputs), outputs


@pytest.mark.parametrize("sampling", [PLAIN, TOP_P], ids=["T=1", "top-p"])
@pytest.mark.parametrize("inner", INNERS)
def test_sampled_output_follows_the_target(inner: str, sampling: Sampling) -> None:
    models = trio()
    counts, outputs = sequences(models, cascade(models, inner, sampling), rejection, sampling)
    target: Any = models.target
    expected = law(target, sampling)
    assert not set(counts) - set(expected)
    assert chi_square_p(counts, expected) > 1e-3
    assert sum(step.num_accepted for each in outputs for step in each.steps) > 200


class Replacing(VerificationRule):
    """The middle level of a published cascade: a rejected draft token is replaced by a draw from the draft model's
    distribution, and not from the residual."""

    def __call__(self, proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verification:
        found = rejection(proposal, target, generator)
        if found.num_accepted == proposal.num_drafted:
            return found
        return Verification(found.num_accepted, target.draw(found.num_accepted, generator))


def test_control_a_recovered_token_that_is_no_residual_is_caught() -> None:
    """Its drafts are not of the law that is handed on."""
    models = trio()
    target: Any = models.target
    made = cascade(models, "model", PLAIN)
    made.rule = Replacing()
    counts, _ = sequences(models, made, rejection, PLAIN, 3000)
    assert chi_square_p(counts, law(target, PLAIN)) < 1e-6


class Inner(CascadeDrafter):
    """Hands on the inner model's distributions."""

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        made = super().propose(ids, num_draft_tokens, generator)
        if made.num_drafted:
            inner: Any = self.inner.model
            rows = [inner.table[tuple([*ids, *made.token_ids[:n]][-2:])] for n in range(made.num_drafted)]
            made.probs = Distributions(torch.stack(rows), self.sampling)
        return made


def test_control_the_inner_models_distribution_is_caught() -> None:
    models = trio()
    target: Any = models.target
    made = Inner(models, PLAIN, inner=INNERS["model"], inner_tokens=2)
    counts, _ = sequences(models, made, rejection, PLAIN)
    assert chi_square_p(counts, law(target, PLAIN)) < 1e-6


LEVELS: dict[str, dict[str, Any]] = {
    "quantized": {"type": "self_quantized", "quantize": "int8"},
    "skipping": {"type": "self_skip", "attention": [1], "mlp": [1, 2]},
    "window": {"type": "self_window", "sink": 1, "window": 3},
}


def of_target(level: str, target: CausalLM, sampling: Sampling, inner: str = "prompt lookup") -> CascadeDrafter:
    return CascadeDrafter(ModelPair(target), sampling, inner=INNERS[inner], level=LEVELS[level], inner_tokens=2)


@pytest.mark.parametrize("inner", ["prompt lookup", "jacobi"])
@pytest.mark.parametrize("level", LEVELS)
def test_the_target_on_both_levels_writes_what_it_writes_alone(level: str, inner: str) -> None:
    target = tiny.causal_lm()
    ids = [3, 1, 4, 1, 5, 3, 1, 4]
    expected = list(ids)
    for _ in range(24):
        expected.append(int(target.score(expected, 1).logits[0].argmax()))
    found = decode(
        target, of_target(level, target, Sampling(0.0), inner), rejection, ids, num_draft_tokens=4,
        sampling=Sampling(0.0), stop=StopRules(24), generator=torch.Generator(),
    )  # fmt: skip
    assert found.token_ids == expected[len(ids) :]
    assert {length for length, _ in found.draft_passes} > {1}


def test_a_draft_model_may_skip_its_own_layers_on_the_inner_level() -> None:
    """It then drafts for itself, over its own keys."""
    models = ModelPair(tiny.causal_lm(), tiny.causal_lm(seed=1))
    inner = {"type": "self_skip", "attention": [1], "mlp": [1]}
    made = CascadeDrafter(models, Sampling(0.0), inner=inner, inner_tokens=2)
    text = [3, 1, 4, 1, 5]
    made.prefill(text)
    fresh = tiny.causal_lm(seed=1)
    for _ in range(3):
        expected = list(text)
        for _ in range(5):
            expected.append(int(fresh.score(expected, 1).logits[0].argmax()))
        assert made.propose(text, 5, torch.Generator()).token_ids == expected[len(text) :]
        text = [*expected[:-2], 7]  # the target accepts some and goes on otherwise
    assert max(length for length, _ in made.passes.read()) > 1


@pytest.mark.parametrize("sampling", [PLAIN, TOP_P], ids=["T=1", "top-p"])
@pytest.mark.parametrize("level", ["skipping", "window"])
def test_sampled_output_of_the_target_on_both_levels_follows_it(level: str, sampling: Sampling) -> None:
    target = tiny.causal_lm("llama", 3, vocab_size=4)
    text = [1, 2, 0, 3, 1, 2]
    expected: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        expected = {
            (*tokens, token): mass * chance
            for tokens, mass in expected.items()
            for token, chance in enumerate(process(target.score([*text, *tokens], 1).logits, sampling)[0].tolist())
            if chance
        }
    made = of_target(level, target, sampling)
    with target.reading_prompts_once():
        outputs = [
            decode(
                target, made, rejection, text, num_draft_tokens=3, sampling=sampling, stop=StopRules(LENGTH + 2),
                generator=torch.Generator().manual_seed(seed),
            )
            for seed in range(400)
        ]  # fmt: skip
    counts = Counter(tuple(each.token_ids[:LENGTH]) for each in outputs)
    assert not set(counts) - set(expected) and chi_square_p(counts, expected) > 1e-3
    assert sum(step.num_accepted for each in outputs for step in each.steps) > 200


# State and costs.


def written(models: ModelPair, made: CascadeDrafter, prompt: list[int]) -> tuple[list[int], list[Any]]:
    found = decode(
        models.target, made, rejection, prompt, num_draft_tokens=3, sampling=PLAIN,
        stop=StopRules(max_new_tokens=20), generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    return found.token_ids, found.steps


@pytest.mark.parametrize("inner", INNERS)
def test_a_prompt_alone_is_drafted_as_after_others(inner: str) -> None:
    models = trio(3)
    made = cascade(models, inner)
    written(models, made, [0, 1, 2, 0, 1])
    again = trio(3)
    assert written(models, made, [2, 1, 0]) == written(again, cascade(again, inner), [2, 1, 0])
    assert not made.learns_over_prompts


def test_control_a_memory_that_crosses_prompts_is_told() -> None:
    inner = {**INNERS["token recycling"], "memory": "cell"}
    models, again = trio(3), trio(3)
    made, fresh = (CascadeDrafter(each, PLAIN, inner=inner, inner_tokens=2) for each in (models, again))
    written(models, made, [0, 1, 2, 0, 1])
    assert written(models, made, [2, 1, 0]) != written(again, fresh, [2, 1, 0]) and made.learns_over_prompts


@pytest.mark.parametrize("inner", ["prompt lookup", "suffix"])
def test_tokens_that_the_target_did_not_accept_are_taken_back(inner: str) -> None:
    """What drafts from the text then drafts as if it had never read them."""
    models = trio(4)
    made, fresh = cascade(models, inner, Sampling(0.0)), cascade(trio(4), inner, Sampling(0.0))
    text = [0, 1, 2, 0, 1, 1, 0, 2]
    made.prefill(text)
    made.propose(text, 6, torch.Generator())
    after = [*text, 1, 1]
    fresh.prefill(after)
    for each in (made, fresh):
        each.passes.clear()
        each.propose(after, 6, torch.Generator())
    assert [length for length, _ in made.passes.read()] == [length for length, _ in fresh.passes.read()]


def test_a_step_of_the_inner_level_is_one_pass_with_all_that_it_took() -> None:
    models = trio(4)
    small: Any = models.drafter
    made = cascade(models, "model", PLAIN, tokens=3)
    found = decode(
        models.target, made, rejection, PROMPT, num_draft_tokens=4, sampling=PLAIN, stop=StopRules(max_new_tokens=30),
        generator=torch.Generator().manual_seed(1),
    )  # fmt: skip
    lengths = [length for length, _ in found.draft_passes]
    assert len(lengths) == small.passes.num_passes and set(lengths) <= {1, 2, 3, 4}
    drafted = sum(step.num_drafted for step in found.steps)
    assert len(lengths) < drafted
    assert made.chain_lengths(4) == (4,) and made.chain_lengths(2) == (2,) and made.level_lengths(4) == ()
    tree = cascade(models, "model tree")
    assert tree.chain_lengths(4) == () and tree.level_lengths(4) == (5,)


def test_without_a_room_for_two_tokens_it_is_the_draft_model() -> None:
    models = trio(4)
    assert models.drafter is not None
    made, plain = cascade(models, "model", PLAIN), ModelDrafter(models.drafter, PLAIN)
    for each in (made, plain):
        each.prefill(PROMPT)
    first, second = (each.propose(PROMPT, 1, torch.Generator().manual_seed(3)) for each in (made, plain))
    assert first.token_ids == second.token_ids and made.propose(PROMPT, 0, torch.Generator()).token_ids == []


# What is refused.


def method(**drafter: Any) -> MethodSpec:
    return build(MethodSpec, {**load_method("cascade").model_dump(), "drafter": {"type": "cascade", **drafter}})


@pytest.mark.parametrize(
    ("drafter", "said"),
    [
        ({}, "drafter.inner: the key 'inner' is missing: add it"),
        ({"inner": {"type": "lokup"}}, "drafter.inner.type: unknown drafter 'lokup'"),
        ({"inner": {"type": "prompt_lookup", "max_match": 99}}, "drafter.inner.max_match = 99"),
        ({"inner": {"type": "none"}}, "drafter.inner.type = 'none': drafts nothing: take drafter.type=model"),
        ({"inner": {"type": "cascade", "inner": {"type": "jacobi"}}}, "is a cascade: there are two levels"),
        ({"inner": {"type": "medusa"}}, "reads hidden states of tokens that may be taken back"),
        ({"inner": {"type": "model"}}, "drafter.inner.checkpoint: drafter 'model' needs a model of its own"),
        ({"inner": {"type": "suffix", "memory": "run"}}, "drafter.inner.memory = 'run': its text has draft tokens"),
        (
            {
                "inner": {"type": "prompt_lookup"},
                "inner_verification": {"rule": "fuzzy", "divergence": "js", "threshold": 0.3},
            },
            "drafter.inner_verification.rule = 'fuzzy': is lossy",
        ),
        ({"inner": {"type": "prompt_lookup"}, "inner_tokens": 0}, "drafter.inner_tokens = 0"),
        ({"inner": {"type": "jacobi"}, "level": {"type": "ngram"}}, "drafter.level.type = 'ngram': is not a way"),
        (
            {"inner": {"type": "jacobi"}, "level": {"type": "self_quantized", "checkpoint": "a.gguf"}},
            "drafter.level.checkpoint: a file is a draft model: delete the key, and give --drafter",
        ),
        (
            {"inner": {"type": "jacobi"}, "level": {"type": "self_skip", "choice": "on_the_fly"}},
            "drafter.level.choice = 'on_the_fly': a level skips the same sub-layers: write fixed",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(drafter: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        method(**drafter)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_rule_that_does_not_fit_the_inner_draft_is_refused() -> None:
    models = trio()
    with pytest.raises(ConfigError, match=r"drafter.inner_verification.rule = 'rejection': needs probs, which drafter"):
        cascade(models, "lookahead", inner_verification={"rule": "rejection"})
    with pytest.raises(ConfigError, match=r"needs probs, which drafter 'model_tree' lacks: write exact_match"):
        cascade(models, "model tree", inner_verification={"rule": "rejection"})


def test_a_drafter_of_a_user_is_checked_on_the_inner_level_too() -> None:
    """A plug-in's class is told by its place, and is rewound as a built-in one is."""
    rewound: list[list[int]] = []

    class Last(Drafter):
        def __init__(self, models: Any, sampling: Any) -> None:
            super().__init__()

        def rewind(self, ids: list[int]) -> None:
            rewound.append(list(ids))

        def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
            return Proposal([99 if rewound else 0][:num_draft_tokens], PointMass([99 if rewound else 0]))

    name = DRAFTERS.add_object("last", Last, DrafterFeatures(provides={"probs"}))
    models = trio()
    made = CascadeDrafter(models, PLAIN, inner={"type": name}, inner_tokens=2)
    made.prefill(PROMPT)
    made.propose(PROMPT, 3, torch.Generator().manual_seed(0))
    with pytest.raises(DrafterError, match=r"drafter.inner 'object:last' returned token 99: it must be from 0 to 2"):
        made.propose([*PROMPT, 2], 3, torch.Generator().manual_seed(0))
    assert rewound == [[*PROMPT, 2]]


def test_a_target_cannot_draft_on_two_levels_or_read_trees() -> None:
    target = tiny.causal_lm()
    with pytest.raises(ConfigError, match="the target drafts on the second level: name another drafter"):
        CascadeDrafter(ModelPair(target), PLAIN, inner={"type": "self_skip"}, level=LEVELS["window"])
    with pytest.raises(ConfigError, match=r"proposes trees, and drafter.level reads chains only"):
        of_target("skipping", target, PLAIN, "lookahead")
    with pytest.raises(ConfigError, match=r"drafter.checkpoint = 'x': drafter.level replaces it: delete one"):
        CascadeDrafter(ModelPair(target), PLAIN, inner=INNERS["jacobi"], level=LEVELS["window"], checkpoint="x")
    alone = method(inner={"type": "jacobi"}, level=LEVELS["quantized"])
    assert not alone.needs_drafter and alone.checkpoint is None and method(inner={"type": "jacobi"}).needs_drafter


def test_the_method_is_what_its_file_says(embedded_pair: ModelPair) -> None:
    spec = load_method("cascade")
    assert spec.lossless and spec.needs_drafter and spec.inner_checkpoint is None and not spec.drafts_token_by_token
    made = build_decoder(spec, embedded_pair, Sampling(0.0))
    assert isinstance(made.drafter, CascadeDrafter)  # type: ignore[attr-defined]
    assert made.drafter.rule is rejection or type(made.drafter.rule) is type(rejection)  # type: ignore[attr-defined]
    third = method(inner={"type": "model", "checkpoint": "embedded:drafter"})
    assert third.inner_checkpoint == "embedded:drafter"


@pytest.mark.parametrize("name", ["cascade", "jacobi"])
def test_passes_of_fixed_lengths_write_the_same(name: str, made: list[str]) -> None:
    prompt = [5, 6, 7, 5, 6]

    def written_by(engine: str) -> list[int]:
        models = ModelPair(*(tiny.causal_lm(seed=seed, num_hidden_layers=1) for seed in range(2)))
        for model in (models.target, models.drafter) if engine == "compiled" else ():
            assert model is not None
            model.make_static()
        decoder = build_decoder(load_method(name), models, Sampling(0.0))
        return decoder.generate(prompt, StopRules(20), 0).token_ids

    assert written_by("compiled") == written_by("eager") and made


def test_three_models_run(specbench: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    """The third one is loaded, prepared and named in the run's identity."""
    keys = load_method("cascade").model_dump(exclude={"sweep"})
    keys["drafter"] |= {"inner": {"type": "model", "checkpoint": "embedded:drafter-scdf"}, "inner_tokens": 3}
    (tmp_path / "three.yaml").write_text(yaml.safe_dump({**keys, "name": "three"}))
    words = ("run", "--task", "mgsm", "--subset", "en", "--data", "sample", "--limit", "1", "--threads", "1",
             "--set", "generation.max_new_tokens=12", "--output", "here")  # fmt: skip
    code, _, said = specbench(*words, "--method", "three.yaml")
    assert code == 0, said
    (record,) = map(json.loads, (tmp_path / "here" / "records.jsonl").read_text().splitlines())
    answers = record["methods"]
    assert answers["three"]["token_ids"] == answers["ar"]["token_ids"]
    lengths = [length for length, _ in answers["three"]["passes"]["draft"]]
    assert lengths and max(lengths) <= 4
    identity = json.loads((tmp_path / "here" / "run.json").read_text())["drafters"]["three"]
    names = [load_model(f"embedded:{name}", weights=False) for name in ("drafter", "drafter-scdf")]
    assert identity["name"] == "embedded:drafter after embedded:drafter-scdf"
    assert identity["revision"] == ", ".join(str(each.revision) for each in names)


def test_the_answers_that_an_inner_drafter_copies_identify_the_run_and_their_place_does_not(
    specbench: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    words = ("run", "--task", "mgsm", "--subset", "en", "--data", "sample", "--limit", "2", "--threads", "1",
             "--set", "generation.max_new_tokens=8")  # fmt: skip
    code, _, said = specbench(*words, "--method", "pld", "--output", "before")
    assert code == 0, said
    shutil.copytree(tmp_path / "before", tmp_path / "moved")

    def run(memory: str) -> tuple[int, str]:
        keys = load_method("cascade").model_dump(exclude={"sweep"})
        keys["drafter"] |= {"inner": {"type": "suffix", "memory": str(tmp_path / memory)}}
        (tmp_path / "copying.yaml").write_text(yaml.safe_dump({**keys, "name": "copying"}))
        code, _, said = specbench(*words, "--method", "copying.yaml", "--output", "here")
        return code, " ".join(said.split())

    assert run("before")[0] == 0
    identity = (tmp_path / "here" / "run.json").read_text()
    assert "embedded:drafter after answers " in identity and str(tmp_path) not in identity
    (row,) = (each for each in load(tmp_path / "here" / "leaderboard.json") if each.method_name == "copying")
    assert row.options["drafter"]["inner"]["memory"] == "folder" and row.memory == "warm"
    assert run("moved")[0] == 0, "the same answers in another folder resume the run"
    records = tmp_path / "moved" / "records.jsonl"
    records.write_text(records.read_text().splitlines()[0] + "\n")
    code, said = run("moved")
    assert code == 2 and "(drafter of method copying: " in said, said


def test_an_inner_model_that_does_not_fit_is_told(
    specbench: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    keys = load_method("cascade").model_dump(exclude={"sweep"})
    keys["drafter"] |= {"inner": {"type": "model", "checkpoint": "embedded:drafter-bytes"}}
    (tmp_path / "three.yaml").write_text(yaml.safe_dump({**keys, "name": "three"}))
    code, _, said = specbench("run", "--task", "mgsm", "--subset", "en", "--limit", "1", "--method", "three.yaml")
    assert code == 2 and said.count("\n") <= 2
    assert "method 'three': drafter.inner.checkpoint = 'embedded:drafter-bytes': " in said
    assert "has another vocabulary" in said


def test_recorded_or_compiled_passes_of_the_draft_model_are_prepared(embedded_pair: ModelPair) -> None:
    assert embedded_pair.drafter is not None
    spec = load_method("cascade")
    models = LoadedModels(embedded_pair.target, {"cascade": embedded_pair.drafter, "cascade/inner": table(1)})  # type: ignore[dict-item]
    made = build_decoder(spec, embedded_pair, Sampling(0.0))
    needs = {id(each.model): each.lengths for each in compile_requirements(models, [spec], [made])}
    assert needs[id(embedded_pair.drafter)] == {1, 2, 5} and needs[id(embedded_pair.target)] == {1, 9}
    assert needs[id(models.drafters["cascade/inner"])] == {1, 2}
    assert models.pair(spec).inner is models.drafters["cascade/inner"]
    assert models.pair(spec).route_drafters == {}
