"""The plan of a run: every trial once, methods in alternating order, streams named by what they are for."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specbench.core.errors import ConfigError
from specbench.decoding.build import build_decoder
from specbench.decoding.decoder import DraftingDecoder, stream_seed
from specbench.decoding.draft_length import FIXED
from specbench.decoding.loop import StopRules
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import ModelPair
from specbench.running.measure import check_recorded, measure
from specbench.running.models import LoadedModels
from specbench.running.plan import SubsetRun, Trial, check_prompts, run_identity, trials
from specbench.running.prompts import PromptRenderer
from specbench.specs.catalogue import digest, load_method, load_task, method_names, with_overrides
from specbench.specs.run import RunSpec
from specbench.tasks.examples import Example, TaskData
from tests.support import tiny
from tests.support.records import changed, record


def decoder(name: str, learns: bool = False) -> DraftingDecoder:
    parts: Any = (
        SimpleNamespace(name=name),
        None,
        SimpleNamespace(learns_over_prompts=learns, memory_kind=None, length=FIXED),
        None,
        None,
    )
    return DraftingDecoder(*parts)


DECODERS = tuple(map(decoder, ("ar", "sd", "fsd")))


def run_of(
    subset: str, num_examples: int, num_turns: int = 1, task: str = "t", decoders: tuple[Any, ...] = DECODERS
) -> Any:
    turns = ("What?",) * num_turns
    examples = [Example(index, str(index), turns, (None,) * num_turns) for index in range(num_examples)]
    return SimpleNamespace(
        task=SimpleNamespace(name=task, generation=SimpleNamespace(reasoning=None)), subset=subset, decoders=decoders,
        data=SimpleNamespace(examples=examples),
    )  # fmt: skip


def places(plan: list[Trial]) -> list[tuple[str, int, int]]:
    return [(trial.run.subset, trial.example.index, trial.repeat) for trial in plan]


def test_blocks_cover_everything_and_alternate() -> None:
    """The subsets of a task are measured alternately, so that each has an answer early."""
    plan = list(trials([run_of("en", 3), run_of("ja", 2)], repeats=2, seed=0))
    assert places(plan) == [
        (subset, example, repeat) for repeat in range(2)
        for subset, example in (("en", 0), ("ja", 0), ("en", 1), ("ja", 1), ("en", 2))
    ]  # fmt: skip
    for subset, order in (("en", ["ar", "fsd", "ar", "fsd", "ar", "fsd"]), ("ja", ["ar", "fsd", "fsd", "ar"])):
        assert [trial.order[0].method.name for trial in plan if trial.run.subset == subset] == order
    first_of = {(b.run.subset, b.example.index, b.repeat): b.order[0] for b in plan}
    assert all(first_of[subset, example, 0] != first_of[subset, example, 1] for subset, example, _ in first_of)


def test_one_task_is_measured_after_the_other() -> None:
    plan = trials(
        [run_of("en", 2), run_of("ja", 1), run_of("en", 1, task="u"), run_of("ja", 1, task="u")],
        repeats=1, seed=0,
    )  # fmt: skip
    assert [(trial.run.task.name, trial.run.subset) for trial in plan] == [
        ("t", "en"), ("t", "ja"), ("t", "en"), ("u", "en"), ("u", "ja")
    ]  # fmt: skip


def test_a_drafter_that_learns_reads_one_subset_after_the_other() -> None:
    """It would learn from the other subsets, and forgets what it learnt where a subset begins."""
    learning = (*DECODERS, decoder("token-recycling", learns=True))
    plan = list(trials([run_of("en", 2), run_of("ja", 2, decoders=learning)], repeats=1, seed=0))
    assert [subset for subset, _, _ in places(plan)] == ["en", "en", "ja", "ja"]
    assert places(plan)[:2] == [("en", 0, 0), ("en", 1, 0)]


def test_a_drafter_that_learns_has_a_random_order_of_the_prompts_for_each_repeat() -> None:
    def orders(num_examples: int, seed: int, learns: bool = True) -> list[list[int]]:
        run = run_of("en", num_examples, decoders=(*DECODERS, decoder("token-recycling", learns=learns)))
        plan = list(trials([run], repeats=5, seed=seed))
        return [[trial.example.index for trial in plan if trial.repeat == repeat] for repeat in range(5)]

    found = orders(9, 0)
    assert all(sorted(order) == list(range(9)) for order in found)
    assert len({tuple(order) for order in (*found, range(9))}) == 6
    assert orders(9, 1) != found
    assert [[each for each in order if each < 9] for order in orders(12, 0)] == found, "more examples keep the order"
    assert orders(9, 0, learns=False) == [list(range(9))] * 5


def test_the_turns_of_an_example_stand_together_in_one_order() -> None:
    plan = list(trials([run_of("en", 2, num_turns=2)], repeats=2, seed=0))
    assert [(trial.example.index, trial.repeat, trial.turn) for trial in plan] == [
        (example, repeat, turn) for repeat in range(2) for example in range(2) for turn in range(2)
    ]
    assert [trial.order[0].method.name for trial in plan] == ["ar", "ar", "fsd", "fsd", "fsd", "fsd", "ar", "ar"]
    assert plan[1].earlier_keys == [plan[0].key] and plan[0].earlier_keys == []
    assert len({trial.key for trial in plan}) == len(plan)


def test_streams_are_independent_and_reproducible() -> None:
    names = [(seed, subset, example, repeat, method) for seed in (0, 1) for subset in ("en", "e") for example in (0, 1)
             for repeat in (0, 1) for method in ("ar", "n")]  # fmt: skip
    assert len({stream_seed(*name) for name in names}) == len(names)
    assert stream_seed(0, "en", 1, 0, "sd") == stream_seed(0, "en", 1, 0, "sd")


def test_every_repeat_and_every_example_draws_anew() -> None:
    """The same trial gives the same tokens; its other repeat, and the same question as another example, others."""
    pair = ModelPair(tiny.causal_lm(num_hidden_layers=1))
    spec = RunSpec(tasks=(load_task("mgsm"),), methods=(load_method("ar"),), target="t")
    task = load_task("mgsm").subset("en")
    short = task.generation.model_copy(update={"max_new_tokens": 12, "temperature": 1.0})
    place: Any = SimpleNamespace(
        task=task.model_copy(update={"generation": short}), subset="en", scorer=None, budgets=(), context_limit=None,
        renderer=PromptRenderer(), models=SimpleNamespace(placement="cpu"),
        decoders=(build_decoder(load_method("ar"), pair, Sampling(1.0)),),
    )  # fmt: skip

    def tokens(index: int, repeat: int) -> list[int]:
        trial = Trial(place, Example(index, str(index), ("What?",), ("1",)), repeat, place.decoders)
        return measure(trial, spec).methods["ar"].token_ids.tolist()

    first = tokens(0, 0)
    assert tokens(0, 0) == first
    assert first != tokens(0, 1) and first != tokens(1, 0)


def test_records_of_other_examples_are_refused() -> None:
    example = Example(0, "a", ("What?",), ("1",))
    place = SimpleNamespace(
        task=SimpleNamespace(name="t", generation=SimpleNamespace(reasoning=None)),
        subset="en",
        decoders=(),
        data=SimpleNamespace(location="rows.tsv"),
    )
    trial = Trial(place, example, 0, ())
    folder = SimpleNamespace(path="run")
    recorded = record({}, prompt=trial.prompt_digest, reference="1", prompt_tokens=None)
    check_recorded([trial], {trial.key: recorded}, folder)
    for change in ({"prompt": "other"}, {"reference": "2"}):
        with pytest.raises(ConfigError, match=r"t/en example a .* another prompt or answer than rows\.tsv"):
            check_recorded([trial], {trial.key: changed(recorded, **change)}, folder)


def test_a_prompt_is_rendered_once_and_its_tokens_are_part_of_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template may print a clock: all methods read the same tokens, and a resume of others is refused."""
    target = tiny.causal_lm(num_hidden_layers=1)
    rendered, read = [], []

    def render(texts: Any, system: Any) -> str:
        rendered.append(tuple(texts))
        return f"{len(rendered)} {' '.join(texts)}"

    monkeypatch.setattr(target.chat_template, "render", render)
    monkeypatch.setattr(target.tokenizer, "chat_template", "{% for m in messages %}{{ m.content }}{% endfor %}")
    spec = RunSpec(tasks=(load_task("mgsm"),), methods=(load_method("ar"),), target="t")
    task = load_task("mgsm").subset("en")
    decoders = tuple(build_decoder(load_method(name), ModelPair(target), Sampling(0.0)) for name in ("ar", "pld"))
    generate = DraftingDecoder.generate

    def spy(self: Any, ids: list[int], *given: Any) -> Any:
        read.append(target.decode_text(ids))
        return generate(self, ids, *given)

    monkeypatch.setattr(DraftingDecoder, "generate", spy)
    short = task.model_copy(update={"generation": task.generation.model_copy(update={"max_new_tokens": 4})})
    example = Example(0, "a", ("One?", "Two?"), ("1", "2"))
    data = TaskData("local", "rows.jsonl", None, (example,))
    place = SubsetRun(short, "en", data, LoadedModels(target, {}), decoders, None)
    check_prompts(place)
    trials = [Trial(place, example, 0, decoders, turn) for turn in (0, 1)]
    first = measure(trials[0], spec)
    assert read == ["1 One?"] * 2 and rendered == [("One?",)]
    second = measure(trials[1], spec, [first])
    histories = {("One?", part.text, "Two?") for part in first.methods.values()}
    assert {*rendered[1:]} == histories and len(rendered) == 1 + len(histories), "once for each history"
    assert first.prompt_ids_digest == trials[0].prompt(target, []).digest != second.prompt_ids_digest

    done, folder = {trial.key: made for trial, made in zip(trials, (first, second), strict=True)}, Path("run")
    check_recorded(trials, done, SimpleNamespace(path=folder))  # type: ignore[arg-type]
    again = SubsetRun(short, "en", data, LoadedModels(target, {}), decoders, None)
    again_now = [Trial(again, example, 0, decoders, turn) for turn in (0, 1)]
    with pytest.raises(ConfigError, match=r"run: mgsm/en example a: its prompt of the same text had 6 tokens .*"):
        check_recorded(again_now, done, SimpleNamespace(path=folder))  # type: ignore[arg-type]
    for each in done.values():  # of a version that kept no digest of tokens
        each.prompt_ids_digest = None
    check_recorded(again_now, done, SimpleNamespace(path=folder))  # type: ignore[arg-type]
    done[trials[0].key].prompt_tokens = 5
    with pytest.raises(ConfigError, match=r"had 5 tokens \(digest not recorded\), and has 6 "):
        check_recorded(again_now, done, SimpleNamespace(path=folder))  # type: ignore[arg-type]


def test_the_commit_of_hub_data_is_part_of_what_a_run_is() -> None:
    """Files and samples are identified by their records' prompts."""
    spec = RunSpec(tasks=(load_task("gsm8k"),), methods=(load_method("ar"),), target="t")
    models = LoadedModels(tiny.causal_lm(), {})

    def found(source: str, revision: str) -> Any:
        data = SimpleNamespace(source=source, revision=revision)
        place = SimpleNamespace(
            task=SimpleNamespace(name="gsm8k"), subset="default", decoders=(), readers=(), data=data
        )
        return run_identity(spec, [place], models, {}).get("data_revisions")  # type: ignore[list-item]

    assert found("hub", "a1") == {"gsm8k/default": "a1"} and found("hub", "b2") != found("hub", "a1")
    assert found("local", "a1") is found("sample", "a1") is None


def test_the_context_is_the_smaller_one() -> None:
    small, large = tiny.causal_lm(max_position_embeddings=64), tiny.causal_lm()
    sd = load_method("sd")
    for target, drafter in ((small, large), (large, small)):
        assert LoadedModels(target, {"sd": drafter}).context_limit([sd]) == 64


def test_a_drafter_that_pauses_limits_neither_answers_nor_prompts() -> None:
    small, large = tiny.causal_lm(max_position_embeddings=64), tiny.causal_lm()
    for name in ("sd", "slem", "sd-tree", "synthetic"):
        _, [method] = with_overrides([], [load_method(name)], ["drafter.beyond_context=pause"])
        models = LoadedModels(large, {name: small})
        assert models.context_limit([method]) == 1024 and [b.model for b in models.budgets([method], 24)] == [large]
        assert LoadedModels(small, {name: large}).context_limit([method]) == 64
        drafter = build_decoder(method, models.pair(method), Sampling()).drafter
        assert drafter.pauses_at == (None if name == "slem" else 64)  # slem counts in the drafter's own tokens
        assert digest(method) != digest(load_method(name))


def test_a_bridged_drafter_may_pause_from_the_prompt_on() -> None:
    """Without the option, a prompt that is too long for it is refused."""
    target, small = tiny.causal_lm(), tiny.causal_lm(max_position_embeddings=16)
    prompt = target.encode_prompt("A text that is too long for it", chat=False)
    _, [pausing] = with_overrides([], [load_method("slem")], ["drafter.beyond_context=pause"])
    made = build_decoder(pausing, ModelPair(target, small), Sampling()).generate(prompt, StopRules(8), seed=0)
    assert [step.num_drafted for step in made.steps] == [0] * 7
    with pytest.raises(ConfigError, match="let it pause with --set drafter"):
        build_decoder(load_method("slem"), ModelPair(target, small), Sampling()).generate(prompt, StopRules(8), seed=0)


def test_processed_divergences_of_point_masses_are_refused() -> None:
    pair = ModelPair(tiny.causal_lm(seed=0), tiny.causal_lm(seed=1))
    _, [processed] = with_overrides([], [load_method("fsd")], ["verification.divergence_on=processed"])
    _, [sampled] = with_overrides([], [processed], ["drafter.temperature=1"])
    build_decoder(sampled, pair, Sampling(1.0))
    for method, sampling, key in ((processed, Sampling(1.0), "drafter"), (sampled, Sampling(0.0), "generation")):
        with pytest.raises(ConfigError, match=f"point masses.*set {key}.temperature"):
            build_decoder(method, pair, sampling)


def test_methods_that_need_a_drafter_say_so() -> None:
    with pytest.raises(ConfigError, match="method 'sd' needs a draft model"):
        build_decoder(load_method("sd"), ModelPair(tiny.causal_lm()), Sampling())


def test_draft_only_decodes_with_the_drafter() -> None:
    pair = ModelPair(tiny.causal_lm(seed=0), tiny.causal_lm(seed=1))
    assert build_decoder(load_method("draft-only"), pair, Sampling()).model is pair.drafter
    assert build_decoder(load_method("ar"), pair, Sampling()).model is pair.target


def test_which_methods_need_no_common_vocabulary() -> None:
    able = {name for name in method_names() if not load_method(name).same_vocabulary}
    assert {"ar", "draft-only"} <= able
    assert not {"sd", "fsd"} & able
