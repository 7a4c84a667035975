"""An n-gram language model as the drafter: a table look-up per draft token (arXiv:2605.30580, §3.3)."""

from typing import Annotated

import torch
from pydantic import Field

from specbench.decoding.drafters import drafter
from specbench.decoding.drafters.ngram_probs import Row, Rows, SparseProbs
from specbench.decoding.proposal import Proposal
from specbench.decoding.sampling import Sampling
from specbench.errors import ConfigError
from specbench.models.pair import ModelPair
from specbench.models.timing import Clock, PassLog
from specbench.ngram.folder import vocabulary_digest
from specbench.ngram.model import NgramModel
from specbench.temperature import DraftTemperature

EMBEDDED_TARGET, EMBEDDED_NGRAM = "embedded:target", "embedded:ngram"
RESOLUTION = 1 << 52  # of uniform draws: their product with a float64 stays below it
HOW = "train one with `specbench train ngram --target {target}` and give --set drafter.path=DIR"


class NgramDrafter:
    """Drafts token by token; a drafted EOS ends the draft. One pass is logged per draft token: look-up and draw."""

    def __init__(
        self, model: NgramModel, sampling: Sampling, eos_token_ids: frozenset[int], vocab_size: int,
        device: torch.device, name: str | None = None,
    ) -> None:  # fmt: skip
        self.model = model
        self.sampling = sampling
        self.eos_token_ids = eos_token_ids
        self.vocab_size = vocab_size
        self.device = device
        self.name = name or str(model.path)
        self.revision = model.digest
        self._rows = Rows(model, sampling)
        self.passes: PassLog | None = PassLog(Clock(torch.device("cpu")))

    def prefill(self, prompt_ids: list[int]) -> None:
        pass  # the last tokens are all it looks at

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        assert self.passes is not None
        mark = self.passes.clock.mark
        num_before = self.model.order - 1
        context = ids[max(0, len(ids) - num_before) :]
        rows: list[Row] = []
        token_ids: list[int] = []
        start = mark()
        uniforms = None if self.sampling.greedy else draw_uniforms(num_draft_tokens, generator)
        for number in range(num_draft_tokens):
            row = self._rows.after(context)
            token = row.best if uniforms is None else row.draw(uniforms[number])
            rows.append(row)
            token_ids.append(token)
            context = [*context, token][-num_before:] if num_before else []
            end = mark()
            self.passes.add(1, start, end)
            start = end
            if token in self.eos_token_ids:
                break
        return Proposal(token_ids, SparseProbs(rows, self.vocab_size, self.device)) if rows else Proposal()


def draw_uniforms(count: int, generator: torch.Generator) -> list[float]:
    """Uniform draws from [0, 1), all at once: on an accelerator every transfer waits for it."""
    numbers = torch.randint(RESOLUTION, (count,), generator=generator, device=generator.device).tolist()
    return [number / RESOLUTION for number in numbers]


PATH = "Folder of the n-gram model, as `specbench train ngram` writes it; null: the one of the embedded target."
NEEDS = "an n-gram model over the target's tokens (`specbench train ngram`; the embedded target brings one)"


@drafter("ngram", provides=frozenset({"probs", "raw_probs"}), needs_model=False, needs=NEEDS)
def ngram_drafter(
    models: ModelPair,
    sampling: Sampling,
    *,
    path: Annotated[str | None, Field(description=PATH)] = None,
    temperature: DraftTemperature = None,
) -> NgramDrafter:
    """An n-gram model over the target's own tokens drafts them, one table look-up each, with the run's sampling or at a
    temperature of its own. A model made with another tokenizer is refused."""
    target = models.target
    how = HOW.format(target=target.name)
    if path is None and target.name != EMBEDDED_TARGET:
        raise ConfigError(f"drafter.path is missing: target '{target.name}' has no n-gram model of its own: {how}")
    model = load_embedded() if path is None else NgramModel.load(path)
    if model.tokenizer_digest != vocabulary_digest(target.vocabulary) or model.max_token_id >= target.vocab_size:
        raise ConfigError(
            f"drafter.path = '{path or model.path}': its tokens are of another tokenizer than that of target "
            f"'{target.name}': {how}"
        )
    if temperature is not None:
        sampling = Sampling(temperature, sampling.top_k, sampling.top_p)
    name = EMBEDDED_NGRAM if path is None else path
    return NgramDrafter(model, sampling, target.eos_token_ids, target.vocab_size, target.device, name)


def load_embedded() -> NgramModel:
    from specbench.demo.family import member_path

    return NgramModel.load(member_path("ngram"))
