"""Texts that the target itself writes, at several temperatures: what pretrain-finetune learns (P3 §2.3, App. F.2)."""

from collections.abc import Sequence

from specbench.decoding.sampling import Sampling
from specbench.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.running.compose import stream_seed
from specbench.running.prompts import encode, uses_chat
from specbench.training.generations import Generations, Made, key_of
from specbench.training.passes import Sample
from specbench.training.server import Question, Server
from specbench.training.spec import TrainSpec
from specbench.training.teacher import Generator, Ids, Job

Texts = Sequence[tuple[str, str]]  # language and prompt


def self_distilled(
    spec: TrainSpec, target: CausalLM, texts: Texts, store: Generations, max_tokens: int
) -> list[Sample]:  # fmt: skip
    """Every prompt with the target's answer at each temperature; only the answer is learnt.

    The random stream of an answer is named by the seed, the temperature and the prompt, so that more data or another
    order leave it as it is. Samples longer than `max_tokens` lose their end. Raises ConfigError for a language of which
    nothing is left.
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


def answers(spec: TrainSpec, target: CausalLM, texts: Texts, temperature: float, store: Generations) -> list[Ids]:
    """The target's answers at one temperature; from the server where one is named, and then its weights are not
    needed."""
    assert spec.finetune is not None
    seeds = [stream_seed(spec.seed, "answer", repr(temperature), text) for _, text in texts]
    if spec.finetune.server.base_url is not None:
        server = Server(spec.finetune.server.base_url, spec.finetune.server.model or spec.target)
        chat = uses_chat(target, "auto")
        questions = [
            Question(text, chat, temperature, spec.max_new_tokens, 0 if temperature == 0 else seed % 2**31)
            for (_, text), seed in zip(texts, seeds, strict=True)
        ]
        return served(server, target, questions, store)
    generator = Generator.of(target, Sampling(temperature), spec.max_new_tokens)
    prompts = [encode(target, (text,), "auto") for _, text in texts]
    jobs = [Job(tuple(ids), seed) for ids, seed in zip(prompts, seeds, strict=True)]
    return store.continued(target, generator, jobs, spec.generation_batch)


def served(server: Server, target: CausalLM, questions: Sequence[Question], store: Generations) -> list[Ids]:
    """The server's answers to questions at one temperature, in the target's tokens, ended as the target ends them."""
    keys = [key_of({"url": server.base_url, "model": server.model, **vars(question)}) for question in questions]

    def make(places: Sequence[int]) -> Made:
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
