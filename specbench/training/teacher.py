"""Texts that the target generates, in this process or on a server, and their cache.

Every prompt has its own random stream, so that results do not depend on the batching.
"""

import json
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import torch
from rich.console import Console
from torch import Tensor, nn
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from specbench.core.completions import KEY_VARIABLE, Completions, RequestFailed, check_url
from specbench.core.console import say
from specbench.core.errors import ConfigError
from specbench.core.files import writing
from specbench.core.progress import doing
from specbench.core.values import WHOLE, bytes_digest, json_digest
from specbench.decoding.decoder import stream_seed
from specbench.decoding.sampling import Sampling, process
from specbench.models.causal_lm import CausalLM
from specbench.running.prompts import PromptRenderer, uses_chat
from specbench.training.passes import Sample, device_of, innermost
from specbench.training.spec import TrainSpec

Ids = tuple[int, ...]


@dataclass(frozen=True)
class GenerationJob:
    """A prompt to continue, and the seed of its random stream, which greedy continuations do not use."""

    prompt_ids: Ids
    seed: int = 0


@dataclass(frozen=True)
class Generator:
    """A model that continues prompts. A continuation ends with one of `eos_token_ids`, which it includes, or after
    `max_new_tokens`. Logits beyond `vocab_size` are padding of the output layer."""

    model: nn.Module
    vocab_size: int
    eos_token_ids: frozenset[int]
    sampling: Sampling
    max_new_tokens: int

    @classmethod
    def of(cls, model: CausalLM, sampling: Sampling, max_new_tokens: int) -> "Generator":
        return cls(model.model, model.vocab_size, model.eos_token_ids, sampling, max_new_tokens)

    def continue_all(self, jobs: Sequence[GenerationJob], batch_size: int) -> list[Ids]:
        by_job = dict(pair for batch in self.batches(jobs, batch_size) for pair in batch)
        return [by_job[place] for place in range(len(jobs))]

    def batches(self, jobs: Sequence[GenerationJob], batch_size: int) -> Iterator[list[tuple[int, Ids]]]:
        """Yields batches of (job index, continuation). Prompts of similar length are batched together."""
        order = sorted(range(len(jobs)), key=lambda place: len(jobs[place].prompt_ids))
        for start in range(0, len(order), batch_size):
            places = order[start : start + batch_size]
            yield list(zip(places, self._continue([jobs[place] for place in places]), strict=True))

    @torch.no_grad()
    def _continue(self, jobs: Sequence[GenerationJob]) -> list[Ids]:
        # 1. Prompts of several lengths are padded on the left.
        width = max(len(job.prompt_ids) for job in jobs)
        ids = torch.tensor([[0] * (width - len(job.prompt_ids)) + [*job.prompt_ids] for job in jobs])
        mask = torch.tensor([[0] * (width - len(job.prompt_ids)) + [1] * len(job.prompt_ids) for job in jobs])
        uniforms = None
        if not self.sampling.greedy:
            streams = [torch.Generator().manual_seed(job.seed) for job in jobs]
            uniforms = torch.stack([torch.rand(self.max_new_tokens, generator=s, dtype=torch.float64) for s in streams])

        # 2. Of the checkpoint's own generation config nothing is used.
        model, device = innermost(self.model), device_of(self.model)
        ends = sorted(self.eos_token_ids) or None
        config = GenerationConfig(max_new_tokens=self.max_new_tokens, eos_token_id=ends, pad_token_id=0)
        own_config = model.generation_config
        was_training = self.model.training
        model.generation_config = GenerationConfig()
        self.model.eval()
        try:
            draw = LogitsProcessorList([Draw(self.sampling, self.vocab_size, uniforms)])
            rows = model.generate(
                ids.to(device), attention_mask=mask.to(device), generation_config=config, logits_processor=draw
            )
        finally:
            model.generation_config = own_config
            self.model.train(was_training)

        # 3. A row that ended is padded until all have.
        continuations = []
        for row in rows[:, width:].tolist():
            length = next((place + 1 for place, token in enumerate(row) if token in self.eos_token_ids), len(row))
            continuations.append(tuple(row[:length]))
        return continuations


class Draw(LogitsProcessor):
    """Leaves of all logits of a row only that of the token that is drawn. `uniforms` [num_rows, max_new_tokens]: a
    number in [0, 1) for each token; None draws greedily."""

    def __init__(self, sampling: Sampling, vocab_size: int, uniforms: Tensor | None) -> None:
        self.sampling, self.vocab_size, self.uniforms = sampling, vocab_size, uniforms
        self.num_drawn = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        probs = process(scores[:, : self.vocab_size], self.sampling).cpu()
        tokens = probs.argmax(-1)
        if self.uniforms is not None:
            tokens = draw_by_inverse(probs, self.uniforms[:, self.num_drawn])
        self.num_drawn += 1
        return torch.full_like(scores, float("-inf")).scatter(1, tokens[:, None].to(scores.device), 0.0)


def draw_by_inverse(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Returns a token of each distribution [num_rows, vocab] by inverse transform sampling: the first one whose
    cumulative probability exceeds the row's uniform number in [0, 1). Tokens with probability 0 are never drawn."""
    cumulative = probs.double().cumsum(-1)
    wanted = uniforms[:, None] * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, wanted, right=True)[:, 0]
    # Through rounding, the uniform number may exceed the sum.
    last = probs.shape[-1] - 1 - (probs > 0).flip(-1).int().argmax(-1)
    return torch.minimum(drawn, last)


FILE = "generations.sqlite"
Job = TypeVar("Job")
Make = Callable[[Sequence[Job]], Iterator[list[tuple[int, Any]]]]  # yields batches of (job index, value)


class GenerationCache:
    """An SQLite file of continuations. Each batch is written in one transaction. `console`: shows the progress."""

    def __init__(self, folder: Path, console: Console | None = None) -> None:
        self.path = folder / FILE
        self._console = console

    def continuations(
        self, target: CausalLM, generator: Generator, jobs: Sequence[GenerationJob], batch_size: int
    ) -> list[Ids]:
        """Returns the target's continuations in the order of the jobs. Cached ones are not generated again."""
        common = {
            "model": model_fingerprint(target), "sampling": asdict(generator.sampling),
            "max_new_tokens": generator.max_new_tokens, "ends": sorted(generator.eos_token_ids),
        }  # fmt: skip
        greedy = generator.sampling.greedy
        contents = ({**common, "prompt": job.prompt_ids, "seed": 0 if greedy else job.seed} for job in jobs)
        keys = [json_digest(content, WHOLE) for content in contents]
        noun = f"continuations by {target.name} at temperature {generator.sampling.temperature:g}"
        continuations = self.complete(keys, jobs, lambda missing: generator.batches(missing, batch_size), noun)
        return [tuple(ids) for ids in continuations]

    def complete(self, keys: Sequence[str], jobs: Sequence[Job], make: Make[Job], noun: str) -> list[Any]:
        """Returns the value of each key. `make` is called once with the jobs of the missing keys. `noun`: the values'
        name in progress lines.

        Raises ConfigError if the disk is not writable, or the file is damaged.
        """
        with self._open() as database:
            rows = (database.execute("SELECT key, value FROM kept WHERE key = ?", (key,)).fetchone() for key in keys)
            known = {row[0]: json.loads(row[1]) for row in rows if row is not None}
            missing = {key: job for key, job in zip(keys, jobs, strict=True) if key not in known}
            names = list(missing)
            num_made = 0
            line = ""
            started = time.monotonic()
            with doing(f"0/{len(missing)} {noun}") as tell:
                for batch in make(list(missing.values())) if missing else ():
                    new = {names[index]: value for index, value in batch}
                    texts = [(key, json.dumps(value, ensure_ascii=False)) for key, value in new.items()]
                    with database:
                        database.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?)", texts)
                    known |= new
                    num_made += len(new)
                    line = f"{num_made}/{len(missing)} {noun} ({len(keys) - len(missing)} from the cache)"
                    seconds_left = (time.monotonic() - started) / num_made * (len(missing) - num_made)
                    tell(f"{line} · {seconds_left:.0f} s left")
            if line and self._console is not None:
                say(self._console, line)
        return [known[key] for key in keys]

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        remedy = "free disk space, fix the permissions, or delete the file if it is damaged"
        with writing(f"{self.path} (continuations of the target)", remedy):
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with closing(sqlite3.connect(self.path, timeout=60)) as database:
                    with database:
                        database.execute("CREATE TABLE IF NOT EXISTS kept (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
                    yield database
            except sqlite3.Error as error:
                raise OSError(str(error)) from error


def model_fingerprint(model: CausalLM) -> str:
    """Returns an identity of a model's distribution: its revision, or else a digest of its weights, and the precision
    of its computation."""
    name = model.revision
    if name is None:
        weights = sorted(model.model.state_dict().items())
        contents = (key.encode() + value.detach().cpu().float().numpy().tobytes() for key, value in weights)
        name = f"weights-{bytes_digest(contents, 16)}"
    four_bits = " quantized" if getattr(model.model, "is_quantized", False) else ""
    return f"{name} {model.dtype}{four_bits}"


SETTING = "finetune.server.base_url"
CONCURRENCY = 8
TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True)
class ServerQuestion:
    """A request without secrets. `prompt`: a user message if `chat`, else a text to continue."""

    prompt: str
    chat: bool
    temperature: float
    max_tokens: int
    seed: int


class ServerAnswer(TypedDict):
    """An answer, and whether it ended by itself."""

    text: str
    ended: bool


class CompletionServer:
    """Sends several requests at once. The key is read from the environment and never returned.

    Raises ConfigError for an invalid URL, for a missing key, and if the server fails permanently.
    """

    def __init__(self, base_url: str, model: str, num_retries: int = 6) -> None:
        check_url(base_url, SETTING)
        self.base_url = base_url
        self.model = model
        self._num_retries = num_retries

    def answers(self, questions: Sequence[ServerQuestion]) -> Iterator[list[tuple[int, ServerAnswer]]]:
        client = Completions(self.base_url, SETTING, TIMEOUT_SECONDS, self._num_retries)
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            for start in range(0, len(questions), 4 * CONCURRENCY):
                batch = questions[start : start + 4 * CONCURRENCY]
                yield list(enumerate(pool.map(partial(self._answer, client), batch), start))

    def _answer(self, client: Completions, question: ServerQuestion) -> ServerAnswer:
        request = {"model": self.model, **vars(question)}
        prompt = request.pop("prompt")
        path = "completions"
        if request.pop("chat"):
            request["messages"] = [{"role": "user", "content": prompt}]
            path = "chat/completions"
        else:
            request["prompt"] = prompt
        try:
            reply = client.ask(path, request)
        except RequestFailed as error:
            problem = {
                401: f"refuses the key in {KEY_VARIABLE}: set a key of this server",
                404: f"has no model '{self.model}', or no completions there: check finetune.server.model and the URL",
            }.get(error.status or 0, f"does not answer: {error}")
            raise ConfigError(f"{SETTING} = '{self.base_url}': {problem}; the answers so far are saved") from None
        return {"text": reply.text, "ended": reply.finish_reason == "stop"}


Texts = Sequence[tuple[str, str]]  # language and prompt


def self_distill(
    spec: TrainSpec, target: CausalLM, texts: Texts, store: GenerationCache, max_tokens: int
) -> list[Sample]:  # fmt: skip
    """Returns every prompt with the target's answer at each temperature. Only the answer is learnt.

    An answer's random stream depends only on seed, temperature and prompt, so that more data or another order does not
    change it. Samples are cut to `max_tokens`. Raises ConfigError for a language without samples.
    """
    samples = []
    for temperature in spec.answer_temperatures:
        for answer in answer_prompts(spec, target, texts, temperature, store):
            if answer.num_given < min(max_tokens, len(answer.ids)):
                samples.append(replace(answer, ids=answer.ids[:max_tokens]))
    learnt = {sample.group for sample in samples}
    for language in dict.fromkeys(language for language, _ in texts):
        if language not in learnt:
            raise ConfigError(
                f"data: no answer of the target to a prompt of '{language}' fits into max_text_tokens = "
                f"{spec.max_text_tokens}: raise it, or give shorter prompts"
            )
    return samples


def answer_prompts(
    spec: TrainSpec, target: CausalLM, texts: Texts, temperature: float, store: GenerationCache
) -> list[Sample]:
    """Returns every prompt with the target's answer at one temperature. If a server answers in its place, the target's
    weights are not needed, and complete answers get the end token."""
    seeds = [stream_seed(spec.seed, "answer", repr(temperature), text) for _, text in texts]
    renderer = PromptRenderer()
    prompts = [tuple(renderer.render(target, (text,)).ids) for _, text in texts]
    server = spec.finetune.server if spec.finetune is not None else None
    if server is None or server.base_url is None:
        generator = Generator.of(target, Sampling(temperature), spec.max_new_tokens)
        jobs = [GenerationJob(ids, seed) for ids, seed in zip(prompts, seeds, strict=True)]
        ends = store.continuations(target, generator, jobs, spec.generation_batch)
    else:
        chat, tokenizer = uses_chat(target, "auto"), target.tokenizer
        if chat and target.chat_template.printed_date is not None:
            warnings.warn(
                f"finetune.server: the chat template of '{target.name}' prints a date, and the server renders it with "
                "its own clock: answers of another day are to another prompt",
                stacklevel=1,
            )
        questions = [
            ServerQuestion(text, chat, temperature, spec.max_new_tokens, 0 if temperature == 0 else seed % 2**31)
            for (_, text), seed in zip(texts, seeds, strict=True)
        ]
        asked = CompletionServer(server.base_url, server.model or spec.target)
        common = {"url": asked.base_url, "model": asked.model}
        keys = [json_digest({**common, **vars(question)}, WHOLE) for question in questions]
        noun = f"answers of {asked.model} at temperature {temperature:g}"
        eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        ends = [
            (*tokenizer(answer["text"], add_special_tokens=False)["input_ids"], *(eos if answer["ended"] else []))
            for answer in store.complete(keys, questions, asked.answers, noun)
        ]
    return [
        Sample(language, (*ids, *end), len(ids)) for (language, _), ids, end in zip(texts, prompts, ends, strict=True)
    ]
