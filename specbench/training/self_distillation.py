"""Texts that the target generates at several temperatures, for pretraining and fine-tuning (P3 §2.3, App. F.2)."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from specbench.core.completions import KEY_VARIABLE, Completions, RequestFailed, check_url
from specbench.core.errors import ConfigError
from specbench.decoding.decoder import stream_seed
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM
from specbench.running.prompts import encode, uses_chat
from specbench.training.passes import Sample
from specbench.training.spec import TrainSpec
from specbench.training.teacher import GeneratedBatches, GenerationCache, GenerationJob, Generator, Ids, generation_key

SETTING = "finetune.server.base_url"
CONCURRENCY = 8
TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True)
class ServerQuestion:
    """A request without secrets. `prompt`: a user's message if `chat`, else a text to continue."""

    prompt: str
    chat: bool
    temperature: float
    max_tokens: int
    seed: int


@dataclass(frozen=True)
class CompletionServer:
    """Sends several requests at a time. The key is read from the environment and never returned.

    Raises ConfigError for an invalid URL, for a missing key, and if the server fails permanently.
    """

    base_url: str
    model: str
    num_retries: int = 6

    def __post_init__(self) -> None:
        check_url(self.base_url, SETTING)

    def answers(self, questions: Sequence[ServerQuestion]) -> Iterator[list[tuple[int, dict[str, Any]]]]:
        """Yields batches of (index of the question, answer {"text", "ended"})."""
        assert self._client is not None
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            for start in range(0, len(questions), 4 * CONCURRENCY):
                some = questions[start : start + 4 * CONCURRENCY]
                yield list(enumerate(pool.map(self._answer, some), start))

    @cached_property
    def _client(self) -> Completions:
        return Completions(self.base_url, SETTING, TIMEOUT_SECONDS, self.num_retries)

    def _answer(self, question: ServerQuestion) -> dict[str, Any]:
        options: dict[str, Any] = {
            "model": self.model, "temperature": question.temperature, "max_tokens": question.max_tokens,
            "seed": question.seed,
        }  # fmt: skip
        try:
            if question.chat:
                messages = [{"role": "user", "content": question.prompt}]
                reply = self._client.ask("chat/completions", {"messages": messages, **options})
            else:
                reply = self._client.ask("completions", {"prompt": question.prompt, **options})
        except RequestFailed as error:
            raise ConfigError(f"{SETTING} = '{self.base_url}': {self._said(error)}; answers so far are kept") from None
        return {"text": reply.text, "ended": reply.finish_reason == "stop"}

    def _said(self, error: RequestFailed) -> str:
        if error.status == 401:
            return f"refuses the key in {KEY_VARIABLE}: set it to one of this server's"
        if error.status == 404:
            return f"has no model '{self.model}', or no completions there: check finetune.server.model and the URL"
        return f"does not answer: {error}"


Texts = Sequence[tuple[str, str]]  # language and prompt


def self_distilled(
    spec: TrainSpec, target: CausalLM, texts: Texts, store: GenerationCache, max_tokens: int
) -> list[Sample]:  # fmt: skip
    """Returns every prompt with the target's answer at each temperature; only the answer is learnt.

    The seed, the temperature and the prompt name the random stream of an answer, so that more data or another order
    does not change it. Samples longer than `max_tokens` lose their end. Raises ConfigError for a language without
    samples.
    """
    assert spec.finetune is not None
    samples: list[Sample] = []
    for temperature in spec.finetune.temperatures:
        ends = answers(spec, target, texts, temperature, store)
        for (language, text), end in zip(texts, ends, strict=True):
            ids = encode(target, (text,), "auto")
            samples.append(Sample(language, (*ids, *end)[:max_tokens], len(ids)))
    samples = [sample for sample in samples if sample.num_learnt > 0]
    learnt = {sample.group for sample in samples}
    for language in dict.fromkeys(language for language, _ in texts):
        if language not in learnt:
            raise ConfigError(
                f"data: the target answers no prompt of '{language}' within max_text_tokens = {spec.max_text_tokens}: "
                "raise it, or give shorter prompts"
            )
    return samples


def answers(spec: TrainSpec, target: CausalLM, texts: Texts, temperature: float, store: GenerationCache) -> list[Ids]:
    """Returns the target's answers at one temperature, from the server if one is named; then the target's weights are
    not needed."""
    assert spec.finetune is not None
    seeds = [stream_seed(spec.seed, "answer", repr(temperature), text) for _, text in texts]
    if spec.finetune.server.base_url is not None:
        server = CompletionServer(spec.finetune.server.base_url, spec.finetune.server.model or spec.target)
        chat = uses_chat(target, "auto")
        questions = [
            ServerQuestion(text, chat, temperature, spec.max_new_tokens, 0 if temperature == 0 else seed % 2**31)
            for (_, text), seed in zip(texts, seeds, strict=True)
        ]
        return served_answers(server, target, questions, store)
    generator = Generator.of(target, Sampling(temperature), spec.max_new_tokens)
    prompts = [encode(target, (text,), "auto") for _, text in texts]
    jobs = [GenerationJob(tuple(ids), seed) for ids, seed in zip(prompts, seeds, strict=True)]
    return store.continued(target, generator, jobs, spec.generation_batch)


def served_answers(
    server: CompletionServer, target: CausalLM, questions: Sequence[ServerQuestion], store: GenerationCache
) -> list[Ids]:
    """Returns the server's answers at one temperature as tokens of the target, with the target's end token."""
    keys = [generation_key({"url": server.base_url, "model": server.model, **vars(question)}) for question in questions]

    def make(places: Sequence[int]) -> GeneratedBatches:
        for batch in server.answers([questions[place] for place in places]):
            yield [(places[index], answer) for index, answer in batch]

    eos = target.tokenizer.eos_token_id
    found = store.filled(keys, make, f"answers of {server.model} at temperature {questions[0].temperature:g}")
    return [
        (
            *target.tokenizer(answer["text"], add_special_tokens=False)["input_ids"],
            *([eos] if answer["ended"] and eos is not None else []),
        )
        for answer in found
    ]
