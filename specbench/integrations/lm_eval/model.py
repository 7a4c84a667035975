"""specbench as a model of lm-eval: any of its generation tasks runs under any method."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from tqdm import tqdm

from specbench.core.errors import ConfigError, nearest
from specbench.core.resources import EMBEDDED
from specbench.core.threads import set_threads
from specbench.integrations.lm_eval.engine import Answer, Engine, Query, add_columns, summary
from specbench.integrations.lm_eval.tasks import MAX_GEN_TOKS, generation_spec
from specbench.running.compose import unique
from specbench.specs.catalogue import load_method
from specbench.specs.components import build
from specbench.specs.method import MethodSpec
from specbench.specs.overrides import with_overrides
from specbench.specs.run import RunSpec, named
from specbench.specs.task import TaskSpec

ARGUMENTS = (
    "pretrained", "drafter", "method", "baseline", "override", "revision", "drafter_revision", "dtype", "device",
    "seed", "threads", "max_gen_toks",
)  # fmt: skip
log = logging.getLogger("lm_eval.specbench")


@register_model("specbench")
class SpecbenchLM(LM):  # type: ignore[misc]  # lm-eval has no types
    """A target, a drafter and a method, as lm-eval sees a model. It generates; it gives no log-likelihoods.

    pretrained, drafter: hub id, folder or `embedded:NAME`. method: a name or the path of a YAML file. baseline: decode
    every request with AR as well, in turn, which takes that much longer and gives the speed-up. override: `key=value`
    of the method as after --set, several separated by `;`. max_gen_toks: where a task does not say. seed: of the random
    streams, one per document: the order of requests changes nothing.
    `answers` are the measured requests of the last evaluation. Raises ConfigError for anything wrong with an argument.
    """

    def __init__(
        self, pretrained: str = EMBEDDED + "target", drafter: str | None = None, method: str = "sd", *,
        baseline: bool = False, override: str | Sequence[str] = (), revision: str | None = None,
        drafter_revision: str | None = None, dtype: str = "auto", device: str | None = None, seed: int = 0,
        threads: int | None = None, max_gen_toks: int = MAX_GEN_TOKS, batch_size: int | str | None = None,
        max_batch_size: int | None = None, **unknown: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        for name, value in unknown.items():
            raise ConfigError(f"--model_args {name}={value}: no such argument: {nearest(name, ARGUMENTS)}")
        if not isinstance(baseline, bool):
            raise ConfigError(f"--model_args baseline={baseline}: write true or false")
        if str(batch_size or 1).partition(":")[0] not in ("1", "auto"):
            raise ConfigError(f"--batch_size {batch_size}: specbench decodes one request at a time: leave it out")
        set_threads(threads, pretrained.startswith(EMBEDDED))
        task = build(TaskSpec, placeholder(max_gen_toks), prefix="--model_args: ")
        pairs = override.split(";") if isinstance(override, str) else override
        methods = [load_method(name) for name in unique(["ar", method] if baseline else [method])]
        _, methods = with_overrides([], methods, [pair for pair in pairs if pair.strip()])
        data = {
            "tasks": [task], "methods": methods, "target": pretrained, "target_revision": revision, "drafter": drafter,
            "drafter_revision": drafter_revision, "dtype": dtype, "device": device or "auto", "seed": seed,
        }  # fmt: skip
        self.engine = Engine(build(RunSpec, data, prefix="--model_args: "))
        self.answers: list[Answer] = []
        self._max_gen_toks = max_gen_toks
        self._rendered: set[str] = set()

    @property
    def method(self) -> MethodSpec:
        return self.engine.method

    @property
    def tokenizer(self) -> Any:
        """The target's."""
        return self.engine.models.target.tokenizer

    @property
    def tokenizer_name(self) -> str:
        """What lm-eval's cache of prompts tells chat templates apart by."""
        return self.engine.models.target.name.replace("/", "__")

    @property
    def max_length(self) -> int | None:
        """Tokens of prompt and answer together."""
        return self.engine.context_limit

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The source of the target's template, for lm-eval's log. Raises ConfigError for another than its own."""
        if not chat_template:
            return ""
        if chat_template is not True:
            raise ConfigError(f"--apply_chat_template {chat_template}: give it without a name, for the model's own")
        return str(self._template())

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Messages as one text; without `add_generation_prompt` the last message is the beginning of the answer."""
        self._template()
        try:
            text: str = self.tokenizer.apply_chat_template(
                chat_history, tokenize=False, add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )  # fmt: skip
        except Exception as error:  # templates are programs: they may raise anything
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"model '{self.engine.models.target.name}': its chat template refuses the messages ({reason}): "
                "leave --apply_chat_template or --system_instruction out"
            ) from error
        self._rendered.add(text)
        return text

    def _template(self) -> str | dict[str, str]:
        template: str | dict[str, str] | None = getattr(self.tokenizer, "chat_template", None)
        if template is None:
            name = self.engine.models.target.name
            raise ConfigError(f"--apply_chat_template: model '{name}' has no chat template: leave the option out")
        return template

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The answers, in order, each measured into `answers`."""
        self.answers = []
        queries = self._queries(requests)
        if num_cut := self.engine.check(queries):
            log.warning(
                "%d of %d prompts leave no room for the answer in %s tokens of context: they lose their beginning",
                num_cut, len(queries), self.max_length,
            )  # fmt: skip
        self.engine.warm_up(queries)
        pairs = zip(requests, queries, strict=True)
        bar = tqdm(pairs, total=len(queries), disable=disable_tqdm, desc=f"Running {self.method.name}")
        for number, (request, query) in enumerate(bar):
            answer = self.engine.answer(query, number)
            self.answers.append(answer)
            self.cache_hook.add_partial("generate_until", request.args, answer.text)
        return [answer.text for answer in self.answers]

    def _queries(self, requests: list[Instance]) -> list[Query]:
        seen: Counter[tuple[str, int, int]] = Counter()
        queries = []
        for number, request in enumerate(requests):
            prompt, gen_kwargs = request.args[:2]
            task, doc = request.task_name or "requests", number if request.doc_id is None else request.doc_id
            key = (task, doc, request.idx)
            generation = generation_spec(gen_kwargs, self._max_gen_toks)
            queries.append(Query(task, doc, seen[key], prompt, prompt in self._rendered, generation))
            seen[key] += 1
        return queries

    def loglikelihood(self, requests: list[Instance]) -> NoReturn:
        """Refused: raises ConfigError."""
        tasks = ", ".join(sorted({request.task_name or "?" for request in requests}))
        raise ConfigError(
            f"task {tasks}: asks for log-likelihoods of given texts, where nothing is generated and no draft token is "
            "judged: choose tasks with output_type generate_until, such as gsm8k or mgsm_direct_en"
        )

    loglikelihood_rolling = loglikelihood

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval keeps in `config` of its results: the models, the method, and its measurements per task."""
        models, method = self.engine.models, self.method
        drafters = {name.partition("/")[2]: drafter for name, drafter in models.drafters.items()}
        return {
            "model_dtype": models.target.dtype,
            "model_revision": models.target.revision,
            "specbench": {
                "target": models.target.name,
                "drafter": named_by_route({route: drafter.name for route, drafter in drafters.items()}),
                "drafter_revision": named_by_route({route: drafter.revision for route, drafter in drafters.items()}),
                "method": named(method),
                "num_draft_tokens": method.num_draft_tokens,
                "seed": self.engine.spec.seed,
                "tasks": summary(self.answers, method, models),
            },
        }

    def add_columns(self, results: dict[str, Any]) -> None:
        """Put the measurements of the last evaluation beside its scores, where lm-eval's table shows them."""
        add_columns(results, self.answers, self.method, self.engine.models)
        for task, counts in results.get("n-samples", {}).items():
            num_measured = len({answer.query.doc for answer in self.answers if answer.query.task == task})
            if num_measured < counts["effective"]:
                log.warning(
                    "task %s: %d of %d documents were answered from a cache and are in no column of specbench",
                    task, counts["effective"] - num_measured, counts["effective"],
                )  # fmt: skip


def named_by_route(texts: Mapping[str, str | None]) -> str | None:
    """One text of several draft models, each behind its language; that of a method without routes as it is."""
    return ", ".join(f"{route} {text}".strip() for route, text in texts.items() if text is not None) or None


def placeholder(max_gen_toks: int) -> dict[str, Any]:
    """The requests of lm-eval as a task, which a run needs."""
    return {
        "name": "lm-eval", "version": 1, "title": "Requests of lm-eval", "prompt": "{{ row.prompt }}",
        "generation": {"max_new_tokens": max_gen_toks},
    }  # fmt: skip
