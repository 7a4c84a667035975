"""specbench as a model of lm-eval: its answers, its columns, its command line, and what it refuses."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from lm_eval import evaluator
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from specbench.cli import CONTEXT_SETTINGS
from specbench.cli.run import lm_eval
from specbench.core.errors import ConfigError
from specbench.decoding.sampling import Sampling
from specbench.integrations.lm_eval import evaluation as command_line
from specbench.integrations.lm_eval.evaluation import quiet_git, simple_evaluate
from specbench.integrations.lm_eval.model import SpecbenchLM
from specbench.integrations.lm_eval.tasks import generation_spec, task_index
from tests.support import reasoning_model, tiny
from tests.support.lm_eval_files import ROWS, use_cache, write_task

Results = dict[str, Any]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    use_cache(monkeypatch, tmp_path / "cache")
    yield


def evaluate(folder: Path, names: list[str], lm: SpecbenchLM, **options: Any) -> Results:
    results = simple_evaluate(lm, tasks=names, task_manager=task_index(names, folder), bootstrap_iters=0, **options)
    assert results is not None
    return results


def request(prompt: str, doc: int = 0, task: str = "t", **gen_kwargs: Any) -> Instance:
    return Instance("generate_until", {}, (prompt, {"max_gen_toks": 8, **gen_kwargs}), 0, (task, doc, 1))


def model(pair: tuple[str, str], method: str = "sd", **options: Any) -> SpecbenchLM:
    return SpecbenchLM(pair[0], pair[1], method, **options)


# ---- answers and columns


def test_importing_registers_the_model() -> None:
    assert get_model("specbench") is SpecbenchLM


def test_columns_stand_beside_the_scores(tiny_pair: tuple[str, str], tmp_path: Path) -> None:
    write_task(tmp_path, "sums")
    lm = model(tiny_pair, baseline=True, override="num_draft_tokens=3")
    row = evaluate(tmp_path, ["sums"], lm, limit=3)["results"]["sums"]
    steps = [list(answer.own.steps) for answer in lm.answers]
    rates = [sum(step[2] for step in each) / sum(step[1] for step in each) for each in steps]
    assert row["exact_match,none"] == 0.0
    assert row["acceptance_rate,sd"] == pytest.approx(sum(rates) / len(rates))
    emitted, num_steps = sum(step[3] for each in steps for step in each), sum(len(each) for each in steps)
    assert row["mean_acceptance_length,sd"] == pytest.approx(emitted / num_steps)
    timed = sum(len(a.own.token_ids) - 1 for a in lm.answers), sum(a.own.decode_seconds for a in lm.answers)
    assert row["tokens_per_second,sd"] == pytest.approx(timed[0] / timed[1])
    assert row["speedup,sd"] == pytest.approx(row["tokens_per_second,sd"] / row["tokens_per_second_ar,sd"])
    assert max(step[0] for each in steps for step in each) == 3


def test_without_baseline_there_is_no_speedup(tiny_pair: tuple[str, str], tmp_path: Path) -> None:
    write_task(tmp_path, "sums")
    results = evaluate(tmp_path, ["sums"], model(tiny_pair), limit=2)
    assert {key for key in results["results"]["sums"] if key.endswith(",sd")} == {
        "acceptance_rate,sd", "mean_acceptance_length,sd", "tokens_per_second,sd",
    }  # fmt: skip


def test_json_holds_intervals_and_what_was_run(tiny_pair: tuple[str, str], tmp_path: Path) -> None:
    write_task(tmp_path, "sums")
    config = evaluate(tmp_path, ["sums"], model(tiny_pair))["config"]
    assert config["model"] == "specbench"
    told = config["specbench"]
    assert (told["target"], told["drafter"]) == tiny_pair
    assert told["method"].startswith("sd@1:")
    assert told["tasks"]["sums"]["n"] == len(ROWS)
    rate = told["tasks"]["sums"]["acceptance_rate"]
    assert rate["low"] <= rate["value"] <= rate["high"]
    json.dumps(told)


def test_ar_has_no_acceptance(tiny_pair: tuple[str, str], tmp_path: Path) -> None:
    write_task(tmp_path, "sums")
    row = evaluate(tmp_path, ["sums"], model(tiny_pair, "ar"), limit=2)["results"]["sums"]
    assert "acceptance_rate,ar" not in row
    assert row["mean_acceptance_length,ar"] == 1.0


@pytest.mark.parametrize(
    "method",
    [
        "draft-only", "pld", "hf-sd",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("fsd", "random-allocation", "tli")),
    ],
)  # fmt: skip
def test_every_kind_of_method(tiny_pair: tuple[str, str], method: str) -> None:
    lm = model(tiny_pair, method, baseline=True)
    lm.generate_until([request("one two one two", doc) for doc in range(3)])
    told = lm.get_model_info()["specbench"]["tasks"]["t"]
    assert told["tokens_per_second"]["value"] > 0 and told["speedup"]["value"] > 0
    judged = sum(step[1] for answer in lm.answers for step in answer.own.steps)
    assert (told["acceptance_rate"]["value"] is not None) == (judged > 0)
    assert (told["mean_acceptance_length"]["value"] is None) == (method == "draft-only")


def test_greedy_answers_are_those_of_ar_and_score_as_right(tiny_pair: tuple[str, str], tmp_path: Path) -> None:
    prompts = [f"Question: {row['question']}\nAnswer:" for row in ROWS]
    alone = model(tiny_pair, "ar").generate_until([request(prompt) for prompt in prompts])
    assert len(set(alone)) > 1
    rows = [{**row, "answer": text} for row, text in zip(ROWS, alone, strict=True)]
    rows[0]["answer"] = "another"
    write_task(tmp_path, "known", rows)
    row = evaluate(tmp_path, ["known"], model(tiny_pair, baseline=True))["results"]["known"]
    assert row["exact_match,none"] == pytest.approx(5 / 6)


def test_order_of_ar_and_the_method_alternates(tiny_pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    lm = model(tiny_pair, baseline=True)
    made: list[str] = []
    decode = lm._decode
    monkeypatch.setattr(lm, "_decode", lambda d, q: (made.append(d.method.name), decode(d, q))[1])
    lm.generate_until([request("one", 0), request("two", 1)])
    assert made == ["ar", "sd", "sd", "ar"]
    assert all(answer.baseline is not None for answer in lm.answers)


def test_a_group_is_pooled_over_its_tasks(tiny_pair: tuple[str, str], tmp_path: Path) -> None:
    write_task(tmp_path, "first", ROWS[:1])
    write_task(tmp_path, "second", ROWS[1:3])
    (tmp_path / "both.yaml").write_text(
        "group: both\ntask: [first, second]\naggregate_metric_list: [{metric: exact_match, weight_by_size: true}]\n"
    )
    lm = model(tiny_pair)
    results = evaluate(tmp_path, ["both"], lm)
    rates = [sum(s[2] for s in a.own.steps) / sum(s[1] for s in a.own.steps) for a in lm.answers]
    assert results["results"]["both"]["acceptance_rate,sd"] == pytest.approx(sum(rates) / len(rates))
    assert results["groups"]["both"]["acceptance_rate,sd"] == results["results"]["both"]["acceptance_rate,sd"]
    assert len(rates) == 3


def test_two_evaluations_do_not_mix(tiny_pair: tuple[str, str], tmp_path: Path) -> None:
    write_task(tmp_path, "first", ROWS[:1])
    write_task(tmp_path, "second", ROWS[1:2])
    lm = model(tiny_pair)
    evaluate(tmp_path, ["first"], lm)
    assert list(evaluate(tmp_path, ["second"], lm)["config"]["specbench"]["tasks"]) == ["second"]


def test_cached_answers_are_in_no_column(
    tiny_pair: tuple[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_task(tmp_path, "sums")
    cache = str(tmp_path / "answers")
    lm = model(tiny_pair)
    first = evaluate(tmp_path, ["sums"], lm, use_cache=cache, limit=2)
    again = evaluate(tmp_path, ["sums"], lm, use_cache=cache, limit=2)
    assert "acceptance_rate,sd" in first["results"]["sums"]
    assert "acceptance_rate,sd" not in again["results"]["sums"]
    assert [s["resps"] for s in again["samples"]["sums"]] == [s["resps"] for s in first["samples"]["sums"]]
    caplog.set_level(logging.WARNING, "lm_eval")
    logging.getLogger("lm_eval").addHandler(caplog.handler)
    lm.add_columns(again)
    logging.getLogger("lm_eval").removeHandler(caplog.handler)
    assert "2 of 2 documents were answered from a cache" in caplog.text


# ---- requests


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (256, (), Sampling(0.0))),
        ({"until": "\n", "max_new_tokens": 7}, (7, ("\n",), Sampling(0.0))),
        ({"until": ["a", ""], "temperature": 0.7}, (256, ("a",), Sampling(0.7))),
        ({"do_sample": False, "temperature": 0.7}, (256, (), Sampling(0.0))),
        ({"do_sample": True, "top_k": 0, "top_p": 0.9}, (256, (), Sampling(1.0, None, 0.9))),
        ({"do_sample": True, "temperature": 0.0, "top_k": 5}, (256, (), Sampling(0.0, 5))),
        ({"max_gen_toks": 3, "max_new_tokens": 9, "num_beams": 1}, (3, (), Sampling(0.0))),
    ],
)
def test_generation_kwargs(given: dict[str, Any], expected: tuple[Any, ...]) -> None:
    made = generation_spec(given)
    assert (made.max_new_tokens, made.stop, Sampling(made.temperature, made.top_k, made.top_p)) == expected


@pytest.mark.parametrize(
    ("given", "key"),
    [({"num_beams": 10}, "num_beams = 10"), ({"repetition_penalty": 1.2}, "repetition_penalty = 1.2"),
     ({"temperature": -1}, "temperature = -1"), ({"max_gen_toks": 0}, "max_new_tokens = 0"), ({"top_p": 2}, "top_p"),
     ({"until": [3]}, "stop"), ({"temperature": "hot"}, "temperature = 'hot'")],
)  # fmt: skip
def test_generation_kwargs_are_never_ignored(given: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^generation_kwargs\.{key}"):
        generation_spec(given)


def test_sampling_depends_on_the_seed_and_the_document_alone(tiny_pair: tuple[str, str]) -> None:
    requests = [request("What is it?", doc, temperature=1.0) for doc in range(2)]
    texts = model(tiny_pair).generate_until(requests)
    assert len(set(texts)) == 2
    assert model(tiny_pair, baseline=True).generate_until(requests[::-1])[::-1] == texts
    assert model(tiny_pair, seed=1).generate_until(requests) != texts


def test_the_seed_of_lm_eval_is_the_models(tiny_pair: tuple[str, str], tmp_path: Path) -> None:
    write_task(tmp_path, "sums")
    arguments = {"pretrained": tiny_pair[0], "drafter": tiny_pair[1]}

    def told(**options: Any) -> int:
        manager = task_index(["sums"], tmp_path)
        results = simple_evaluate("specbench", arguments, tasks=["sums"], task_manager=manager, limit=1, **options)
        assert results is not None
        seed: int = results["config"]["specbench"]["seed"]
        return seed

    assert (told(), told(torch_random_seed=7), told(torch_random_seed=None)) == (1234, 7, 0)
    arguments["seed"] = 3  # type: ignore[assignment]
    assert told(torch_random_seed=7) == 3


def test_repeats_of_a_document_are_drawn_anew(tiny_pair: tuple[str, str]) -> None:
    again = request("What is it?", temperature=1.0)
    first, second = model(tiny_pair).generate_until([again, again])
    assert first != second


def test_text_ends_before_a_stop_string(tiny_pair: tuple[str, str]) -> None:
    lm = model(tiny_pair)
    (text,) = lm.generate_until([request("Say something")])
    stop = text[3:5]
    (cut,) = lm.generate_until([request("Say something", until=[stop])])
    assert cut == text[: text.index(stop)]
    assert lm.answers[0].own.finish == "stop"


def test_reasoning_is_no_part_of_an_answer(tmp_path: Path) -> None:
    """Stop strings count after it, as in lm-eval; unlike there, an answer that ends inside it is empty."""
    folder = str(reasoning_model.save(tmp_path, opens=True, is_special=False))
    texts = {"A": "5\n\nQ:</think>\n\n18\n\nmore", "B": "5\n\n18", "C": "5[/T]6</think>18"}
    with reasoning_model.scripted(lambda prompt: texts.get(prompt[0], "")):
        for options, answers in (
            ({}, ["18", "", "18"]), ({"think_end_token": "[/T]"}, ["", "", "6</think>18"]),
            ({"think_start_token": "[T]"}, ["5", "5", "18"]),
        ):  # fmt: skip
            lm = model((folder, folder), "pld", **options)
            requests = [request(f"{text}<think>", until=["\n\n"], max_gen_toks=200) for text in texts]
            assert lm.generate_until(requests) == answers, options
        assert lm.models.target.tokenizer.chat_template.endswith("<think>\n")


def test_a_long_prompt_keeps_its_end(tiny_pair: tuple[str, str]) -> None:
    long, short = "x" * 2000 + "the end", "x" * (1024 - 8 - 7) + "the end"
    first, second = model(tiny_pair).generate_until([request(long, 0), request(short, 1)])
    assert first == second


def test_no_room_for_a_prompt(tiny_pair: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match="max_gen_toks = 1024 leaves no room"):
        model(tiny_pair).generate_until([request("x", max_gen_toks=1024)])


def test_an_empty_prompt(tiny_pair: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match="task t, document 3: the prompt is empty"):
        model(tiny_pair).generate_until([request("", 3)])


def test_chat_template(tiny_pair: tuple[str, str], tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "chatty")
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    lm = SpecbenchLM(str(folder), tiny_pair[1])
    write_task(tmp_path / "tasks", "sums")
    results = evaluate(tmp_path / "tasks", ["sums"], lm, apply_chat_template=True, limit=1)
    assert results["samples"]["sums"][0]["arguments"][0][0] == f"<user>Question: {ROWS[0]['question']}\nAnswer:"
    assert lm.answers[0].query.rendered
    assert lm.chat_template(True) == tokenizer.chat_template
    with pytest.raises(ConfigError, match="has no chat template: leave the option out"):
        model(tiny_pair).apply_chat_template([{"role": "user", "content": "x"}])


def test_a_chat_template_is_rendered_as_in_a_run(
    tiny_pair: tuple[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With a fixed date, and a system prompt where the template has no role for it; the user's text must be in it."""
    folder = tiny.save(tmp_path / "chatty")
    template = folder / "chat_template.jinja"
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    template.write_text(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ strftime_now('%Y-%m-%d') }}"
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    for arguments, day in (({}, "2024-07-26"), ({"template_date": "2025-03-01"}, "2025-03-01")):
        lm = SpecbenchLM(str(folder), tiny_pair[1], **arguments)
        assert lm.apply_chat_template(messages) == f"{day}<user>Be brief.\n\nHi"
        assert "no system role" in caplog.text
    template.write_text("{% for m in messages %}<{{ m.role }}>{% endfor %}")
    with pytest.raises(ConfigError, match=r"drops or cuts the user's text: --model_args prompt_checks=warn"):
        SpecbenchLM(str(folder), tiny_pair[1]).apply_chat_template(messages)
    lm = SpecbenchLM(str(folder), tiny_pair[1], prompt_checks="warn")
    assert lm.apply_chat_template(messages) == "<system><user>"


def test_special_tokens_of_a_rendered_prompt_are_not_doubled(tiny_pair: tuple[str, str]) -> None:
    lm = model(tiny_pair)
    lm.tokenizer.bos_token = "<|end|>"
    seen: list[bool] = []
    tokenizer = lm.models.target.tokenizer

    class Watching:
        bos_token = "<|end|>"

        def __call__(self, text: str, add_special_tokens: bool = True) -> Any:
            seen.append(add_special_tokens)
            return tokenizer(text, add_special_tokens=add_special_tokens)

    lm.models.target.tokenizer = Watching()
    lm._rendered.add("rendered")
    for query in lm._queries([request("plain"), request("rendered"), request("<|end|>begun")]):
        lm.prompt_ids(lm.models.target, query)
    assert seen == [True, False, False]


def test_log_likelihoods_are_refused(tiny_pair: tuple[str, str]) -> None:
    asked = Instance("loglikelihood", {}, ("a", "b"), 0, ("hellaswag", 0, 1))
    lm = model(tiny_pair)
    for refuse in (lm.loglikelihood, lm.loglikelihood_rolling):
        with pytest.raises(ConfigError, match=r"task hellaswag: needs log-likelihoods.*generate_until, such as"):
            refuse([asked])


@pytest.mark.parametrize(
    ("options", "problem"),
    [({"methd": "sd"}, r"methd=sd: no such argument: did you mean 'method'"),
     ({"baseline": "yes"}, "baseline=yes: write true or false"),
     ({"batch_size": 8}, "batch_size 8: specbench decodes one request at a time"),
     ({"method": "sdd"}, "unknown method 'sdd': did you mean 'sd'"),
     ({"override": "verification.treshold=0.3"}, "no selected task or method has the key .verification.treshold."),
     ({"dtype": "int3"}, "dtype = 'int3'"), ({"quantize": "nf3"}, "--model_args: quantize = 'nf3'"),
     ({"quantize": "nf4"}, "--quantize nf4: needs a CUDA device"), ({"max_gen_toks": 0}, "max_new_tokens = 0")],
)  # fmt: skip
def test_wrong_arguments(tiny_pair: tuple[str, str], options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        SpecbenchLM(*tiny_pair, **options)


def test_a_drafter_is_missing(tiny_pair: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match="method 'sd' needs a drafter"):
        SpecbenchLM(tiny_pair[0])


# ---- the command line


@pytest.fixture
def line(tiny_pair: tuple[str, str], tmp_path: Path) -> Callable[..., list[str]]:
    """A command line on the tiny pair, the tasks in the test's folder `tasks`."""

    def make(tasks: str, *more: str, arguments: str = "method=sd,baseline=true") -> list[str]:
        pair = f"pretrained={tiny_pair[0]},drafter={tiny_pair[1]},{arguments}"
        return ["--model_args", pair, "--include_path", str(tmp_path / "tasks"), "--tasks", tasks, *more]

    return make


def test_the_table_and_the_json_show_our_columns(
    line: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_task(tmp_path / "tasks", "sums")
    command_line.main(line("sums", "--limit", "3", "--output_path", str(tmp_path / "out")))
    printed = capsys.readouterr().out
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in printed.splitlines() if row.startswith("|")]
    shown = {row[4]: (row[2], row[5], row[6]) for row in cells[2:]}
    assert set(shown) == {
        "exact_match", "acceptance_rate", "mean_acceptance_length", "tokens_per_second", "tokens_per_second_ar",
        "speedup",
    }  # fmt: skip
    assert shown["acceptance_rate"][:2] == ("sd", "↑")
    (file,) = (tmp_path / "out").glob("**/results_*.json")
    written = json.loads(file.read_text("utf-8"))["results"]["sums"]
    assert f"{written['speedup,sd']:.4f}" == shown["speedup"][2]


def test_the_door_is_a_command(line: Callable[..., list[str]], tmp_path: Path, capfd: Any) -> None:
    write_task(tmp_path / "tasks", "sums")
    app = typer.Typer()
    app.callback()(lambda: None)
    app.command("lm-eval", context_settings=CONTEXT_SETTINGS["lm-eval"])(lm_eval)
    app(["lm-eval", *line("sums", "-L", "1", "--gen_kwargs", "max_gen_toks=4", "temperature=0")], standalone_mode=False)
    assert "gen_kwargs: ({'max_gen_toks': 4, 'temperature': 0})" in capfd.readouterr().out


def test_tasks_beside_the_index_by_path(line: Callable[..., list[str]], tmp_path: Path, capsys: Any) -> None:
    path = write_task(tmp_path / "elsewhere", "sums")
    (tmp_path / "tasks").mkdir()
    command_line.main(line(str(path), "--limit", "1"))
    assert "|sums |" in capsys.readouterr().out


def test_a_configuration_file(tiny_pair: tuple[str, str], tmp_path: Path, capsys: Any) -> None:
    write_task(tmp_path / "tasks", "sums")
    config = tmp_path / "config.yaml"
    config.write_text(
        f"tasks: [sums]\ninclude_path: {tmp_path / 'tasks'}\nlimit: 1\n"
        f"model_args: {{pretrained: {tiny_pair[0]}, drafter: {tiny_pair[1]}}}\n"
    )
    command_line.main(["--config", str(config)])
    assert "|acceptance_rate" in capsys.readouterr().out.replace(" ", "")
    with pytest.raises(ConfigError, match="lm-eval: Config file not found"):
        command_line.main(["--config", str(tmp_path / "nowhere.yaml")])


CHOICES = {"output_type": "multiple_choice", "doc_to_choice": ["yes", "no"], "doc_to_target": 0, "metric_list": ...,
           "generation_kwargs": ...}  # fmt: skip


@pytest.mark.parametrize(
    ("tasks", "more", "problem"),
    [
        ("sums", ["--model", "hf"], "--model hf: `specbench lm-eval` always uses the model specbench"),
        ("choices", [], "task choices: output_type multiple_choice needs log-likelihoods"),
        ("broken", [], r"broken\.yaml: lm-eval cannot read this task: .*line 2"),
        ("no_data", [], "lm-eval cannot load task no_data: FileNotFoundError"),
        ("tasks/missing.yaml", [], "lm-eval task tasks/missing.yaml: no such file"),
        ("sums", ["--include_path", "nowhere"], "include path nowhere: no such folder"),
        ("of_choices", [], "task choices: output_type multiple_choice needs"),
        ("tasks/choices.yaml", [], "output_type multiple_choice needs"),
        ("sums", ["--limt", "3"], "lm-eval: unrecognized arguments: --limt 3"),
        ("sums", ["--log_samples"], "lm-eval: Specify --output_path"),
        ("sums", ["--batch_size", "8"], "batch_size 8: specbench decodes one request"),
        ("sums", ["--gen_kwargs", "num_beams=4"], "generation_kwargs.num_beams = 4"),
        ("sums", ["--apply_chat_template"], "has no chat template: leave the option out"),
        ("sums", ["--gen_kwargs", "x"], "lm-eval: argument --gen_kwargs: expected"),
    ],
)
def test_a_mistake_is_one_line(
    line: Callable[..., list[str]],
    tmp_path: Path,
    tasks: str,
    more: list[str],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_task(tmp_path / "tasks", "sums")
    write_task(tmp_path / "tasks", "choices", **CHOICES)
    write_task(tmp_path / "tasks", "no_data", dataset_kwargs={"data_files": {"test": "nowhere.jsonl"}})
    (tmp_path / "tasks" / "of_choices.yaml").write_text("group: of_choices\ntask: [sums, choices]\n")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks" / "broken.yaml").write_text("task: broken\n  dataset_path: json\n")
    with pytest.raises(ConfigError, match=problem) as caught:
        command_line.main(line(tasks, *more))
    assert "\n" not in str(caught.value)


def test_an_unknown_task_names_the_nearest(line: Callable[..., list[str]], tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "sums")
    with pytest.raises(ConfigError, match="unknown lm-eval task 'gsm8kk': did you mean 'gsm8k'"):
        command_line.main(line("gsm8kk"))


def test_gen_kwargs_are_refused_before_models_are_loaded() -> None:
    for gen_kwargs in ("num_beams=4", {"num_beams": 4}):
        with pytest.raises(ConfigError, match=r"generation_kwargs.num_beams = 4"):
            simple_evaluate(
                model_args={"pretrained": "/nowhere"}, tasks=["sums"], task_manager=object(), gen_kwargs=gen_kwargs
            )


@pytest.mark.parametrize("is_checkout", [False, True])
def test_git_is_asked_in_a_repository_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_checkout: bool) -> None:
    if is_checkout:
        (tmp_path / ".git").mkdir()
    monkeypatch.delenv("GIT_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    theirs = evaluator.get_git_commit_hash
    with quiet_git():
        assert (evaluator.get_git_commit_hash is theirs) == is_checkout
        assert is_checkout or evaluator.get_git_commit_hash() is None
    assert evaluator.get_git_commit_hash is theirs
