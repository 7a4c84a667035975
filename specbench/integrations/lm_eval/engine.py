"""One method, and AR beside it where that is asked for, answering the requests of lm-eval one by one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specbench.core.errors import ConfigError
from specbench.decoding.ledger import StopRules, text_before_stop
from specbench.models.causal_lm import CausalLM
from specbench.results.acceptance import acceptance, with_own_passes
from specbench.results.bootstrap import Metric, Prompts
from specbench.results.measured import has_other_vocabulary
from specbench.results.rows import NOT_MULTIPLES
from specbench.results.speed import speeds
from specbench.running.blocks import recorded, warm_up
from specbench.running.compose import Decoder, QueryInfo, compose, sampling_of, stream_seed
from specbench.running.models import Models, load_models
from specbench.specs.method import MethodSpec
from specbench.specs.run import RunSpec
from specbench.specs.task import GenerationSpec


@dataclass(frozen=True)
class Query:
    """One request: the document of a task, asked for the `repeat`th time. `rendered`: the prompt holds its special
    tokens already, as a chat template writes them."""

    task: str
    doc: int
    repeat: int
    prompt: str
    rendered: bool
    generation: GenerationSpec


@dataclass(frozen=True)
class Answer:
    """A measured request: the text, and the generations as records hold them; `baseline` is AR's, if it was asked."""

    query: Query
    text: str
    own: dict[str, Any]
    baseline: dict[str, Any] | None


class Engine:
    """Loads the models of a run with one or two methods; the last of them gives the answers."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        if spec.engine == "auto":  # passes would be recorded while answers are measured: nothing reserves them here
            spec = spec.model_copy(update={"engine": "eager"})
        self.models = load_models(spec)
        self.method = spec.methods[-1]
        self.context_limit = self.models.context_limit(spec.methods)
        self._decoders: dict[Any, tuple[Decoder, ...]] = {}

    def decoders(self, generation: GenerationSpec) -> tuple[Decoder, ...]:
        """The methods, composed for a way of sampling. Raises ConfigError where the pair does not fit."""
        sampling = sampling_of(generation)
        if sampling not in self._decoders:
            made = tuple(compose(method, self.models.pair(method), sampling) for method in self.spec.methods)
            self._decoders[sampling] = made
        return self._decoders[sampling]

    def prompt_ids(self, model: CausalLM, query: Query) -> list[int]:
        """The prompt's last tokens that leave room for the answer, as lm-eval's own models keep them."""
        ids = self._whole_prompt_ids(model, query)
        if self.context_limit is None:
            return ids
        return ids[-(self.context_limit - query.generation.max_new_tokens) :]

    def _whole_prompt_ids(self, model: CausalLM, query: Query) -> list[int]:
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

    def check(self, queries: Sequence[Query]) -> int:
        """Compose all methods and make all prompts: what cannot be answered is told before anything is measured.

        Returns how many prompts are too long and lose their beginning.
        """
        num_cut = 0
        for query in queries:
            self.decoders(query.generation)
            num_tokens = len(self._whole_prompt_ids(self.models.target, query))
            num_cut += num_tokens > len(self.prompt_ids(self.models.target, query))
        return num_cut

    def warm_up(self, queries: Sequence[Query]) -> None:
        """Every decoder once on a text that is not measured, as long as the longest of the queries may become."""
        longest: dict[Any, int] = {}
        for query in queries:
            num_tokens = len(self.prompt_ids(self.models.target, query)) + query.generation.max_new_tokens
            sampling = sampling_of(query.generation)
            longest[sampling] = max(num_tokens, longest.get(sampling, 0))
        for sampling, num_tokens in longest.items():
            warm_up(self._decoders[sampling], num_tokens, self.context_limit)

    def answer(self, query: Query, number: int) -> Answer:
        """Decode one request; with AR beside it the order changes from one `number` to the next."""
        decoders = self.decoders(query.generation)
        measured: dict[str, tuple[str, dict[str, Any]]] = {}
        for decoder in decoders if number % 2 == 0 else decoders[::-1]:
            measured[decoder.method.name] = self._decode(decoder, query)
        text, own = measured[self.method.name]
        baseline = measured["ar"][1] if len(decoders) > 1 else None
        return Answer(query, text, own, baseline)

    def _decode(self, decoder: Decoder, query: Query) -> tuple[str, dict[str, Any]]:
        seed = stream_seed(self.spec.seed, query.task, query.doc, query.repeat, decoder.method.name)
        chosen = decoder.chosen(seed, QueryInfo(text=query.prompt))
        ids = self.prompt_ids(chosen.model, query)
        stop = with_special_tokens(chosen.stop_rules(query.generation, self.context_limit), chosen.model)
        generation = chosen.generate(ids, stop, seed)
        text = text_before_stop(chosen.model.decode_text(generation.token_ids), stop.stop_strings)
        return text, recorded(generation) | decoder.marks(chosen)


def with_special_tokens(stop: StopRules, model: CausalLM) -> StopRules:
    """Texts show no special tokens: a stop string that is one ends the answer as an end token does."""
    special = set(model.tokenizer.all_special_tokens)
    ids = {model.vocabulary[text] for text in stop.stop_strings if text in special and text in model.vocabulary}
    return replace(stop, eos_token_ids=stop.eos_token_ids | ids)


COLUMNS = ("acceptance_rate", "mean_acceptance_length", "tokens_per_second")
WITH_BASELINE = ("tokens_per_second_ar", "speedup")


def metrics(answers: Sequence[Answer], method: MethodSpec, models: Models) -> dict[str, Metric]:
    """α, τ and tokens/s with their intervals, by the definitions of a leaderboard; with AR's speed and the speed-up
    where AR was measured beside every answer."""
    prompts = Prompts.of([{"task": a.query.task, "subset": "", "example": a.query.doc} for a in answers], seed=0)
    own = [with_own_passes(answer.own, method.decodes_with) for answer in answers]
    baseline = [answer.baseline for answer in answers if answer.baseline is not None]
    has_baseline = len(baseline) == len(answers)
    found = {
        **acceptance(prompts, own, method.verification.model_dump()),
        **speeds(prompts, own, baseline if has_baseline else own, is_baseline=False),
        **({name: Metric() for name in NOT_MULTIPLES} if has_other_vocabulary(method, models) else {}),
    }
    return {name: found[name] for name in (*COLUMNS, *(WITH_BASELINE if has_baseline else ()))}


def add_columns(
    results: dict[str, Any], answers: Sequence[Answer], method: MethodSpec, models: Models
) -> None:  # fmt: skip
    """Write the metrics into `results` of lm-eval beside its scores, under "NAME,METHOD": its table shows them, the
    method standing where it names a filter, and its JSON holds them. A metric without a value is left out."""
    for name, row in results["results"].items():
        tasks = leaves(name, results.get("group_subtasks", {}))
        measured = [answer for answer in answers if answer.query.task in tasks]
        if not measured:
            continue
        found = {key: metric.value for key, metric in metrics(measured, method, models).items()}
        columns = {f"{key},{method.name}": value for key, value in found.items() if value is not None}
        row.update(columns)
        if name in results.get("groups", {}):
            results["groups"][name].update(columns)
        results.setdefault("higher_is_better", {}).setdefault(name, {}).update(dict.fromkeys(found, True))


def leaves(name: str, groups: Mapping[str, Sequence[str]]) -> set[str]:
    """The tasks below a group; a task is its own."""
    members = groups.get(name)
    return {name} if not members else set().union(*(leaves(member, groups) for member in members))


def summary(answers: Sequence[Answer], method: MethodSpec, models: Models) -> dict[str, Any]:
    """Per task, every column with its 95 % interval over `n` documents, for the JSON of the results."""
    by_task: dict[str, list[Answer]] = {}
    for answer in answers:
        by_task.setdefault(answer.query.task, []).append(answer)
    return {
        task: {
            "n": len({answer.query.doc for answer in group}),
            **{name: metric.model_dump() for name, metric in metrics(group, method, models).items()},
        }
        for task, group in by_task.items()
    }
