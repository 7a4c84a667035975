"""Draft heads in a training: the target's passes that they read, the losses of Medusa, EAGLE and EAGLE-3, and the
export. parallel_losses.py has the losses of P-EAGLE, block_losses.py those of heads that draft blocks, new_heads.py
what all of them start with."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint as computed_again
from transformers import DynamicCache

from specbench.core.errors import ConfigError
from specbench.core.files import write_atomically
from specbench.decoding.decoder import stream_seed
from specbench.decoding.drafters.heads import norm_output_reading
from specbench.models.causal_lm import CausalLM
from specbench.models.heads.block import BlockHead
from specbench.models.heads.block_checkpoint import block_files
from specbench.models.heads.checkpoints import Kind, read_checkpoint
from specbench.models.heads.eagle import EagleHead
from specbench.models.heads.eagle_checkpoint import eagle_files, load_eagle
from specbench.models.heads.medusa import MedusaHeads, load_medusa, medusa_files
from specbench.models.heads.mtp import MtpLayerHead, load_mtp_layer, mtp_files
from specbench.models.heads.parallel import ParallelEagleHead
from specbench.models.scoring import same_logits
from specbench.training.new_heads import (
    block_head_of,
    choose_mask_token,
    new_block_head,
    new_eagle,
    new_medusa,
    new_mtp,
    new_peagle,
    output_weight,
)
from specbench.training.passes import (
    MAX_CACHED_BYTES,
    MAX_LOGITS,
    Batch,
    Sample,
    accepts_argument,
    in_float32,
    unwrapped,
)
from specbench.training.spec import TrainSpec

DraftNetwork = MedusaHeads | EagleHead | BlockHead


class TargetOutput(NamedTuple):
    """The target's pass over a batch: the ids that it reads [num_rows, length], the hidden states of each layer that
    the head reads [num_rows, length, width], the last hidden state before every learnt token [num_learnt, width], and,
    if they do not follow from it, the logits there [num_learnt, vocab_size]. With a restricted draft vocabulary also
    `is_covered`: whether the most probable token is in it [num_learnt], and `share`: the probability of all its tokens
    [num_learnt]."""

    ids: Tensor
    hidden: Sequence[Tensor]
    last: Tensor
    logits: Tensor | None = None
    is_covered: Tensor | None = None
    share: Tensor | None = None

    @property
    def num_bytes(self) -> int:
        found = (*self.hidden, self.last, self.logits, self.is_covered, self.share)
        return sum(values.nbytes for values in found if values is not None)


class DraftStep(NamedTuple):
    """One draft step for the learnt tokens with the indices `learnt` [num_drafted]: the states of the head (Medusa: of
    the target) that its output layer reads, [num_drafted, width]."""

    learnt: Tensor
    states: Tensor


@torch.no_grad()
def read_by_target(target: CausalLM, batch: Batch, head: DraftNetwork, needs_logits: bool = True) -> TargetOutput:
    """Returns the target's hidden states that a head reads, and its logits if they are needed."""
    last = target.model.config.get_text_config().num_hidden_layers
    layers = (last,) if isinstance(head, MedusaHeads) else head.hidden_layers
    ids = batch.ids[:, :-1].to(target.device)
    rows, columns = batch.places.to(target.device)
    first = int(columns.min())
    num_kept = ids.shape[1] - first if needs_logits else 1
    options = {"logits_to_keep": num_kept} if accepts_argument(target.model, "logits_to_keep") else {}
    # The rows of a batch are as long as each other here, so that parts of it give what the whole gives.
    num_rows = max(1, MAX_LOGITS // (num_kept * target.padded_vocab_size)) if needs_logits else len(ids)
    hidden: list[list[Tensor]] = []
    logits: list[Tensor] = []
    for start in range(0, len(ids), num_rows):
        part = ids[start : start + num_rows]
        output = target.model(input_ids=part, use_cache=False, output_hidden_states=[*{*layers, last}], **options)
        hidden.append([output.hidden_states[layer] for layer in (*layers, last)])
        if needs_logits:
            of_part = (rows >= start) & (rows < start + num_rows)
            kept = output.logits[:, -num_kept:, : target.vocab_size]
            logits.append(kept[rows[of_part] - start, columns[of_part] - first])
    *states, final = (torch.cat(parts) for parts in zip(*hidden, strict=True))
    return TargetOutput(ids, states, final[rows, columns], torch.cat(logits) if needs_logits else None)


class TargetPasses:
    """The target's passes over the batches of a training. Every epoch has the same batches, so the hidden states are
    kept as far as `limit_bytes` reach. The logits are not: they take a hundred times as much, and are the product of
    the output layer with the last hidden state. Targets that change them afterwards are read in every epoch.

    A batch always gives the same values, whether they are kept or not, and whatever was read before.
    """

    def __init__(self, target: CausalLM, head: DraftNetwork, limit_bytes: int = MAX_CACHED_BYTES) -> None:
        self._target, self._head, self._free = target, head, limit_bytes
        self._kept: dict[int, tuple[Batch, TargetOutput]] = {}
        self._is_linear: bool | None = None  # whether the output layer is all that follows the last hidden state
        self._output: Any = target.model.get_output_embeddings()
        d2t = None if isinstance(head, MedusaHeads) else head.d2t
        self._token_ids = None if d2t is None else torch.arange(len(d2t), device=d2t.device) + d2t
        if self._token_ids is not None:
            self._weight = output_weight(target).index_select(0, self._token_ids)
            bias = getattr(self._output, "bias", None)
            self._bias = None if bias is None else bias.detach().index_select(0, self._token_ids)
            self._is_drafted = torch.zeros(target.vocab_size, dtype=torch.bool, device=self._token_ids.device)
            self._is_drafted[self._token_ids] = True

    def __call__(self, batch: Batch) -> TargetOutput:
        if id(batch) in self._kept:
            return self._kept[id(batch)][1]
        output = read_by_target(self._target, batch, self._head, needs_logits=not self._is_linear)
        if self._is_linear is None:
            assert output.logits is not None
            self._is_linear = same_logits(output.logits, self._product(output.last), rounds=self._target.rounds)
        if self._is_linear:  # also of the first batch, which gives the same values as any other
            output = output._replace(logits=None)
        if self._token_ids is not None:
            logits, size = output.logits, max(1, MAX_LOGITS // self._target.vocab_size)
            parts = (self._product(last) for last in output.last.split(size)) if logits is None else logits.split(size)
            is_covered: list[Tensor] = []
            shares: list[Tensor] = []
            for part in parts:
                is_covered.append(self._is_drafted[part.argmax(-1)])
                shares.append(torch.softmax(in_float32(part), dim=-1)[:, self._token_ids].sum(-1))
            output = output._replace(is_covered=torch.cat(is_covered), share=torch.cat(shares))
        if self._is_linear and output.num_bytes <= self._free:
            self._free -= output.num_bytes
            self._kept[id(batch)] = (batch, output)  # the batch too, since an id may be given again
        return output

    @torch.no_grad()
    def _product(self, last: Tensor) -> Tensor:
        made: Tensor = self._output(last)[:, : self._target.vocab_size]
        return made

    @torch.no_grad()
    def teacher(self, output: TargetOutput, learnt: slice = slice(None)) -> Tensor:
        """Returns the target's logits over the draft vocabulary, before every learnt token, or some of them:
        [num_learnt, draft_vocab_size]. Their softmax is the target's distribution, normalised over this vocabulary."""
        if output.logits is not None:
            logits = output.logits[learnt]
            return logits if self._token_ids is None else logits.index_select(-1, self._token_ids)
        if self._token_ids is None:
            return self._product(output.last[learnt])
        return functional.linear(output.last[learnt], self._weight, self._bias)


MAX_CHUNK = 2**25  # draft logits that are computed at once
MAX_GRAPH = 2**29  # draft logits that are kept for the gradients; more are computed a second time there


class HeadLosses:
    """The loss of a head on every learnt token of a batch: [num_learnt].

    It is the sum over draft steps s of decay^s times the step's weighted losses: the cross-entropy with the target's
    distribution (Medusa: arXiv:2401.10774, §2.2.1, with soft labels; EAGLE-3: arXiv:2503.01840, §3.2) and, for EAGLE-1,
    the distance to the target's hidden state (smooth L1, mean over its elements; arXiv:2401.15077, §3.2). A layer for
    multi-token prediction learns the answer's tokens, and its weights sum to 1 (arXiv:2509.18362, eq. 2).
    """

    def __init__(self, spec: TrainSpec, target: CausalLM, head: MedusaHeads | EagleHead) -> None:
        assert spec.head is not None
        if spec.medusa is not None:
            self.num_steps = spec.medusa.num_heads
        elif (unrolled := spec.eagle or spec.eagle3 or spec.mtp) is not None:
            self.num_steps = unrolled.num_draft_steps
        self.target = target
        self.read = TargetPasses(target, head)
        self.decay = spec.head.decay
        self.learns_tokens = spec.mtp is not None
        self.weight_sum = sum(self.decay**step for step in range(self.num_steps)) if self.learns_tokens else 1.0
        self.logit_weight = spec.eagle.logit_weight if spec.eagle is not None else 1.0
        self.state_weight = spec.eagle.state_weight if spec.eagle is not None else 0.0

    def __call__(self, batch: Batch, model: nn.Module, number: int | None = None) -> Tensor:
        head: MedusaHeads | EagleHead = unwrapped(model)
        output = self.read(batch)
        rows, columns = batch.places.to(self.target.device)
        teacher = batch.learnt_ids.to(self.target.device) if self.learns_tokens else self.read.teacher(output)
        total = torch.zeros(len(rows), device=self.target.device)
        for number, step in enumerate(draft_steps(head, output, batch, self.num_steps)):
            keeps_graph = len(teacher) * num_drafted(head, teacher) * self.num_steps <= MAX_GRAPH
            loss = self.logit_weight * step_entropy(head, number, step, teacher, keeps_graph)
            if output.is_covered is not None:
                loss = loss * output.is_covered[step.learnt]
            if self.state_weight:
                wanted = output.hidden[0][rows[step.learnt], columns[step.learnt]].float()
                distance = functional.smooth_l1_loss(step.states, wanted, reduction="none")
                loss = loss + self.state_weight * distance.mean(-1)
            total = total.index_add(0, step.learnt, self.decay**number / self.weight_sum * loss)
        return total


def step_entropy(
    head: MedusaHeads | EagleHead, number: int, step: DraftStep, teacher: Tensor, keeps_graph: bool
) -> Tensor:
    """Returns the cross-entropy of draft step `number`, from 0, with the target's distribution: [num_drafted].

    `teacher`: the target's logits [num_learnt, draft_vocab_size], or its tokens [num_learnt]. The loss is computed in
    parts, since the logits of a real vocabulary take more memory than everything else. `keeps_graph`: they are kept for
    the gradients, or else computed a second time there."""

    vocab_size = num_drafted(head, teacher)

    def of_part(states: Tensor, learnt: Tensor) -> Tensor:
        logits = in_float32(draft_logits(head, number, states)[:, :vocab_size])  # the rest is padding
        if teacher.dim() == 1:
            return functional.cross_entropy(logits, teacher[learnt], reduction="none")
        probs = torch.softmax(in_float32(teacher[learnt]), dim=-1)
        return torch.logsumexp(logits, dim=-1) - (probs * logits).sum(-1)

    size = max(1, MAX_CHUNK // vocab_size)
    parts = zip(step.states.split(size), step.learnt.split(size), strict=True)
    if torch.is_grad_enabled() and not keeps_graph:
        keep_none = partial(computed_again, of_part, use_reentrant=False, preserve_rng_state=False)
        return torch.cat([keep_none(*part) for part in parts])
    return torch.cat([of_part(*part) for part in parts])


def num_drafted(head: MedusaHeads | EagleHead, teacher: Tensor) -> int:
    """Returns the number of tokens that the head can draft, given the target's logits over them, or its tokens."""
    return teacher.shape[-1] if teacher.dim() > 1 or isinstance(head, MedusaHeads) else head.layout.draft_vocab_size


def draft_logits(head: MedusaHeads | EagleHead, number: int, states: Tensor) -> Tensor:
    """Returns the logits of draft step `number`, from 0, over the draft vocabulary: [num_drafted, draft_vocab_size]."""
    return head.draft_logits(states) if isinstance(head, EagleHead) else head.head_logits(number, states)


def draft_steps(
    head: MedusaHeads | EagleHead, output: TargetOutput, batch: Batch, num_steps: int
) -> Iterator[DraftStep]:
    """Yields draft steps 1, 2, … for the learnt tokens that have enough text before them."""
    rows, columns = batch.places.to(output.ids.device)
    hidden = [states.float() for states in output.hidden]
    if isinstance(head, EagleHead):
        start = max(0, int(columns.min()) - num_steps)
        states = unroll(head, output.ids, hidden, num_steps, start)
    else:
        states = hidden * num_steps
    for step in range(num_steps):
        learnt = (columns > step).nonzero()[:, 0]
        yield DraftStep(learnt, states[step][rows[learnt], columns[learnt] - 1 - step])


def unroll(
    head: EagleHead, ids: Tensor, hidden: Sequence[Tensor], num_steps: int, start: int = 0
) -> list[Tensor]:  # fmt: skip
    """Returns the head's states of each draft step: [num_rows, length, width]. From the second step on, those before
    position `start` are 0.

    Position i of step s drafts token i + 2 + s from the target's states up to i and the tokens up to i + 1 + s. It
    attends to the target's states up to i and to its own states of earlier steps (the training-time test of
    arXiv:2503.01840, §3.2). So of the prompt only the first step is needed.
    """
    length = ids.shape[1]
    cache = DynamicCache()
    states = head.project(hidden)
    unrolled: list[Tensor] = []
    past = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
    diagonal = torch.eye(length - start, dtype=torch.bool, device=ids.device)
    for step in range(num_steps):
        first = start if step else 0
        tokens = functional.pad(ids[:, 1 + step :], (0, min(length, 1 + step)))[:, first:length]
        mask = torch.cat([past[first:], *([diagonal] * step)], dim=1)[None, None]
        positions = torch.arange(step + first, step + length, device=ids.device)[None]
        made = head(tokens, states, positions, mask, cache)
        unrolled.append(functional.pad(made, (0, 0, first, 0)))
        states = head.next_states(made[:, start - first :])
    return unrolled


class DraftHead:
    """A head that is trained for a target, with the attributes that a training records. Its weights are float32."""

    def __init__(self, model: DraftNetwork, target: CausalLM, name: str, revision: str | None) -> None:
        self.model: Any = model
        self.target, self.name, self.revision = target, name, revision
        for parameter in self.own_parameters.values():  # embeddings and output layer may be the target's
            parameter.data = parameter.data.float()
        self.tokenizer, self.context_limit = target.tokenizer, target.context_limit
        self.device = target.device
        self.dtype = "float32"
        self.attention = target.attention

    @classmethod
    def of(cls, spec: TrainSpec, target: CausalLM) -> "DraftHead":
        """Returns the head that the settings name, or a new one. Raises ConfigError."""
        if spec.drafter is None:
            torch.manual_seed(stream_seed(spec.seed, "head"))
            model: DraftNetwork
            if spec.medusa is not None:
                model = new_medusa(spec.medusa, target)
            elif spec.peagle is not None:
                model = new_peagle(spec.peagle, target)
                model.num_drafts = spec.peagle.num_draft_tokens
            elif spec.mtp is not None:
                model = new_mtp(spec.mtp, target)
            else:
                model = new_eagle(spec, target) if spec.block is None else new_block_head(spec, target)
            return cls(model.to(target.device), target, f"new {spec.kind}", None)
        checkpoint = read_checkpoint(spec.drafter, spec.drafter_revision)
        checkpoint.expect(cast(Kind, spec.kind))
        if spec.medusa:
            return cls(load_medusa(checkpoint, target), target, spec.drafter, checkpoint.revision)
        if spec.block is not None:
            return cls(block_head_of(checkpoint, target), target, spec.drafter, checkpoint.revision)
        if spec.mtp is not None:
            layer = load_mtp_layer(checkpoint, target)
            layer.num_drafts = spec.mtp.num_draft_steps
            return cls(layer, target, spec.drafter, checkpoint.revision)
        eagle = load_eagle(checkpoint, target, norm_output_reading(checkpoint, target, None))
        if isinstance(eagle, ParallelEagleHead):
            assert spec.peagle is not None
            eagle.num_drafts = spec.peagle.num_draft_tokens
        return cls(eagle, target, spec.drafter, checkpoint.revision)

    def choose_vocabulary(self, spec: TrainSpec, samples: Sequence[Sample]) -> None:
        """Restricts a new head to the `draft_vocab_size` most frequent tokens of the learnt texts, and chooses the mask
        token of one that has one."""
        if spec.drafter is not None:
            return
        if isinstance(self.model, BlockHead | ParallelEagleHead):
            choose_mask_token(self.model, spec, self.target, samples)
        vocab_size, size = self.target.vocab_size, getattr(spec.head, "draft_vocab_size", None)
        if size is None:
            return
        counts = Counter(token for sample in samples for token in sample.ids[sample.num_given :])
        if size >= vocab_size:
            raise ConfigError(
                f"{spec.kind}.draft_vocab_size = {size}: the target has {vocab_size} tokens: give fewer, or null for "
                "all"
            )
        ranked = sorted(range(vocab_size), key=lambda token: -counts[token])
        token_ids = torch.tensor(sorted(ranked[:size]), device=self.device)
        self.model.d2t = token_ids - torch.arange(size, device=self.device)
        rows = output_weight(self.target).index_select(0, token_ids)
        # Heads that draft blocks do not train it.
        self.model.lm_head.weight = nn.Parameter(rows.float().clone(), not isinstance(self.model, BlockHead))

    @property
    def own_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that are trained. Embeddings and output layer may be the target's; those of heads that draft
        blocks are never trained."""
        fixed = {id(parameter) for parameter in self.target.model.parameters()}
        if isinstance(self.model, BlockHead):
            fixed |= {id(layer.weight) for layer in (self.model.embed_tokens, self.model.lm_head)}
        return {name: value for name, value in self.model.named_parameters() if id(value) not in fixed}

    def save(self, folder: Path, dtype: torch.dtype) -> None:
        """Writes configuration and weights in the published layout of vLLM's Medusa, EAGLE, EAGLE-3, MTP of speculators
        or one of `block_files`."""
        own = {name: value.detach().to("cpu", dtype).contiguous() for name, value in self.own_parameters.items()}
        if isinstance(self.model, MedusaHeads):
            config, tensors = medusa_files(self.model, own, self.target)
        elif isinstance(self.model, BlockHead):
            config, tensors = block_files(self.model, own, self.target)
        elif isinstance(self.model, MtpLayerHead):
            config, tensors = mtp_files(self.model, own, self.target)
        else:
            config, tensors = eagle_files(self.model, own, self.target)
        save_file(tensors, folder / "model.safetensors")
        config["torch_dtype"] = str(dtype).removeprefix("torch.")
        write_atomically(folder / "config.json", json.dumps(config, indent=2) + "\n")
