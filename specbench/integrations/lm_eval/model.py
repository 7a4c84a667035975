"""specbench as a model for lm-eval: any generation task runs with any method, optionally with AR as the baseline."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, get_args

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from tqdm import tqdm

from specbench.core.environment import EMBEDDED, set_threads
from specbench.core.errors import ConfigError, nearest
from specbench.core.progress import doing
from specbench.core.reasoning import TAGS
from specbench.decoding.build import build_decoder, sampling_of
from specbench.decoding.decoder import Decoder, QueryInfo, stream_seed
from specbench.integrations.lm_eval.tasks import MAX_GEN_TOKS, generation_spec
from specbench.models.causal_lm import TextModel
from specbench.records.generation import Generation
from specbench.results.answers import Answer
from specbench.results.metrics import acceptance, speeds
from specbench.results.rows import SPEEDUPS
from specbench.results.warnings import not_steady
from specbench.running.measure import method_record
from specbench.running.models import LoadedModels, has_other_vocabulary, load_models
from specbench.running.prompts import end_problem, refuse_or_warn
from specbench.running.request import parse_template_args
from specbench.running.warm_up import Budget, WarmUp, warm_up
from specbench.specs.catalogue import load_method, versioned_name, with_overrides
from specbench.specs.components import build
from specbench.specs.method import MethodSpec
from specbench.specs.run import RunSpec
from specbench.specs.run_options import MODEL_ARGS, OPTIONS, RunOptions
from specbench.specs.task import GenerationSpec, TaskSpec
from specbench.statistics.bootstrap import Estimate, Resampler

WARN_ONLY = "--model_args prompt_checks=warn"
log = logging.getLogger("lm_eval.specbench")


@dataclass(frozen=True)
class LmEvalRequest:
    """One request to answer a document of a task. `repeat`: the number of earlier requests for this document.
    `rendered`: whether the prompt has the special tokens of a chat template."""

    task: str
    doc: int
    repeat: int
    prompt: str
    rendered: bool
    generation: GenerationSpec


@dataclass(frozen=True)
class LmEvalAnswer:
    """A measured request: the answer's text without its reasoning, and the generation in the format of records.
    `baseline`: AR's generation."""

    query: LmEvalRequest
    text: str
    own: Generation
    baseline: Generation | None


class LmEvalEngine:
    """Loads the models of a run with one or two methods. The last method gives the answers."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        if spec.engine == "auto":  # graphs would be recorded during measurements, since passes are not reserved here
            spec = spec.model_copy(update={"engine": "eager"})
        self.models = load_models(spec)
        self.method = spec.methods[-1]
        self.context_limit = self.models.context_limit(spec.methods)
        self._decoders: dict[Any, tuple[Decoder, ...]] = {}

    def decoders(self, generation: GenerationSpec) -> tuple[Decoder, ...]:
        """Returns the methods' decoders for the request's sampling. Raises ConfigError if models do not fit a
        method."""
        sampling = sampling_of(generation)
        if sampling not in self._decoders:
            decoders = tuple(build_decoder(method, self.models.pair(method), sampling) for method in self.spec.methods)
            self._decoders[sampling] = decoders
        return self._decoders[sampling]

    def prompt_ids(self, model: TextModel, query: LmEvalRequest) -> list[int]:
        """Returns the end of the prompt that leaves room for the answer, as lm-eval's own models do."""
        ids = self._whole_prompt_ids(model, query)
        if self.context_limit is None:
            return ids
        return ids[-(self.context_limit - query.generation.max_new_tokens) :]

    def _whole_prompt_ids(self, model: TextModel, query: LmEvalRequest) -> list[int]:
        bos = model.tokenizer.bos_token
        is_whole = query.rendered or bool(bos and query.prompt.startswith(bos))
        ids: list[int] = model.tokenizer(query.prompt, add_special_tokens=not is_whole)["input_ids"]
        if not ids:
            raise ConfigError(f"task {query.task}, document {query.doc}: the prompt is empty after tokenization")
        if self.context_limit is not None and query.generation.max_new_tokens >= self.context_limit:
            raise ConfigError(
                f"task {query.task}: max_gen_toks = {query.generation.max_new_tokens} leaves no room for the prompt in "
                f"the models' context of {self.context_limit} tokens: give --gen_kwargs max_gen_toks=N with a lower N"
            )
        return ids

    def check(self, queries: Sequence[LmEvalRequest]) -> int:
        """Composes all methods and encodes all prompts, so that errors are raised before anything is measured.

        Returns the number of prompts that are too long and lose their beginning.
        """
        num_cut = 0
        for query in queries[:1]:
            ids = self._whole_prompt_ids(self.models.target, query)
            if problem := end_problem(self.models.target, query.prompt, ids):
                refuse_or_warn(problem, self.spec.prompt_checks, WARN_ONLY, log.warning)
        for query in queries:
            self.decoders(query.generation)
            num_tokens = len(self._whole_prompt_ids(self.models.target, query))
            num_cut += num_tokens > len(self.prompt_ids(self.models.target, query))
        return num_cut

    def warm_up(self, queries: Sequence[LmEvalRequest]) -> list[WarmUp]:
        """Runs every decoder on an unmeasured text of the queries' maximum length until its speed is steady, or a tenth
        of the expected time is spent. Returns the warm-ups of all decoders."""
        longest: dict[Any, int] = {}
        maxima = [query.generation.max_new_tokens for query in queries]
        for query in queries:
            num_tokens = len(self.prompt_ids(self.models.target, query)) + query.generation.max_new_tokens
            sampling = sampling_of(query.generation)
            longest[sampling] = max(num_tokens, longest.get(sampling, 0))
        budget, found = Budget(num_planned=sum(maxima)), list[WarmUp]()
        for sampling, num_tokens in longest.items():
            decoders = [(decoder, num_tokens) for decoder in self._decoders[sampling]]
            with doing("warming up") as tell:
                found += warm_up(decoders, self.context_limit, max(maxima), budget, tell).values()
        return found

    def answer(self, query: LmEvalRequest, number: int) -> LmEvalAnswer:
        """Decodes one request with the method and, if it is the baseline, AR. Their order alternates with `number`."""
        decoders = self.decoders(query.generation)
        measured: dict[str, tuple[str, Generation]] = {}
        for decoder in decoders if number % 2 == 0 else decoders[::-1]:
            measured[decoder.method.name] = self._decode(decoder, query)
        text, own = measured[self.method.name]
        baseline = measured["ar"][1] if len(decoders) > 1 else None
        return LmEvalAnswer(query, text, own, baseline)

    def _decode(self, decoder: Decoder, query: LmEvalRequest) -> tuple[str, Generation]:
        seed = stream_seed(self.spec.seed, query.task, query.doc, query.repeat, decoder.method.name)
        selected = decoder.select_decoder(seed, QueryInfo(text=query.prompt))
        ids = self.prompt_ids(selected.model, query)
        stop = selected.stop_rules(query.generation, self.context_limit)
        output = selected.generate(ids, stop, seed)
        generation = method_record(output, stop, ids, None, None, **decoder.record_fields(selected))
        return generation.answer, generation


COLUMNS = ("acceptance_rate", "mean_acceptance_length", "tokens_per_second")
WITH_BASELINE = ("tokens_per_second_ar", "speedup")


def metrics(answers: Sequence[LmEvalAnswer], method: MethodSpec, models: LoadedModels) -> dict[str, Estimate]:
    """Returns α, τ and tokens/s with intervals, and if every answer has a baseline, its speed and the speed-up."""
    prompts = Resampler.of_keys([(a.query.task, a.query.doc) for a in answers], seed=0)
    own = [Answer.of(answer.own, method.decodes_with) for answer in answers]
    baseline = [Answer.of(answer.baseline) for answer in answers if answer.baseline is not None]
    has_baseline = len(baseline) == len(answers)
    found = {
        **acceptance(prompts, own, method.verification.model_dump()),
        **speeds(prompts, own, baseline if has_baseline else own, is_baseline=False),
        **({name: Estimate() for name in SPEEDUPS} if has_other_vocabulary(method, models) else {}),
    }
    return {name: found[name] for name in (*COLUMNS, *(WITH_BASELINE if has_baseline else ()))}


def tasks_of_group(name: str, groups: Mapping[str, Sequence[str]]) -> set[str]:
    members = groups.get(name)
    return {name} if not members else set().union(*(tasks_of_group(member, groups) for member in members))


def summary(answers: Sequence[LmEvalAnswer], method: MethodSpec, models: LoadedModels) -> dict[str, object]:
    """Returns the columns of each task with 95 % intervals over its `n` documents, for the JSON of the results."""
    by_task: dict[str, list[LmEvalAnswer]] = {}
    for answer in answers:
        by_task.setdefault(answer.query.task, []).append(answer)
    return {
        task: {
            "n": len({answer.query.doc for answer in group}),
            **{name: metric.model_dump() for name, metric in metrics(group, method, models).items()},
        }
        for task, group in by_task.items()
    }


OWN_ARGUMENTS = ("method", "baseline", "max_gen_toks", "think_start_token", "think_end_token")


def run_options(arguments: Mapping[str, object]) -> RunOptions:
    """Returns the run options among the arguments of the model; None stands for the default. Raises ConfigError for an
    unknown argument."""
    values: dict[str, Any] = {}
    for name, value in arguments.items():
        if name not in MODEL_ARGS:
            known = (*MODEL_ARGS, *OWN_ARGUMENTS)
            raise ConfigError(f"--model_args {name}={value}: no such argument: {nearest(name, known)}")
        option = OPTIONS[MODEL_ARGS[name]]
        if isinstance(value, str) and option.is_tuple:
            value = tuple(part for part in value.split(";") if part.strip())
        elif not isinstance(value, str | None) and str in get_args(option.type) and not option.is_tuple:
            value = str(value)  # lm-eval reads a revision or a date as a number
        if value is not None:
            values[option.name] = value
    return RunOptions(**values)


@register_model("specbench")
class SpecbenchLM(LM):  # type: ignore[misc]  # lm-eval has no types
    """A target, a draft model and a method as a model for lm-eval. It generates, but computes no log-likelihoods.

    pretrained, drafter: hub id, folder or `embedded:NAME`. method: a name or the path of a YAML file. baseline: also
    decodes every request with AR, which gives the speed-up but takes more time. override: `key=value` of the method as
    for --set, several separated by `;`. max_gen_toks: the default for tasks that set none. think_start_token,
    think_end_token: the tags of reasoning, which lm-eval does not see. options: revision, and the options of
    `specbench run` that have the same name here (`MODEL_ARGS`), such as dtype, seed and template_date. Each
    document has its own random stream, so that the order of requests does not change results. `answers`: the measured
    requests of the last evaluation. Raises ConfigError for an invalid argument.
    """

    def __init__(
        self, pretrained: str = EMBEDDED + "target", drafter: str | None = None, method: str = "sd", *,
        baseline: bool = False, max_gen_toks: int = MAX_GEN_TOKS, think_start_token: str = TAGS.open,
        think_end_token: str = TAGS.close, batch_size: int | str | None = None, max_batch_size: int | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        chosen = run_options({"pretrained": pretrained, "drafter": drafter, **options})
        if not isinstance(baseline, bool):
            raise ConfigError(f"--model_args baseline={baseline}: write true or false")
        if str(batch_size or 1).partition(":")[0] not in ("1", "auto"):
            raise ConfigError(f"--batch_size {batch_size}: specbench decodes one request at a time: remove it")
        set_threads(chosen.threads, pretrained.startswith(EMBEDDED))
        placeholder = {  # for the task that a RunSpec requires
            "name": "lm-eval", "version": 1, "title": "Requests of lm-eval", "prompt": "{{ row.prompt }}",
            "generation": {
                "max_new_tokens": max_gen_toks, "reasoning_tags": [think_start_token, think_end_token],
            },
        }  # fmt: skip
        task = build(TaskSpec, placeholder, prefix="--model_args: ")
        methods = [load_method(name) for name in dict.fromkeys(["ar", method] if baseline else [method])]
        _, methods = with_overrides([], methods, chosen.overrides)
        data = {
            **{name: value for name, value in vars(chosen).items() if name in RunSpec.model_fields},
            "tasks": [task], "methods": methods,
            "chat_template_args": parse_template_args(chosen.chat_template_args, chosen.chat),
        }  # fmt: skip
        self.engine = LmEvalEngine(build(RunSpec, data, prefix="--model_args: "))
        self.answers: list[LmEvalAnswer] = []
        self._default = task.generation
        self._rendered: set[str] = set()
        self._told: set[str] = set()

    @property
    def method(self) -> MethodSpec:
        return self.engine.method

    @property
    def tokenizer(self) -> Any:
        return self.engine.models.target.tokenizer

    @property
    def tokenizer_name(self) -> str:
        """Returns the name of the chat template in lm-eval's prompt cache."""
        return self.engine.models.target.name.replace("/", "__")

    @property
    def max_length(self) -> int | None:
        """Returns the maximum number of tokens of prompt and answer together."""
        return self.engine.context_limit

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Returns the source of the target's template, for lm-eval's log. Raises ConfigError for a named template."""
        if not chat_template:
            return ""
        if chat_template is not True:
            raise ConfigError(f"--apply_chat_template {chat_template}: give it without a name, for the model's own")
        return str(self._template())

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Returns the messages as one text. Without `add_generation_prompt`, the last message begins the answer."""
        self._template()
        self._check_template(chat_history)
        try:
            text = self.engine.models.target.chat_template.apply(
                chat_history, add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )  # fmt: skip
        except Exception as error:  # templates are programs and may raise anything
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"model '{self.engine.models.target.name}': its chat template refuses the messages ({reason}): "
                "leave --apply_chat_template or --system_instruction out"
            ) from error
        self._rendered.add(text)
        return text

    def _check_template(self, chat_history: Sequence[Mapping[str, str]]) -> None:
        """Raises ConfigError, or logs a warning, if the template drops the user's text. Logs what else it does to the
        first messages, once."""
        template, log_line = self.engine.models.target.chat_template, log.warning
        system = next((each["content"] for each in chat_history if each["role"] == "system"), None)
        for problem in template.problems(several_turns=len(chat_history) > (2 if system is not None else 1)):
            refuse_or_warn(problem, self.engine.spec.prompt_checks, WARN_ONLY, log_line)
        for line in template.notes(system):
            if line not in self._told:
                self._told.add(line)
                log_line("%s", line)

    def _template(self) -> str | dict[str, str]:
        template: str | dict[str, str] | None = getattr(self.tokenizer, "chat_template", None)
        if template is None:
            name = self.engine.models.target.name
            raise ConfigError(f"--apply_chat_template: model '{name}' has no chat template: leave the option out")
        return template

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Returns the answers in order, and stores their measurements in `answers`."""
        self.answers = []
        queries = self._queries(requests)
        if num_cut := self.engine.check(queries):
            log.warning(
                "%d of %d prompts leave no room for the answer in %s tokens of context: they lose their beginning",
                num_cut, len(queries), self.max_length,
            )  # fmt: skip
        if unsteady := [each for each in self.engine.warm_up(queries) if each.steady is False]:
            log.warning("%s", not_steady(unsteady[0].blocks, unsteady[0].seconds))
        pairs = zip(requests, queries, strict=True)
        bar = tqdm(pairs, total=len(queries), disable=disable_tqdm, desc=f"Running {self.method.name}")
        for number, (request, query) in enumerate(bar):
            answer = self.engine.answer(query, number)
            self.answers.append(answer)
            self.cache_hook.add_partial("generate_until", request.args, answer.text)
        return [answer.text for answer in self.answers]

    def _queries(self, requests: list[Instance]) -> list[LmEvalRequest]:
        seen: Counter[tuple[str, int, int]] = Counter()
        queries = []
        for number, request in enumerate(requests):
            prompt, gen_kwargs = request.args[:2]
            task, doc = request.task_name or "requests", number if request.doc_id is None else request.doc_id
            key = (task, doc, request.idx)
            generation = generation_spec(gen_kwargs, self._default.max_new_tokens)
            generation = generation.model_copy(update={"reasoning_tags": self._default.reasoning_tags})
            queries.append(LmEvalRequest(task, doc, seen[key], prompt, prompt in self._rendered, generation))
            seen[key] += 1
        return queries

    def loglikelihood(self, requests: list[Instance]) -> NoReturn:
        """Raises ConfigError: specbench computes no log-likelihoods."""
        tasks = ", ".join(sorted({request.task_name or "?" for request in requests}))
        raise ConfigError(
            f"task {tasks}: needs log-likelihoods of given texts, so nothing is generated and no draft token is "
            "verified: choose tasks with output_type generate_until, such as gsm8k or mgsm_direct_en"
        )

    loglikelihood_rolling = loglikelihood

    def get_model_info(self) -> dict[str, object]:
        """Returns the models, the method and each task's measurements, for `config` in lm-eval's results."""
        models, method = self.engine.models, self.method
        drafters = {name.partition("/")[2]: drafter for name, drafter in models.drafters.items()}
        return {
            "model_dtype": models.target.precision,
            "model_revision": models.target.revision,
            "specbench": {
                "target": models.target.name,
                "drafter": join_routes({route: drafter.name for route, drafter in drafters.items()}),
                "drafter_revision": join_routes({route: drafter.revision for route, drafter in drafters.items()}),
                "method": versioned_name(method),
                "num_draft_tokens": method.num_draft_tokens,
                "seed": self.engine.spec.seed,
                "tasks": summary(self.answers, method, models),
            },
        }

    def add_columns(self, results: dict[str, Any]) -> None:
        """Adds the metrics of the last evaluation that have a value to lm-eval's results, as "NAME,METHOD"."""
        for name, row in results["results"].items():
            tasks = tasks_of_group(name, results.get("group_subtasks", {}))
            measured = [answer for answer in self.answers if answer.query.task in tasks]
            if not measured:
                continue
            estimates = metrics(measured, self.method, self.engine.models)
            columns = {
                f"{key},{self.method.name}": each.value for key, each in estimates.items() if each.value is not None
            }
            row.update(columns)
            if name in results.get("groups", {}):
                results["groups"][name].update(columns)
            results.setdefault("higher_is_better", {}).setdefault(name, {}).update(dict.fromkeys(estimates, True))
        for task, counts in results.get("n-samples", {}).items():
            num_measured = len({answer.query.doc for answer in self.answers if answer.query.task == task})
            if num_measured < counts["effective"]:
                log.warning(
                    "task %s: %d of %d documents were answered from a cache and are not in specbench's columns",
                    task, counts["effective"] - num_measured, counts["effective"],
                )  # fmt: skip


def join_routes(texts: Mapping[str, str | None]) -> str | None:
    """Returns the texts of all routes as one text, each after its language; None without texts."""
    return ", ".join(f"{route} {text}".strip() for route, text in texts.items() if text is not None) or None
