"""Figures of the members on held-out rows: exact answers by greedy decoding, and agreement with the target."""

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from specbench.decoding.sampling import Sampling
from specbench.models.corpus_models import Datastore, NgramModel, most_frequent_tree
from specbench.models.heads.checkpoints import read_checkpoint
from specbench.models.heads.eagle_checkpoint import load_eagle
from specbench.models.heads.medusa import load_medusa
from specbench.models.loading import load_model
from specbench.training.heads import draft_logits, draft_steps, read_by_target
from specbench.training.passes import Sample, batches_of
from specbench.training.teacher import GenerationJob, Generator
from tools.embedded.recipes import CorpusRecipe, Recipe, TrainedMember
from tools.world import WORLDS

WorldRow = dict[str, Any]
Predict = Callable[[list[int], list[int]], list[int]]  # a prompt and its output → the most likely token at each place
BATCH = 64
NUM_DEPTHS = 4  # draft steps of which the agreement of a head is measured


def greedy_ids(model: Any, prompts: list[list[int]], num_new: int) -> list[list[int]]:
    """Returns the greedy continuation of each prompt, up to and including the end token."""
    ends = frozenset({model.config.eos_token_id})
    generator = Generator(model, model.config.vocab_size, ends, Sampling(), num_new)
    jobs = [GenerationJob(tuple(prompt)) for prompt in prompts]
    return [list(ids) for ids in generator.continue_all(jobs, BATCH)]


def predictor(model: Any) -> Predict:
    """Returns a function for a model's most likely token at each position of an output, given the true text before
    it."""

    @torch.inference_mode()
    def predict(prompt: list[int], output: list[int]) -> list[int]:
        logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
        best: list[int] = logits.argmax(-1).tolist()
        return best

    return predict


def ngram_predictor(folder: Path) -> Predict:
    """Returns a function for an n-gram model's most likely token at each position of an output."""
    ngrams = NgramModel.load(folder)

    def predict(prompt: list[int], output: list[int]) -> list[int]:
        ids = prompt + output
        return [ngrams.best(ids[:end][-ngrams.order :]) for end in range(len(prompt), len(ids))]

    return predict


def retrieval_predictor(folder: Path) -> Predict:
    """Returns a function for the most frequent token after the longest match at each position of an output; −1 where
    nothing matches."""
    store = Datastore.load(folder)

    def best(ids: list[int]) -> int:
        rows = store.continuations(ids[-16:], max_match=16, min_match=1, depth=1, most=5000)
        tokens, _ = most_frequent_tree(rows, store.vocab_size, (), num_nodes=1)
        return tokens[0] if tokens else -1

    def predict(prompt: list[int], output: list[int]) -> list[int]:
        ids = prompt + output
        return [best(ids[:end]) for end in range(len(prompt), len(ids))]

    return predict


def is_exact(text: str, row: WorldRow) -> bool:
    """Returns whether the last number of the text is the answer; for a row without a number, whether the text is."""
    if "answer_number" not in row:
        return text.strip() == WORLDS[row["task"]].example(row)[1].strip()
    numbers = re.findall(r"\d+", text)
    return bool(numbers) and int(numbers[-1]) == row["answer_number"]


def by_subset(rows: list[WorldRow], values: list[float]) -> dict[str, float]:
    """Returns the mean value of each task, of each of its subsets (`mgsm/en`), and of all rows as `all`."""
    groups: dict[str, list[float]] = defaultdict(list)
    for row, value in zip(rows, values, strict=True):
        for group in (row["task"], f"{row['task']}/{row['subset']}", "all"):
            groups[group].append(value)
    return {name: round(sum(group) / len(group), 4) for name, group in groups.items()}


def _num_bytes(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[int]:
    """Returns the bytes of each token (a letter of the byte-level alphabet is one); the end token counts as one."""
    tokens = tokenizer.convert_ids_to_tokens(ids)
    return [1 if token == tokenizer.eos_token else len(token) for token in tokens]


def agreement(lengths: list[int], draft_lengths: list[int], hits: list[bool]) -> float:
    """Returns the share of the target's tokens whose every byte lies in a draft token that the drafter predicts.

    `lengths` and `draft_lengths` are the bytes of each token of the same text in both vocabularies. In the same
    vocabulary this is the share of positions at which both models have the same most likely token.
    """
    written = [hit for hit, length in zip(hits, draft_lengths, strict=True) for _ in range(length)]
    found, start = 0, 0
    for length in lengths:
        piece = written[start : start + length]
        found += len(piece) == length and all(piece)
        start += length
    return found / len(lengths)


def exact_share(tokenizer: PreTrainedTokenizerBase, rows: list[WorldRow], outputs: list[list[int]]) -> dict[str, float]:
    """Returns the share of exact outputs, per subset and for `all`."""
    texts = [str(tokenizer.decode(ids, skip_special_tokens=True)) for ids in outputs]
    return by_subset(rows, [float(is_exact(*pair)) for pair in zip(texts, rows, strict=True)])


@dataclass(frozen=True)
class TargetOutputs:
    """The target's greedy outputs for some rows."""

    tokenizer: PreTrainedTokenizerBase
    rows: list[WorldRow]
    ids: list[list[int]]

    def in_tokens_of(self, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
        """Returns the same texts in another vocabulary, with its end token if the target has ended."""
        outputs = []
        for ids in self.ids:
            ends = ids[-1:] == [self.tokenizer.eos_token_id]
            text = str(self.tokenizer.decode(ids[:-1] if ends else ids))
            outputs.append(tokenizer(text, add_special_tokens=False).input_ids + [tokenizer.eos_token_id] * ends)
        return outputs

    def agreement(self, tokenizer: PreTrainedTokenizerBase, predict: Predict) -> dict[str, float]:
        """Returns how often a drafter with this tokenizer agrees with the target, per subset and for `all`."""
        values = []
        drafts, prompts = self.in_tokens_of(tokenizer), prompts_of(tokenizer, self.rows)
        for ids, draft, prompt in zip(self.ids, drafts, prompts, strict=True):
            hits = [wanted == best for wanted, best in zip(draft, predict(prompt, draft), strict=True)]
            values.append(agreement(_num_bytes(self.tokenizer, ids), _num_bytes(tokenizer, draft), hits))
        return by_subset(self.rows, values)


def prompts_of(tokenizer: PreTrainedTokenizerBase, rows: list[WorldRow]) -> list[list[int]]:
    """Returns the prompts as a tokenizer encodes them, with its start token if it has one."""
    return [tokenizer(WORLDS[row["task"]].example(row)[0]).input_ids for row in rows]


def member_figures(folder: Path, recipes: list[Recipe], rows: list[WorldRow], num_new: int) -> dict[str, Any]:
    """Returns the exact match of the models on held-out rows and every drafter's agreement with the target, in
    float32."""
    tokenizer, target = load(folder / "target")
    outputs = TargetOutputs(tokenizer, rows, greedy_ids(target, prompts_of(tokenizer, rows), num_new))
    found: dict[str, Any] = {"num_rows": len(rows), "target": {"exact": exact_share(tokenizer, rows, outputs.ids)}}
    for recipe in recipes:
        if isinstance(recipe, CorpusRecipe):
            predict = (retrieval_predictor if recipe.order is None else ngram_predictor)(folder / recipe.name)
            found[recipe.name] = {"agreement": outputs.agreement(tokenizer, predict)}
        elif recipe.role == "head":
            found[recipe.name] = {"agreement_by_depth": head_agreement(folder, recipe.name, outputs)}
        elif recipe.role == "drafter":
            own, drafter = load(folder / recipe.name)
            found[recipe.name] = {"agreement": outputs.agreement(own, predictor(drafter))}
            if not isinstance(recipe, TrainedMember):
                longest = max(len(ids) for ids in outputs.in_tokens_of(own))
                written = greedy_ids(drafter, prompts_of(own, rows), longest)
                found[recipe.name]["exact"] = exact_share(own, rows, written)
    return found


@torch.no_grad()
def head_agreement(folder: Path, name: str, outputs: TargetOutputs) -> list[float]:
    """Returns the share of the target's output tokens that a draft head predicts at each draft step, given the true
    text before."""
    target = load_model(str(folder / "target"))
    load = load_medusa if name == "medusa" else load_eagle
    head = load(read_checkpoint(str(folder / name)), target)
    prompts = prompts_of(outputs.tokenizer, outputs.rows)
    pairs = zip(outputs.rows, prompts, outputs.ids, strict=True)
    samples = [Sample(row["task"], (*prompt, *ids), len(prompt)) for row, prompt, ids in pairs]
    hits, counts = [0] * NUM_DEPTHS, [0] * NUM_DEPTHS
    for batch in batches_of(samples, BATCH):
        found = read_by_target(target, batch, head)
        for depth, step in enumerate(draft_steps(head, found, batch, NUM_DEPTHS)):
            logits = draft_logits(head, depth, step.states)
            hits[depth] += int((logits.argmax(-1) == batch.learnt_ids[step.learnt]).sum())
            counts[depth] += len(step.learnt)
    return [round(hit / count, 4) for hit, count in zip(hits, counts, strict=True)]


def load(folder: Path) -> tuple[PreTrainedTokenizerBase, Any]:
    """Returns the tokenizer and the model of a folder, in float32."""
    return AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
