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
from specbench.decoding.sampling import Sampling
from specbench.integrations.lm_eval.tasks import MAX_GEN_TOKS, generation_spec
from specbench.models.causal_lm import TextModel
from specbench.records.generation import Generation
from specbench.results.answers import Answer
from specbench.results.metrics import acceptance, speeds
from specbench.results.rows import SPEEDUPS
from specbench.results.warnings import not_steady
from specbench.running.measure import method_record
from specbench.running.models import has_other_vocabulary, load_models
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
OWN_ARGUMENTS = ("method", "baseline", "max_gen_toks", "think_start_token", "think_end_token")
COLUMNS = ("acceptance_rate", "mean_acceptance_length", "tokens_per_second")
WITH_BASELINE = ("tokens_per_second_ar", "speedup")
log = logging.getLogger("lm_eval.specbench")


def run_options(arguments: Mapping[str, object]) -> RunOptions:
    """Returns the run options among the arguments of the model; None is the default. Raises ConfigError for an
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
    """A measured request: the generation in the format of records, and AR's, if it is the baseline."""

    query: LmEvalRequest
    own: Generation
    baseline: Generation | None


@register_model("specbench")
class SpecbenchLM(LM):  # type: ignore[misc]  # lm-eval has no types
    """A target, a draft model and a method as a model for lm-eval. It generates, but computes no log-likelihoods.

    pretrained, drafter: hub id, folder or `embedded:NAME`. method: a name or the path of a YAML file. baseline: also
    decodes every request with AR, which gives the speed-up but takes more time. override: `key=value` of the method as
    for --set, several separated by `;`. max_gen_toks: the default for tasks that set none. think_start_token,
    think_end_token: the tags of reasoning, which lm-eval does not see. options: revision, and the options of
    `specbench run` that have the same name here (`MODEL_ARGS`), such as dtype, seed and template_date. Each
    document has its own random stream, so that the order of requests does not change results. `answers`: the measured
    requests of the last evaluation. `max_length`: the maximum number of tokens of prompt and answer together; None for
    no limit. Raises ConfigError for an invalid argument.
    """

    def __init__(
        self, pretrained: str = EMBEDDED + "target", drafter: str | None = None, method: str = "sd", *,
        baseline: bool = False, max_gen_toks: int = MAX_GEN_TOKS, think_start_token: str = TAGS.open,
        think_end_token: str = TAGS.close, batch_size: int | str | None = None, max_batch_size: int | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        # 1. The arguments are those of a run, whose only task represents all of lm-eval's.
        chosen = run_options({"pretrained": pretrained, "drafter": drafter, **options})
        if not isinstance(baseline, bool):
            raise ConfigError(f"--model_args baseline={baseline}: write true or false")
        if str(batch_size or 1).partition(":")[0] not in ("1", "auto"):
            raise ConfigError(f"--batch_size {batch_size}: specbench decodes one request at a time: remove it")
        generation = {"max_new_tokens": max_gen_toks, "reasoning_tags": [think_start_token, think_end_token]}
        placeholder = {
            "name": "lm-eval", "version": 1, "title": "Requests of lm-eval", "prompt": "{{ row.prompt }}",
            "generation": generation,
        }  # fmt: skip
        task = build(TaskSpec, placeholder, prefix="--model_args: ")
        methods = [load_method(name) for name in dict.fromkeys(["ar", method] if baseline else [method])]
        _, methods = with_overrides([], methods, chosen.overrides)
        data = {
            **{name: value for name, value in vars(chosen).items() if name in RunSpec.model_fields},
            "tasks": [task], "methods": methods,
            "chat_template_args": parse_template_args(chosen.chat_template_args, chosen.chat),
        }  # fmt: skip
        self.spec = build(RunSpec, data, prefix="--model_args: ")
        # 2. The models. Graphs would be recorded during measurements, since passes are not reserved here.
        set_threads(chosen.threads, pretrained.startswith(EMBEDDED))
        is_auto = self.spec.engine == "auto"
        self.models = load_models(self.spec.model_copy(update={"engine": "eager"}) if is_auto else self.spec)
        self.method: MethodSpec = self.spec.methods[-1]
        self.max_length = self.models.context_limit(self.spec.methods)
        self.tokenizer = self.models.target.tokenizer
        self.answers: list[LmEvalAnswer] = []
        self._default = task.generation
        self._decoders: dict[Sampling, tuple[Decoder, ...]] = {}
        self._rendered: set[str] = set()
        self._noted: set[str] = set()

    # Prompts.

    @property
    def tokenizer_name(self) -> str:
        """The name of the chat template in lm-eval's prompt cache."""
        return self.models.target.name.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Returns the source of the target's template, for lm-eval's log. Raises ConfigError for a named template."""
        if not chat_template:
            return ""
        if chat_template is not True:
            raise ConfigError(f"--apply_chat_template {chat_template}: give it without a name, for the model's own")
        found = getattr(self.tokenizer, "chat_template", None)
        if found is None:
            name = self.models.target.name
            raise ConfigError(f"--apply_chat_template: model '{name}' has no chat template: leave the option out")
        return str(found)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Returns the messages as one text. Without `add_generation_prompt`, the last message begins the answer. Raises
        ConfigError, or logs a warning, if the template drops the user's text. Logs what else it does, once."""
        self.chat_template(True)
        template = self.models.target.chat_template
        system = next((each["content"] for each in chat_history if each["role"] == "system"), None)
        for problem in template.problems(several_turns=len(chat_history) > (2 if system is not None else 1)):
            refuse_or_warn(problem, self.spec.prompt_checks, WARN_ONLY, log.warning)
        for line in template.notes(system):
            if line not in self._noted:
                log.warning("%s", line)
            self._noted.add(line)
        try:
            text = template.apply(
                chat_history, add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )  # fmt: skip
        except Exception as error:  # templates are programs and may raise anything
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"model '{self.models.target.name}': its chat template refuses the messages ({reason}): leave "
                "--apply_chat_template or --system_instruction out"
            ) from error
        self._rendered.add(text)
        return text

    def prompt_ids(self, model: TextModel, query: LmEvalRequest) -> list[int]:
        """Returns the tokens of a prompt. Raises ConfigError for an empty one, and if there is no room for one."""
        bos = model.tokenizer.bos_token
        num_new = query.generation.max_new_tokens
        is_whole = query.rendered or bool(bos and query.prompt.startswith(bos))
        ids: list[int] = model.tokenizer(query.prompt, add_special_tokens=not is_whole)["input_ids"]
        if not ids:
            raise ConfigError(f"task {query.task}, document {query.doc}: the prompt is empty after tokenization")
        if self.max_length is not None and num_new >= self.max_length:
            raise ConfigError(
                f"task {query.task}: max_gen_toks = {num_new} leaves no room for the prompt in the models' context of "
                f"{self.max_length} tokens: give --gen_kwargs max_gen_toks=N with a lower N"
            )
        return ids

    def fitting_ids(self, model: TextModel, query: LmEvalRequest) -> list[int]:
        """Returns the end of the prompt that leaves room for the answer, as lm-eval's own models do."""
        ids = self.prompt_ids(model, query)
        return ids if self.max_length is None else ids[-(self.max_length - query.generation.max_new_tokens) :]

    # Answers.

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Returns the answers in order, and stores their measurements in `answers`."""
        self.answers = []
        queries = self._queries(requests)
        target = self.models.target
        num_cut = 0
        # 1. All decoders are built and all prompts encoded, so that errors are raised before anything is measured.
        for number, query in enumerate(queries):
            ids = self.prompt_ids(target, query)
            sampling = sampling_of(query.generation)
            num_cut += len(ids) > len(self.fitting_ids(target, query))
            problem = end_problem(target, query.prompt, ids) if number == 0 else None
            if problem is not None:
                refuse_or_warn(problem, self.spec.prompt_checks, WARN_ONLY, log.warning)
            if sampling not in self._decoders:
                self._decoders[sampling] = tuple(
                    build_decoder(method, self.models.pair(method), sampling) for method in self.spec.methods
                )
        if num_cut:
            log.warning(
                "%d of %d prompts leave no room for the answer in %s tokens of context: they lose their beginning",
                num_cut, len(queries), self.max_length,
            )  # fmt: skip
        # 2. Every decoder is warmed up on an unmeasured text of the maximum length.
        maxima = [query.generation.max_new_tokens for query in queries]
        longest = dict[Sampling, int]()
        for query, num_new in zip(queries, maxima, strict=True):
            sampling = sampling_of(query.generation)
            longest[sampling] = max(len(self.fitting_ids(target, query)) + num_new, longest.get(sampling, 0))
        budget = Budget(num_planned=sum(maxima))
        warm_ups = list[WarmUp]()
        for sampling, num_tokens in longest.items():
            decoders = [(decoder, num_tokens) for decoder in self._decoders[sampling]]
            with doing("warming up") as tell:
                warm_ups += warm_up(decoders, self.max_length, max(maxima), budget, tell).values()
        if unsteady := [each for each in warm_ups if each.steady is False]:
            log.warning("%s", not_steady(unsteady[0].blocks, unsteady[0].seconds))
        # 3. The order of AR and the method alternates, so that a drift of the machine affects both equally.
        pairs = zip(requests, queries, strict=True)
        bar = tqdm(pairs, total=len(queries), disable=disable_tqdm, desc=f"Running {self.method.name}")
        for number, (request, query) in enumerate(bar):
            order = self._decoders[sampling_of(query.generation)][:: 1 if number % 2 == 0 else -1]
            measured = {decoder.method.name: self._decode(decoder, query) for decoder in order}
            own = measured[self.method.name]
            self.answers.append(LmEvalAnswer(query, own, measured["ar"] if len(measured) > 1 else None))
            self.cache_hook.add_partial("generate_until", request.args, own.answer)
        return [each.own.answer for each in self.answers]

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

    def _decode(self, decoder: Decoder, query: LmEvalRequest) -> Generation:
        seed = stream_seed(self.spec.seed, query.task, query.doc, query.repeat, decoder.method.name)
        selected = decoder.select_decoder(seed, QueryInfo(text=query.prompt))
        ids = self.fitting_ids(selected.model, query)
        stop = selected.stop_rules(query.generation, self.max_length)
        output = selected.generate(ids, stop, seed)
        return method_record(output, stop, ids, None, None, **selected.record_fields)

    def loglikelihood(self, requests: list[Instance]) -> NoReturn:
        """Raises ConfigError: specbench computes no log-likelihoods."""
        tasks = ", ".join(sorted({request.task_name or "?" for request in requests}))
        raise ConfigError(
            f"task {tasks}: needs log-likelihoods of given texts, so nothing is generated and no draft token is "
            "verified: choose tasks with output_type generate_until, such as gsm8k or mgsm_direct_en"
        )

    loglikelihood_rolling = loglikelihood

    # Results.

    def metrics(self, answers: Sequence[LmEvalAnswer]) -> dict[str, Estimate]:
        """Returns α, τ and tokens/s with 95 % intervals over documents, and if every answer has a baseline, its speed
        and the speed-up."""
        method = self.method
        prompts = Resampler.of_keys([(a.query.task, a.query.doc) for a in answers], seed=0)
        own = [Answer.of(answer.own, method.decodes_with) for answer in answers]
        baseline = [Answer.of(answer.baseline) for answer in answers if answer.baseline is not None]
        has_baseline = len(baseline) == len(answers)
        found = {
            **acceptance(prompts, own, method.verification.model_dump()),
            **speeds(prompts, own, baseline if has_baseline else own, is_baseline=False),
            **({name: Estimate() for name in SPEEDUPS} if has_other_vocabulary(method, self.models) else {}),
        }
        return {name: found[name] for name in (*COLUMNS, *(WITH_BASELINE if has_baseline else ()))}

    def get_model_info(self) -> dict[str, object]:
        """Returns the models, the method and each task's measurements, for `config` in lm-eval's results."""
        models = self.models
        by_task = dict[str, list[LmEvalAnswer]]()
        for answer in self.answers:
            by_task.setdefault(answer.query.task, []).append(answer)
        tasks = {
            task: {
                "n": len({answer.query.doc for answer in group}),
                **{name: metric.model_dump() for name, metric in self.metrics(group).items()},
            }
            for task, group in by_task.items()
        }
        drafters = {name.partition("/")[2]: drafter for name, drafter in models.drafters.items()}
        return {
            "model_dtype": models.target.precision,
            "model_revision": models.target.revision,
            "specbench": {
                "target": models.target.name,
                "drafter": join_routes({route: drafter.name for route, drafter in drafters.items()}),
                "drafter_revision": join_routes({route: drafter.revision for route, drafter in drafters.items()}),
                "method": versioned_name(self.method),
                "num_draft_tokens": self.method.num_draft_tokens,
                "seed": self.spec.seed,
                "tasks": tasks,
            },
        }

    def add_columns(self, results: Any) -> None:
        """Adds the metrics of the last evaluation that have a value to lm-eval's results, as "NAME,METHOD"."""
        for name, row in results["results"].items():
            tasks = tasks_of_group(name, results.get("group_subtasks", {}))
            measured = [answer for answer in self.answers if answer.query.task in tasks]
            if not measured:
                continue
            estimates = self.metrics(measured)
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


def tasks_of_group(name: str, groups: Mapping[str, Sequence[str]]) -> set[str]:
    members = groups.get(name)
    return {name} if not members else set().union(*(tasks_of_group(member, groups) for member in members))


def join_routes(texts: Mapping[str, str | None]) -> str | None:
    """Returns the texts of all routes as one text, each after its language; None without texts."""
    return ", ".join(f"{route} {text}".strip() for route, text in texts.items() if text is not None) or None
