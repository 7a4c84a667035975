"""Public bug reports of this field: each is data under `reports/`, with its source, the symptom, the smallest input and
the right value."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from specbench.core.reasoning import answer_in
from specbench.core.registry import ENGINES
from specbench.decoding.build import build_decoder
from specbench.decoding.drafters import model_drafter
from specbench.decoding.loop import GenerationState, StopRules, WrittenText, text_before_stop
from specbench.decoding.proposal import PointMass, Proposal, Verification
from specbench.decoding.sampling import Distributions, Sampling
from specbench.decoding.verification import rejection
from specbench.integrations.served.acceptance import from_histogram, kept_counts, steps_of
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.heads.checkpoints import HeadCheckpoint
from specbench.models.heads.eagle_checkpoint import norm_readings
from specbench.records.records import RecordFile
from specbench.records.windows import LoadAnswer
from specbench.results.concurrency import metrics_of
from specbench.running.prompts import end_problem
from specbench.specs.catalogue import load_method, load_task
from specbench.specs.components import build
from specbench.specs.task import GenerationSpec
from specbench.tasks.judge.requests import parse_rating
from specbench.tasks.local_files import read_rows
from specbench.tasks.sandbox import run as permission
from specbench.tasks.scoring import make_scorer
from tests.support import tiny, tokenizers_made_here
from tests.support.loops import SometimesWrong, autoregressive, speculative
from tests.support.read_yaml import read_yaml
from tests.support.records import generation
from tests.support.toys import TableModel

FOLDER = Path(__file__).parent / "reports"
Case = dict[str, Any]


def cases(file: str) -> list[Any]:
    """The cases of a file, each named by the source of its report."""
    return [
        pytest.param(case, id=f"{report['source'].split(',')[0]}-{number}")
        for report in read_yaml(FOLDER / f"{file}.yaml") for number, case in enumerate(report["cases"])
    ]  # fmt: skip


def test_every_report_has_a_source_a_symptom_and_cases_and_is_read_by_a_test() -> None:
    read = {
        "answers", "caches", "corpora", "drafts", "endings", "events", "files", "heads", "pairs", "prompts", "ratings",
        "residuals", "servers", "stop_strings", "times",
    }  # fmt: skip
    assert {path.stem for path in FOLDER.glob("*.yaml")} == read
    for file in read:
        for report in read_yaml(FOLDER / f"{file}.yaml"):
            assert set(report) == {"source", "symptom", "cases"} and report["cases"], report


@pytest.fixture
def execution_allowed() -> Iterator[None]:
    permission.allow()
    yield
    permission.allow(False)


@pytest.mark.usefixtures("execution_allowed")
@pytest.mark.parametrize("case", cases("answers"))
def test_answers_are_scored_rightly(case: Case) -> None:
    task = load_task(case["task"])
    scorer = make_scorer(task.subset(case.get("subset", "default")))
    assert scorer is not None
    values = scorer(answer_in(case["answer"]), case["reference"]).values
    right = case["score"] if isinstance(case["score"], dict) else {scorer.names[0]: case["score"]}
    assert {name: values[name] for name in right} == right


@pytest.mark.parametrize("case", cases("endings"))
def test_generations_end_where_they_should(case: Case) -> None:
    def decode_text(ids: Any) -> str:
        return "".join(case.get("texts", {}).get(token, "x") for token in ids)

    stop = tuple(case.get("stop", ()))
    state = GenerationState(
        [0], StopRules(case.get("max_new_tokens", 20), frozenset(case.get("eos", ())), stop, decode_text)
    )
    state.start(case["first"])
    for draft, num_accepted, next_token in case["steps"]:
        assert not state.finished
        state.extend(Proposal(draft), Verification(num_accepted, next_token))
    state.check(5)
    counts = [[step.num_drafted, step.num_verified, step.num_accepted, step.num_emitted] for step in state.steps]
    assert (state.new_ids, counts, state.finish) == (case["kept"], case["counts"], case["finish"])
    if "text" in case:
        assert text_before_stop(decode_text(state.new_ids), stop) == case["text"]


@pytest.mark.parametrize("case", cases("ratings"))
def test_ratings_of_judges_are_read_rightly(case: Case) -> None:
    assert parse_rating(case["reply"]) == case["rating"]


@pytest.mark.parametrize("case", cases("servers"))
def test_counts_of_servers_end_with_the_answer(case: Case) -> None:
    passes, num_tokens = [tuple(each) for each in case["passes"]], case["num_tokens"]
    if case["reports"] == "steps":
        steps = steps_of(passes, num_tokens, 100)
        found = sum(step.num_accepted for step in steps), sum(step.num_verified for step in steps)
    else:
        counts = [sum(accepted == number for _, accepted in passes) for number in range(6)]
        num_accepted = sum(accepted for _, accepted in passes)
        kept = kept_counts(from_histogram(counts, None, 5 * len(passes), num_accepted, 5), num_tokens, 100, 5)
        assert not kept.is_bound
        found = kept.accepted, kept.verified
    assert found == (case["accepted"], case["verified"])


@pytest.mark.parametrize("case", cases("events"))
def test_counts_of_engines_are_read_rightly(case: Case) -> None:
    found = ENGINES.get(case["engine"])().acceptance(case["events"], case["num_draft_tokens"])
    passes = case["passes"] and tuple(tuple(each) for each in case["passes"])
    assert (found.passes, [found.num_drafted, found.num_accepted]) == (passes, case["sums"])


@pytest.mark.parametrize("case", cases("files"))
def test_files_are_read_whole(case: Case, tmp_path: Path) -> None:
    path = tmp_path / case["name"]
    field = case.get("field", "") * case.get("repeat", 0)
    path.write_text(case["content"] + field, encoding="utf-8", newline="")
    assert [row["text"] for row in read_rows(path)] == case.get("rows", [field])


@pytest.mark.parametrize("case", cases("caches"))
def test_rejected_drafts_leave_no_trace_in_a_cache(case: Case) -> None:
    options = tiny.two_layers(case["kind"])
    target = tiny.causal_lm(case["kind"], **options)
    drafter = SometimesWrong(tiny.network(case["kind"], **options), tiny.tokenizer(), "drafter", None)
    prompt = target.encode_prompt(case["prompt"], chat=False)
    drafted = speculative(target, drafter, prompt, StopRules(20))
    assert drafted.token_ids == autoregressive(target, prompt, StopRules(20)).token_ids
    assert 0 < sum(step.num_accepted for step in drafted.steps) < sum(step.num_drafted for step in drafted.steps)


def model_of(tokenizer: Any) -> CausalLM:
    return CausalLM(tiny.network(num_hidden_layers=1, vocab_size=len(tokenizer)), tokenizer, "m", None)


@pytest.mark.parametrize("case", cases("prompts"))
def test_prompts_are_what_the_user_meant(case: Case) -> None:
    tokenizer = getattr(tokenizers_made_here, case["tokenizer"])()
    tokenizer.chat_template = case["template"]
    if case.get("ends"):
        end = (tokenizer.eos_token, tokenizer.eos_token_id)
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"$A {end[0]}", special_tokens=[end])
    model = model_of(tokenizer)
    prompt = model.render_prompt([case["text"]], chat=case["template"] is not None)
    problems = [*model.chat_template.problems(several_turns=False)] if case["template"] else []
    problems += filter(None, [end_problem(model, prompt.text, prompt.ids)])
    if "reads" in case:
        assert (tokenizer.decode(prompt.ids), problems) == (case["reads"], [])
    else:
        assert len(problems) == 1 and case["problem"] in problems[0]


@pytest.mark.parametrize("case", cases("stop_strings"))
def test_stop_strings_end_an_answer_and_leave_no_token_in_it(case: Case) -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": case["special"]})
    model = model_of(tokenizer)
    generation = build(GenerationSpec, {"max_new_tokens": 20, "stop": case["stop"]})
    rules = build_decoder(load_method("ar"), ModelPair(model), Sampling()).stop_rules(generation, None)
    state = GenerationState([0], rules)
    for token in model.encode_prompt(case["written"], chat=False):
        if not state.finished:
            state.start(token)
    assert (WrittenText.of(rules, [0], state.new_ids).text, state.finish) == (case["text"], case["finish"])


@pytest.mark.parametrize("case", cases("pairs"))
def test_pairs_that_nearly_fit_run(case: Case, specbench: Any, tmp_path: Path) -> None:
    kinds = case.get("kind", "llama"), "llama"
    for name, kind, extra, limit in zip(
        ("target", "drafter"), kinds, case["vocabularies"], case["contexts"], strict=True
    ):
        own_key = {"max_seq_len": limit, "max_position_embeddings": None}
        positions = own_key if kind == "mpt" else {"max_position_embeddings": limit}
        tokenizer = tiny.tokenizer()
        tokenizer.add_tokens([f"<{name} {number}>" for number in range(extra)])
        tiny.network(kind, num_hidden_layers=1, vocab_size=len(tokenizer), **positions).save_pretrained(name)
        tokenizer.save_pretrained(name)
    (tmp_path / "rows.jsonl").write_text('{"text": "Twelve bytes"}\n')
    (tmp_path / "t.yaml").write_text(
        'name: t\nversion: 1\ntitle: T\nprompt: "{{ row.text }}"\nlocal: {files: [rows]}\n'
        "generation: {max_new_tokens: 40}\n"
    )
    words = ["--task", "t.yaml", "--data", ".", "--method", "sd", "--target", "./target", "--drafter", "./drafter"]
    pause = ["--set", "drafter.beyond_context=pause"] if case.get("pause") else []
    code, out, err = specbench("run", *words, *pause, "--output", "run")
    assert code == 0, err
    (found,) = RecordFile(tmp_path / "run/records.jsonl").read()
    for answer in found.methods.values():
        assert (answer.num_new_tokens, answer.finish) == (case["num_tokens"], case["finish"])
    assert case["says"] in " ".join(out.split())


@pytest.mark.parametrize("case", cases("corpora"))
def test_answers_together_are_scored_as_by_sacrebleu(case: Case) -> None:
    scorer = make_scorer(load_task("wmt").subset("de-en"))
    assert scorer is not None
    counts = [scorer(answer, reference).statistics["chrf"] for answer, reference in case["pairs"]]
    sums = [sum(column) for column in zip(*counts, strict=True)]
    assert scorer.corpus("chrf", sums) == pytest.approx(case["chrf"], abs=1e-4)


@pytest.mark.parametrize("case", cases("times"))
def test_times_per_token_do_not_depend_on_the_events(case: Case) -> None:
    events, tpot = case["events"], case["tpot"]
    num_tokens = sum(number for _, number in events)
    answer = LoadAnswer(example=0, sent=0.0, token_ids=[1] * num_tokens, passes=1, reads=events)
    found = metrics_of([[answer]], [[answer]], None)["tpot_seconds"].value
    assert found == (tpot and pytest.approx(tpot))
    external = {"num_first_tokens": events[0][1], "num_target_passes": None}
    made = generation(token_ids=[1] * num_tokens, external=external)
    if tpot:
        assert (events[-1][0] - events[0][0]) / made.num_timed_tokens == pytest.approx(tpot)
    else:
        assert made.num_timed_tokens == 0


NUM_DRAWS = 2000
CLOSE = 0.05  # more than four standard errors of a share of the draws


@pytest.mark.parametrize("prefers_pending", [False, True])
@pytest.mark.parametrize("case", cases("drafts"))
def test_drafts_report_the_distribution_that_they_are_drawn_from(case: Case, prefers_pending: bool) -> None:
    right = torch.tensor(case["q"], dtype=torch.float32)
    model = TableModel(len(right), seed=0, prefers_pending=prefers_pending)
    model.table[:] = torch.tensor(case["probs"]).log()
    sampling = Sampling(case["temperature"], case.get("top_k"), case.get("top_p"))
    pair = ModelPair(model, model)  # type: ignore[arg-type]
    drafter = model_drafter(pair, sampling, temperature=case["draft_temperature"])
    generator = torch.Generator().manual_seed(0)
    drawn = torch.zeros_like(right)
    for _ in range(NUM_DRAWS // 20):
        drafter.prefill([0])
        proposal = drafter.propose([0], 20, generator)
        assert proposal.probs is not None
        torch.testing.assert_close(proposal.probs.probs, right.expand(20, -1), atol=1e-5, rtol=0)
        drawn += torch.bincount(torch.tensor(proposal.token_ids), minlength=len(right))
    assert float((drawn / NUM_DRAWS - right).abs().max()) < CLOSE


NUM_REJECTIONS = 500
CLOSE_TO_RESIDUAL = 0.1  # four standard errors of a share; drawn from p, every case differs by twice as much or more


@pytest.mark.parametrize("case", cases("residuals"))
def test_tokens_behind_a_rejection_are_drawn_from_the_residual(case: Case) -> None:
    target = Distributions(torch.tensor([case["p"]] * 2).log(), Sampling(1.0))
    q, drafted = case["q"], [case["drafted"]]
    draft = PointMass(drafted) if q is None else Distributions(torch.tensor([q]).log(), Sampling(1.0))
    right = torch.tensor(case["residual"], dtype=torch.float32)
    found = draft.residual(torch.tensor([0]), target.probs[0])
    torch.testing.assert_close(found / found.sum(), right)
    generator = torch.Generator().manual_seed(0)
    verifications = [rejection(Proposal(drafted, draft), target, generator) for _ in range(NUM_REJECTIONS)]
    rejected = [each.next_token for each in verifications if each.num_accepted == 0]
    assert abs(1 - len(rejected) / NUM_REJECTIONS - case["accepted"]) < CLOSE_TO_RESIDUAL
    drawn = torch.bincount(torch.tensor(rejected), minlength=len(right)) / len(rejected)
    assert float((drawn - right).abs().max()) < CLOSE_TO_RESIDUAL


@pytest.mark.parametrize("case", cases("heads"))
def test_keys_of_heads_are_read_in_both_meanings(case: Case) -> None:
    config = {"architectures": ["LlamaForCausalLMEagle3"], **case["config"]}
    tensors = {"fc.weight": torch.zeros(4, 12), "midlayer.self_attn.q_proj.weight": torch.zeros(4, 8)}
    head = HeadCheckpoint("head", None, config, tensors)
    readings = norm_readings(head)
    assert readings.get(case["reading"], readings["logits"]) == (case["next_token"], case["output"])
    assert (len(readings) == 2) == case["is_open"]
