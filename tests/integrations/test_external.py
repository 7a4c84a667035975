"""External decoders: given what they name, timed and counted as all others, blamed in one line."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.decoding.build import build_decoder
from specbench.decoding.loop import GenerationOutput, StopRules
from specbench.decoding.sampling import Sampling
from specbench.integrations.external import count_steps
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.records.generation import Record, convert, encode
from specbench.running.measure import method_record
from specbench.specs.catalogue import digest, load_method, with_overrides
from specbench.specs.components import build
from specbench.specs.method import MethodSpec
from tests.support import tiny
from tests.support.answers import summarize
from tests.support.records import autoregressive, compared, generation, record

GREEDY, WARM = Sampling(0.0), Sampling(0.8, top_k=40, top_p=0.9)
PROMPT = list(range(40, 60))

CODE = '''
"""Decoders of a researcher."""
import torch

from specbench.integrations.external import Decoded

built = []


def best(target, ids):
    return int(target.model(torch.tensor([ids], device=target.device), use_cache=False).logits[0, -1].argmax())


def plain(prompt_ids, *, target, max_new_tokens, on_token):
    """Autoregressive decoding, token by token."""
    ids = list(prompt_ids)
    for _ in range(max_new_tokens):
        ids.append(best(target, ids))
        if on_token(ids[-1]):
            break
    return ids[len(prompt_ids):]


def heedless(prompt_ids, *, target, max_new_tokens):
    """The same, but it goes on behind every end and reports nothing."""
    ids = list(prompt_ids)
    for _ in range(max_new_tokens + 3):
        ids.append(best(target, ids))
    return torch.tensor(ids[len(prompt_ids):])


def speculative(prompt_ids, *, target, drafter, num_draft_tokens, max_new_tokens, eos_token_ids, sampling, seed,
                on_token):
    """Our own loop in disguise, with the counts of its steps."""
    from specbench.specs.catalogue import load_method
    from specbench.decoding.loop import StopRules
    from specbench.models.causal_lm import CausalLM
    from specbench.models.causal_lm import ModelPair
    from specbench.decoding.build import build_decoder

    models = ModelPair(*(CausalLM(each.model, each.tokenizer, "m", None) for each in (target, drafter)))
    sd = load_method("sd").model_copy(update={"num_draft_tokens": num_draft_tokens})
    decoder = build_decoder(sd, models, sampling)
    found = decoder.generate(prompt_ids, StopRules(max_new_tokens, frozenset(eos_token_ids)), seed)
    on_token(found.token_ids[0])
    return Decoded(found.token_ids, steps=found.steps)


class Greeter:
    def __init__(self, *, target, token: int, num_times: int = 2):
        built.append(self)
        self.target, self.token, self.num_times = target, token, num_times

    def generate(self, prompt_ids, *, max_new_tokens):
        return Decoded(([self.token] * self.num_times + [9] * max_new_tokens)[:max_new_tokens], num_target_passes=3)


def everything(prompt_ids, **given):
    assert sorted(given) == ["drafter", "eos_token_ids", "max_new_tokens", "more", "num_draft_tokens", "on_token",
                             "sampling", "seed", "target"], sorted(given)
    return [int(torch.randint(0, 200, ()))] * given["max_new_tokens"]


def bad(prompt_ids, *, max_new_tokens, on_token, what: str):
    ids = [7] * max_new_tokens
    if what == "raise":
        raise RuntimeError("no such luck")
    if what == "nothing":
        return None
    if what == "empty":
        return []
    if what == "short":
        return ids[:-1]
    if what == "wild":
        return [100_000, *ids]
    if what == "other":
        on_token(8)
        return ids
    if what == "config":
        from specbench.core.errors import ConfigError
        raise ConfigError("this pair does not fit")
    steps = {"most": [(4, 4, 4, 5)], "judged": [(3, 1, 2, 3)], "emitted": [(3, 3, 1, 3)], "none": [(3, 3, 3, 0)],
             "shape": [(3, 3)], "sum": [(3, 3, 3, 4)] * 7, "passes": None}[what]
    return Decoded(ids, steps=steps, num_target_passes=0)
'''


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("code") / "decoders.py"
    path.write_text(CODE)
    return path


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    """Two random models that agree often."""
    target, drafter = tiny.network(seed=1), tiny.network(seed=1)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
    names = zip((target, drafter), ("target", "drafter"), strict=True)
    return ModelPair(*(CausalLM(network, tiny.tokenizer(), name, None) for network, name in names))


def method(code: Path, name: str, num_draft_tokens: int = 3, **decoder: Any) -> MethodSpec:
    data = {"type": "external", "entry": f"{code}:{name}", **decoder}
    whole = {"name": "mine", "version": 1, "title": "Mine", "decoder": data, "num_draft_tokens": num_draft_tokens}
    return build(MethodSpec, whole, "my.yaml: ")


def run(
    spec: MethodSpec, models: ModelPair, sampling: Sampling = GREEDY, stop: StopRules | None = None, seed: int = 0,
    prompt: list[int] = PROMPT,
) -> GenerationOutput:  # fmt: skip
    return build_decoder(spec, models, sampling).generate(prompt, stop or StopRules(24), seed)


def measured(spec: MethodSpec, models: ModelPair, example: int = 0, stop: StopRules | None = None) -> Record:
    """The record of a method beside AR, through JSON, as a run writes and reads it."""
    prompt = [*PROMPT, example]
    stop = stop or StopRules(24)
    methods = {}
    for each in (load_method("ar"), spec):
        decoder = build_decoder(each, models, GREEDY)
        text = replace(stop, decode_text=decoder.model.decode_text)
        methods[each.name] = method_record(decoder.generate(prompt, stop, 0), text, prompt, None, None)
    made = convert(json.loads(encode(record(methods, example=example))), Record)
    made.check({"ar": 0, spec.name: spec.num_draft_tokens})
    return made


def summary(spec: MethodSpec, records: list[Record]) -> dict[str, float | None]:
    found = summarize(
        records, spec.name, num_draft_tokens=spec.num_draft_tokens, verification=spec.verification.model_dump()
    )
    return {name: metric.value for name, metric in found.items()}


def message(call: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        call(*arguments, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What is decoded and counted.


def test_autoregressive_decoding_in_disguise(code: Path, pair: ModelPair) -> None:
    found, own = run(method(code, "plain"), pair), run(load_method("ar"), pair)
    assert (found.token_ids, found.finish) == (own.token_ids, "length")
    assert found.steps == [] and found.external is not None
    assert (found.external.num_first_tokens, found.external.num_target_passes) == (1, None)
    assert found.ttft_seconds is not None and found.ttft_seconds > 0 and found.decode_seconds > 0


def test_what_is_behind_the_end_counts_nowhere(code: Path, pair: ModelPair) -> None:
    whole = run(load_method("ar"), pair).token_ids
    end = whole[10]
    text = tiny.tokenizer().decode(whole[4:6])
    spec = method(code, "heedless")
    for stop in (
        StopRules(24), StopRules(24, frozenset({end})), StopRules(24, context_limit=len(PROMPT) + 7),
        StopRules(24, stop_strings=(text,), decode_text=pair.target.decode_text),
    ):  # fmt: skip
        found, own = run(spec, pair, stop=stop), run(load_method("ar"), pair, stop=stop)
        assert (found.token_ids, found.finish) == (own.token_ids, own.finish)
    assert len(whole) == 24 and len(run(spec, pair, stop=StopRules(24, frozenset({end}))).token_ids) <= 11


def test_a_stop_string_ends_a_decoder_that_asks(code: Path, pair: ModelPair) -> None:
    text = tiny.tokenizer().decode(run(load_method("ar"), pair).token_ids[4:6])
    stop = StopRules(10_000, stop_strings=(text,), decode_text=pair.target.decode_text)
    assert run(method(code, "plain"), pair, stop=stop).finish == "stop"


def test_a_decoder_that_reports_nothing_is_timed_from_the_prompt(code: Path, pair: ModelPair) -> None:
    spec = method(code, "heedless")
    found = run(spec, pair)
    assert found.ttft_seconds is None and found.external is not None and found.external.num_first_tokens == 0
    made = measured(spec, pair)
    mine, own = made.methods["mine"], made.methods["ar"]
    values = summary(spec, [made])
    assert values["ttft_seconds"] is None
    assert values["tokens_per_second"] == pytest.approx(24 / mine.decode_seconds)
    assert values["tokens_per_second_ar"] == pytest.approx(23 / own.decode_seconds)
    assert own.ttft_seconds is not None
    total = own.ttft_seconds + own.decode_seconds
    assert values["speedup_e2e"] == pytest.approx(total / mine.decode_seconds)


def test_nothing_is_made_up_for_a_decoder_without_counts(code: Path, pair: ModelPair) -> None:
    spec = method(code, "plain")
    values = summary(spec, [measured(spec, pair, example) for example in range(2)])
    known = {name for name, value in values.items() if value is not None}
    assert known == {
        "num_prompts_timed", "new_tokens", "tokens_per_second", "tokens_per_second_ar", "speedup", "speedup_e2e",
        "ttft_seconds", "tpot_seconds", "overhead_share_ar", "share_cut_by_length", "share_cut_by_context",
        "share_truncated", "share_looping", "share_looping_ar", "share_in_loops", "share_in_loops_ar",
    }  # fmt: skip


def test_target_passes_alone_give_the_acceptance_length(code: Path, pair: ModelPair) -> None:
    spec = method(code, "Greeter", options={"token": 5})
    values = summary(spec, [measured(spec, pair)])
    assert values["mean_acceptance_length"] == 24 / 3
    assert values["target_passes_per_token"] == 3 / 24
    assert values["acceptance_rate"] is values["accepted_length"] is values["drafter_share"] is None


def test_steps_give_the_acceptance_of_our_own_loop(code: Path, pair: ModelPair) -> None:
    sd = load_method("sd").model_copy(update={"num_draft_tokens": 3})
    spec = method(code, "speculative", drafter="same_vocabulary")
    # 14 or 8 tokens: the shorter ones end within a step, which both sides cut
    for length in (14, 8):
        mine, own = ([measured(m, pair, n, StopRules(length)) for n in range(2)] for m in (spec, sd))
        for name in ("acceptance_rate", "draft_efficiency", "mean_acceptance_length", "accepted_length",
                     "drafter_share", "target_passes_per_token", "new_tokens"):  # fmt: skip
            assert summary(spec, mine)[name] == summary(sd, own)[name] is not None
    assert [r.methods["mine"].steps for r in mine] == [r.methods["sd"].steps for r in own]


@pytest.mark.parametrize("length", range(1, 12))
def test_steps_are_cut_with_the_tokens(length: int) -> None:
    """Every kept token is counted once, dropped ones nowhere; the first token is in no step."""
    steps = [(3, 3, 2, 3), (3, 3, 3, 4), (2, 1, 0, 1), (3, 3, 3, 3)]
    for num_returned, num_apart in ((11, 0), (12, 1)):
        kept, num_passes = count_steps(steps, 3, num_returned, length)
        assert sum(step.num_emitted for step in kept) + 1 == length
        assert all(0 <= s.num_accepted <= s.num_verified <= s.num_drafted and s.num_emitted <= s.num_accepted + 1
                   for s in kept)  # fmt: skip
        assert num_passes == len(kept) + num_apart
        assert sum(s.num_accepted for s in kept) <= length
    assert [count_steps(steps, 3, 11, n)[0][-1].num_verified for n in (5, 6, 7)] == [2, 3, 3]


def test_first_tokens_that_come_together_are_not_timed() -> None:
    """A decoder whose first pass emits 4 of 9 tokens is credited with 5, in the time after them."""
    plain = autoregressive(9, decode_seconds=8.0, ttft_seconds=1.0)
    mine = generation(
        [[3, 3, 3, 3], [3, 3, 2, 3], [3, 3, 1, 2]], decode_seconds=2.0, ttft_seconds=2.0,
        external={"num_first_tokens": 4, "num_target_passes": 3},
    )  # fmt: skip
    made = compared(0, plain, mine)
    found = summarize([made], "m", num_draft_tokens=3, verification={"rule": "external"})
    assert found["tokens_per_second"].value == 5 / 2
    assert found["tpot_seconds"].value == 2 / 5
    assert found["mean_acceptance_length"].value == 9 / 3
    assert found["target_passes_per_token"].value == 3 / 9
    assert found["acceptance_rate_pooled"].value == 6 / 9


# What it is given.


def test_it_is_given_what_it_names(code: Path, pair: ModelPair) -> None:
    spec = method(code, "everything", options={"more": [1]})
    first, second, other = (run(spec, pair, WARM, seed=seed).token_ids for seed in (3, 3, 4))
    assert first == second != other
    state = torch.get_rng_state()
    run(spec, pair, WARM)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_class_is_built_once_for_all_cells(code: Path, pair: ModelPair) -> None:
    spec = method(code, "Greeter", options={"token": 5})
    decoders = [build_decoder(spec, pair, GREEDY) for _ in range(3)]
    assert [decoder.generate(PROMPT, StopRules(4), 0).token_ids for decoder in decoders] == [[5, 5, 9, 9]] * 3
    module = next(m for m in sys.modules.values() if getattr(m, "__file__", None) == str(code))
    num_built = len(module.built)
    build_decoder(spec, pair, GREEDY)
    assert len(module.built) == num_built
    other = method(code, "Greeter", options={"token": 5, "num_times": 1})
    assert run(other, pair).token_ids[:2] == [5, 9] and len(module.built) == num_built + 1


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("Greeter", {}, "decoder.options.token: the key 'token' is missing: add it"),
        ("Greeter", {"options": {"token": "x"}}, "decoder.options.token = 'x': input should be a valid integer"),
        ("Greeter", {"options": {"token": 1, "num_time": 2}}, "unknown key 'num_time': did you mean 'num_times'?"),
        ("bad", {"options": {"what": "x", "seed": 2, "on_token": 1}}, "decoder.options.on_token: specbench passes"),
        ("plane", {}, "has no function or class 'plane': did you mean 'plain'?"),
        ("Decoded", {}, "class 'Decoded' has no method 'generate': add it, or name a function"),
    ],
)
def test_a_wrong_composition_is_one_line(
    code: Path, pair: ModelPair, name: str, changes: dict[str, Any], expected: str
) -> None:
    text = message(build_decoder, method(code, name, **changes), pair, GREEDY)
    assert text.startswith(f"method 'mine': decoder.entry = '{code}:{name}': ") and expected in text


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("none.py", None, "cannot be imported: there is no file"),
        ("broken.py", "def f(:", "cannot be imported: SyntaxError"),
        ("lost.py", "import no_such_module_anywhere", "No module named 'no_such_module_anywhere'"),
        ("leaving.py", "raise SystemExit(3)", "SystemExit: 3"),
        ("data.py", "decode = 3", "has no function or class 'decode'"),
    ],
)
def test_code_that_does_not_load_is_one_line(
    tmp_path: Path, pair: ModelPair, file: str, content: str | None, expected: str
) -> None:
    if content is not None:
        (tmp_path / file).write_text(content)
    assert expected in message(build_decoder, method(tmp_path / file, "decode"), pair, GREEDY)


def test_an_unknown_module_is_one_line(pair: ModelPair) -> None:
    spec = method(Path("no.such.module"), "decode")
    assert "'no.such.module' cannot be imported: No module named 'no'" in message(build_decoder, spec, pair, GREEDY)


def test_code_that_knows_no_sampling_is_not_run_with_it(code: Path, pair: ModelPair) -> None:
    text = message(build_decoder, method(code, "plain"), pair, WARM)
    assert "does not take 'sampling', so it only decodes greedily: set generation.temperature=0" in text


def test_a_draft_model_must_be_there_and_fit(code: Path, pair: ModelPair) -> None:
    spec = method(code, "speculative", drafter="same_vocabulary")
    assert "needs a draft model" in message(build_decoder, spec, ModelPair(pair.target), GREEDY)
    wider = CausalLM(tiny.network(vocab_size=258), tiny.tokenizer(num_extra=1), "wider", None)
    text = message(build_decoder, spec, ModelPair(pair.target, wider), GREEDY)
    assert "has another vocabulary than target" in text and "such as tli or slem" in text


# What it gets wrong.


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("raise", "raised RuntimeError: no such luck (decoders.py, line "),
        ("config", "this pair does not fit"),
        ("nothing", "its result is of type NoneType: return token ids, or a Decoded"),
        ("empty", "it returned 0 tokens, which do not end with one of eos_token_ids nor at max_new_tokens"),
        ("short", "it returned 23 tokens, which do not end"),
        ("wild", "it returned token 100000, but the target has tokens 0 to 256"),
        ("other", "the tokens that it reported to on_token differ from the returned ones"),
        ("most", "step 0 has 4 drafted (of at most 3), 4 verified, 4 accepted, 5 emitted"),
        ("judged", "step 0 has 3 drafted (of at most 3), 1 verified, 2 accepted"),
        ("emitted", "1 accepted, 3 emitted: give accepted ≤ verified ≤ drafted and 1 ≤ emitted ≤ accepted + 1"),
        ("none", "3 accepted, 0 emitted"),
        ("shape", "step 0 is (3, 3): write (drafted, verified, accepted, emitted)"),
        ("sum", "its steps emit 28 tokens, but it returned 24: count each token once"),
        ("passes", "num_target_passes = 0: the prompt alone takes 1"),
    ],
)
def test_a_defect_is_one_line_that_names_it(code: Path, pair: ModelPair, what: str, expected: str) -> None:
    text = message(run, method(code, "bad", options={"what": what}), pair)
    assert text.startswith(f"method 'mine': decoder.entry = '{code}:bad'") and expected in text


def test_no_memory_is_no_defect(pair: ModelPair, tmp_path: Path) -> None:
    (tmp_path / "full.py").write_text("def decode(prompt_ids):\n    raise MemoryError\n")
    with pytest.raises(MemoryError):
        run(method(tmp_path / "full.py", "decode"), pair)


# What a method file may say.


def test_a_decoder_excludes_parts_and_lossless_is_a_claim(code: Path) -> None:
    spec = method(code, "plain")
    assert not spec.lossless and not spec.needs_drafter and not spec.same_vocabulary
    assert method(code, "plain", claims_lossless=True).lossless
    data = spec.model_dump()
    assert not {"drafter", "verification", "bridge"} & data.keys() and build(MethodSpec, data) == spec
    for key, value in {"drafter": {"type": "none"}, "verification": {"rule": "rejection"}, "bridge": "shared"}.items():
        text = message(build, MethodSpec, data | {key: value}, "my.yaml: ")
        assert text == f"my.yaml: {key}: an external decoder has its own: delete the key '{key}' or 'decoder'"
    for change, expected in (
        ({"decoder": "a:b"}, "decoder = 'a:b': write a mapping, such as decoder: {type: external, entry: "),
        ({"decoder": {"type": "external", "entry": "a"}}, "decoder.entry = 'a': write it as package.module:name or"),
        ({"decoder": {"type": "external", "entry": "a:b", "drafter": "x"}}, "decoder.drafter = 'x': the choices"),
        ({"decoder": {"type": "external", "entry": "a:b", "entri": "x"}}, "unknown key 'entri': did you mean 'entry'?"),
        ({"decoder": {"type": "external", "entry": "a:b", "options": {"x": {1, 2}}}}, "options.x: a set that JSON"),
        ({"lossless": True}, "write decoder.claims_lossless"),
        ({"decodes_with": "drafter"}, "an external decoder decodes for the target"),
        ({"sweep": {"decoder.options.x": [1]}}, "sweep.decoder.options.x: unknown path"),
    ):  # fmt: skip
        assert expected in message(build, MethodSpec, data | change, "my.yaml: ")


def test_the_place_of_the_code_is_no_meaning_and_options_are(code: Path, tmp_path: Path) -> None:
    text = (
        "name: mine\nversion: 1\ntitle: Mine\nnum_draft_tokens: 3\n"
        "decoder: {type: external, entry: 'decoders.py:Greeter', options: {token: 5}}\n"
    )
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        (folder / "my.yaml").write_text(text)
        shutil.copy(code, folder)
    first, second = (load_method(str(tmp_path / name / "my.yaml")) for name in "ab")
    assert first.decoder is not None and first.decoder.entry == f"{tmp_path.resolve()}/a/decoders.py:Greeter"
    assert digest(first) == digest(second)
    _, [changed] = with_overrides([], [first], ["decoder.options.token=6"])
    assert changed.decoder is not None and changed.decoder.options == {"token": 6} and digest(changed) != digest(first)
    assert "'decoder.entry' cannot be changed with --set" in message(with_overrides, [], [first], ["decoder.entry=a:b"])


# Whole runs.

YAML = """\
name: mine
version: 1
title: Mine
decoder: {type: external, entry: "decoders.py:plain", claims_lossless: true}
num_draft_tokens: 3
"""


@pytest.fixture
def folder(tmp_path: Path, code: Path, tiny_pair: tuple[str, str]) -> Iterator[list[str]]:
    """A folder with code and its method, and the command line that runs it on random models."""
    (tmp_path / "mine.yaml").write_text(YAML)
    shutil.copy(code, tmp_path)
    target, drafter = tiny_pair
    yield ["run", "--task", "mgsm", "--method", "mine.yaml", "--target", target, "--drafter", drafter,
           "--data", "sample", "--subset", "en,de", "--limit", "1", "--set", "generation.max_new_tokens=8",
           "--output", "out"]  # fmt: skip


def test_a_whole_run_has_rows_as_any_other(folder: list[str], specbench: Any, tmp_path: Path) -> None:
    code, out, err = specbench(*folder)
    assert code == 0, err
    assert "claimed lossless, not verified here" in " ".join(out.split()) and "external decoder " in out
    rows = json.loads((tmp_path / "out" / "leaderboard.json").read_text())["rows"]
    mine = next(row for row in rows if row["method"].startswith("mine") and row["subset"] == "all")
    own = next(row for row in rows if row["method"].startswith("ar") and row["subset"] == "all")
    for name in ("new_tokens", "accuracy", "share_cut_by_length"):
        assert mine["metrics"][name] == own["metrics"][name]
    assert mine["lossless"] and mine["drafter"] is None
    assert mine["options"]["decoder"]["claims_lossless"] and mine["options"]["decoder"]["revision"].startswith("local-")
    for line in (tmp_path / "out" / "records.jsonl").read_text().splitlines():
        methods = json.loads(line)["methods"]
        assert methods["mine"]["token_ids"] == methods["ar"]["token_ids"]
    assert specbench(*folder)[0] == 0  # all of it is there
    with (tmp_path / "decoders.py").open("a") as file:
        file.write("# changed\n")
    code, _, err = specbench(*folder)
    assert code == 2 and "code.mine" in err and err.count("\n") == 1


def test_a_decoder_that_claims_nothing_is_judged_by_what_it_writes(
    folder: list[str], specbench: Any, tmp_path: Path
) -> None:
    """Neither lossless nor lossy by design: the run compares its outputs, and so does the audit."""
    plain = YAML.replace(", claims_lossless: true", "")
    (tmp_path / "mine.yaml").write_text(plain)
    with (tmp_path / "decoders.py").open("a") as file:
        file.write("def sevens(prompt_ids, *, max_new_tokens):\n    return [7] * max_new_tokens\n")
    wrong = plain.replace(":plain", ":sevens").replace("name: mine", "name: wrong")
    (tmp_path / "wrong.yaml").write_text(wrong)
    folder[folder.index("mine.yaml")] = "mine.yaml,wrong.yaml"
    code, out, err = specbench(*folder)
    assert code == 0, err
    rows = json.loads((tmp_path / "out" / "leaderboard.json").read_text())["rows"]
    found = {row["method"].partition("@")[0]: (row["lossless"], row["verdict"]) for row in rows}
    assert found["mine"] == (False, "greedy equal") and found["wrong"] == (False, "diverged")
    assert "lossy by design" not in out and "not claimed to be lossless" in " ".join(out.split())
    common = folder[5 : folder.index("--output")]
    code, out, err = specbench("audit", "--method", "mine.yaml,wrong.yaml", *common, "--draws", "10", "--json")
    assert code == 0, f"nothing was declared lossless that is not: {err}"
    verdicts = {each["method"]: each for each in json.loads(out)["verdicts"]}
    assert verdicts["mine"]["verdict"] == "greedy equal" and verdicts["mine"]["declared_lossless"] is None
    assert verdicts["mine"]["reason"] == "not sampled: decoder has no `sampling` argument"
    assert verdicts["wrong"]["verdict"] == "diverged"


def test_an_exception_in_a_run_keeps_the_records(folder: list[str], specbench: Any, tmp_path: Path) -> None:
    with (tmp_path / "decoders.py").open("a") as file:
        file.write("calls = []\ndef failing(prompt_ids, **given):\n    calls.append(1)\n    if len(calls) > 4:\n"
                   "        raise KeyError('x')\n    return plain(prompt_ids, target=given['target'], "
                   "max_new_tokens=given['max_new_tokens'], on_token=given['on_token'])\n")  # fmt: skip
    (tmp_path / "mine.yaml").write_text(YAML.replace(":plain", ":failing"))
    folder[folder.index("--limit") + 1] = "2"
    code, _, err = specbench(*folder)
    assert code == 2
    last = err.strip().splitlines()[-1]
    assert last.startswith("error: method 'mine': decoder.entry = ") and "raised KeyError: 'x' (decoders.py" in last
    assert "Traceback" not in err
    num_kept = len((tmp_path / "out" / "records.jsonl").read_text().splitlines())
    assert 1 <= num_kept <= 3, "a whole run has four; the first calls warm up"
