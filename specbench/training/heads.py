"""Draft heads in a training: their initialisation, the losses of Medusa, EAGLE and EAGLE-3, and the export."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache, LlamaConfig

from specbench.core.errors import ConfigError
from specbench.core.files import write_atomically
from specbench.decoding.decoder import stream_seed
from specbench.decoding.drafters.heads import norm_output_reading
from specbench.models.causal_lm import CausalLM
from specbench.models.heads.checkpoints import read_checkpoint
from specbench.models.heads.eagle import EagleHead, EagleLayout
from specbench.models.heads.eagle_checkpoint import eagle_files, load_eagle
from specbench.models.heads.medusa import MedusaHeads, load_medusa, medusa_files
from specbench.training.passes import Batch, Sample, in_float32, unwrapped
from specbench.training.spec import TrainSpec

DraftNetwork = MedusaHeads | EagleHead


class TargetOutput(NamedTuple):
    """The target's output for a batch: the ids that it reads [num_rows, length], the hidden states of each layer
    [num_rows, length, width], and the logits before every learnt token [num_learnt, vocab_size]."""

    ids: Tensor
    hidden: Sequence[Tensor]
    logits: Tensor


class DraftStep(NamedTuple):
    """The output of one draft step for the learnt tokens with the indices `learnt` [num_drafted]: logits
    [num_drafted, draft_vocab_size] and the head's states [num_drafted, width] (Medusa: the target's states)."""

    learnt: Tensor
    logits: Tensor
    states: Tensor


@torch.no_grad()
def read_by_target(target: CausalLM, batch: Batch, head: DraftNetwork) -> TargetOutput:
    """Returns the target's logits and the hidden states that a head reads."""
    last = target.model.config.get_text_config().num_hidden_layers
    layers = head.layout.hidden_layers if isinstance(head, EagleHead) else (last,)
    ids = batch.ids[:, :-1].to(target.device)
    output = target.model(input_ids=ids, use_cache=False, output_hidden_states=list(layers))
    rows, columns = batch.places.to(target.device)
    hidden = [output.hidden_states[layer].float() for layer in layers]
    return TargetOutput(ids, hidden, output.logits[rows, columns, : target.vocab_size])


class HeadLosses:
    """The loss of a head on every learnt token of a batch: [num_learnt].

    It is the sum over draft steps s of decay^s times the step's weighted losses: the cross-entropy with the target's
    distribution (Medusa: arXiv:2401.10774, §2.2.1, with soft labels; EAGLE-3: arXiv:2503.01840, §3.2) and, for EAGLE-1,
    the distance to the target's hidden state (smooth L1, mean over its elements; arXiv:2401.15077, §3.2).
    """

    def __init__(self, spec: TrainSpec, target: CausalLM) -> None:
        assert spec.head is not None
        if spec.medusa is not None:
            self.num_steps = spec.medusa.num_heads
        elif (eagle := spec.eagle or spec.eagle3) is not None:
            self.num_steps = eagle.num_draft_steps
        self.target = target
        self.decay = spec.head.decay
        self.logit_weight = spec.eagle.logit_weight if spec.eagle is not None else 1.0
        self.state_weight = spec.eagle.state_weight if spec.eagle is not None else 0.0

    def __call__(self, batch: Batch, model: nn.Module) -> Tensor:
        head: DraftNetwork = unwrapped(model)
        output = read_by_target(self.target, batch, head)
        teacher, is_covered = draft_teacher(head, output.logits)
        rows, columns = batch.places.to(self.target.device)
        total = torch.zeros(len(rows), device=self.target.device)
        for number, step in enumerate(draft_steps(head, output, batch, self.num_steps)):
            entropy = -(teacher[step.learnt] * torch.log_softmax(in_float32(step.logits), dim=-1)).sum(-1)
            loss = self.logit_weight * entropy * is_covered[step.learnt]
            if self.state_weight:
                wanted = output.hidden[0][rows[step.learnt], columns[step.learnt]]
                distance = functional.smooth_l1_loss(step.states, wanted, reduction="none")
                loss = loss + self.state_weight * distance.mean(-1)
            total = total.index_add(0, step.learnt, self.decay**number * loss)
        return total


def draft_teacher(head: DraftNetwork, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the target's probabilities over the draft vocabulary, [num_learnt, draft_vocab_size], and whether the
    target's most probable token is in it, [num_learnt]."""
    probs = torch.softmax(in_float32(logits), dim=-1)
    if isinstance(head, MedusaHeads) or head.d2t is None:
        return probs, torch.ones(len(probs), dtype=torch.bool, device=probs.device)
    token_ids = torch.arange(len(head.d2t), device=probs.device) + head.d2t
    is_drafted = torch.zeros(probs.shape[-1], dtype=torch.bool, device=probs.device).index_fill_(0, token_ids, True)
    kept = probs.index_select(-1, token_ids)
    return kept / kept.sum(-1, keepdim=True).clamp_min(1e-20), is_drafted[probs.argmax(-1)]


def draft_steps(head: DraftNetwork, output: TargetOutput, batch: Batch, num_steps: int) -> Iterator[DraftStep]:
    """Yields the output of draft steps 1, 2, … for the learnt tokens that have enough text before them."""
    rows, columns = batch.places.to(output.ids.device)
    states = unroll(head, output, num_steps) if isinstance(head, EagleHead) else list(output.hidden) * num_steps
    for step in range(num_steps):
        learnt = (columns > step).nonzero()[:, 0]
        step_states = states[step][rows[learnt], columns[learnt] - 1 - step]
        logits = head.draft_logits(step_states) if isinstance(head, EagleHead) else head.head_logits(step, step_states)
        yield DraftStep(learnt, logits, step_states)


def unroll(head: EagleHead, output: TargetOutput, num_steps: int) -> list[Tensor]:
    """Returns the head's states of each draft step: [num_rows, length, width].

    Position i of step s drafts token i + 2 + s from the target's states up to i and the tokens up to i + 1 + s. It
    attends to the target's states up to i and to its own states of earlier steps (the training-time test of
    arXiv:2503.01840, §3.2).
    """
    length = output.ids.shape[1]
    cache = DynamicCache()
    states = head.project(output.hidden)
    unrolled: list[Tensor] = []
    past = torch.ones(length, length, dtype=torch.bool, device=output.ids.device).tril()
    diagonal = torch.eye(length, dtype=torch.bool, device=output.ids.device)
    for step in range(num_steps):
        tokens = functional.pad(output.ids[:, 1 + step :], (0, min(length, 1 + step)))[:, :length]
        mask = torch.cat([past, *([diagonal] * step)], dim=1)[None, None]
        positions = torch.arange(step, step + length, device=output.ids.device)[None]
        unrolled.append(head(tokens, states, positions, mask, cache))
        states = head.next_states(unrolled[-1])
    return unrolled


OUTPUT_SCALE = 0.4  # new Medusa output layer ÷ the target's: the target's layer is too sharp at first
NORM_SCALE = 0.5  # new EAGLE-3 norm ÷ the target's, for the same reason


class DraftHead:
    """A head that is trained for a target, with the attributes that a training records. Its weights are float32."""

    def __init__(self, model: MedusaHeads | EagleHead, target: CausalLM, name: str, revision: str | None) -> None:
        self.model: Any = model.float()
        self.target, self.name, self.revision = target, name, revision
        self.tokenizer, self.context_limit = target.tokenizer, target.context_limit
        self.device = target.device
        self.dtype = "float32"
        self.attention = target.attention

    @classmethod
    def of(cls, spec: TrainSpec, target: CausalLM) -> "DraftHead":
        """Returns the head that the settings name, or a new one. Raises ConfigError."""
        if spec.drafter is None:
            torch.manual_seed(stream_seed(spec.seed, "head"))
            model: MedusaHeads | EagleHead
            if spec.medusa is not None:  # it starts with a scaled copy of the target's output layer
                weight = output_weight(target)
                heads = MedusaHeads(spec.medusa.num_heads, spec.medusa.num_blocks, weight.shape[1], len(weight))
                for output in heads.output_layers():
                    output.weight.data = OUTPUT_SCALE * weight.float()
                model = heads
            else:
                model = new_eagle(spec, target)
            return cls(model.to(target.device), target, f"new {spec.kind}", None)
        checkpoint = read_checkpoint(spec.drafter, spec.drafter_revision)
        checkpoint.expect("medusa" if spec.medusa else "eagle3" if spec.eagle3 else "eagle")
        if spec.medusa:
            return cls(load_medusa(checkpoint, target), target, spec.drafter, checkpoint.revision)
        eagle = load_eagle(checkpoint, target, norm_output_reading(checkpoint, target, None))
        if eagle.layout.norm_output:
            raise checkpoint.problem(
                "its drafts read normalized states (norm_output), which the layout of trained heads cannot express: "
                "train a new head"
            )
        return cls(eagle, target, spec.drafter, checkpoint.revision)

    def choose_vocabulary(self, spec: TrainSpec, samples: Sequence[Sample]) -> None:
        """Restricts a new EAGLE-3 head to the `draft_vocab_size` most frequent tokens of the learnt texts."""
        if spec.eagle3 is None or spec.drafter is not None or spec.eagle3.draft_vocab_size is None:
            return
        counts = Counter(token for sample in samples for token in sample.ids[sample.num_given :])
        vocab_size, size = self.target.vocab_size, spec.eagle3.draft_vocab_size
        if size >= vocab_size:
            raise ConfigError(
                f"eagle3.draft_vocab_size = {size}: the target has {vocab_size} tokens: give fewer, or null for all"
            )
        ranked = sorted(range(vocab_size), key=lambda token: -counts[token])
        token_ids = torch.tensor(sorted(ranked[:size]), device=self.device)
        self.model.d2t = token_ids - torch.arange(size, device=self.device)
        rows = output_weight(self.target).index_select(0, token_ids)
        self.model.lm_head.weight = nn.Parameter(rows.float().clone(), requires_grad=True)

    @property
    def own_parameters(self) -> dict[str, nn.Parameter]:
        shared = {id(parameter) for parameter in self.target.model.parameters()}
        return {name: value for name, value in self.model.named_parameters() if id(value) not in shared}

    def save(self, folder: Path, dtype: torch.dtype) -> None:
        """Writes configuration and weights in the published layout of vLLM's Medusa, EAGLE or EAGLE-3."""
        own = {name: value.detach().to("cpu", dtype).contiguous() for name, value in self.own_parameters.items()}
        if isinstance(self.model, MedusaHeads):
            config, tensors = medusa_files(self.model, own, self.target)
        else:
            config, tensors = eagle_files(self.model, own, self.target)
        save_file(tensors, folder / "model.safetensors")
        config["torch_dtype"] = str(dtype).removeprefix("torch.")
        write_atomically(folder / "config.json", json.dumps(config, indent=2) + "\n")


def output_weight(target: CausalLM) -> Tensor:
    """Returns the weight of the target's output layer: [vocab_size, width]."""
    weight: Tensor = target.model.get_output_embeddings().weight
    return weight.detach()[: target.vocab_size]


def new_eagle(spec: TrainSpec, target: CausalLM) -> EagleHead:
    """Returns a head with random weights; for EAGLE-3, with the target's output layer and a scaled norm."""
    given = target.model.config.get_text_config()
    fields = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "rms_norm_eps",
              "head_dim", "rope_parameters", "max_position_embeddings", "bos_token_id", "eos_token_id")  # fmt: skip
    shape = {name: getattr(given, name) for name in fields if getattr(given, name, None) is not None}
    config = LlamaConfig(vocab_size=given.vocab_size, num_hidden_layers=1, tie_word_embeddings=False, **shape)
    config._attn_implementation = "sdpa"
    num_layers = given.num_hidden_layers
    is_third = spec.eagle3 is not None
    layers = (min(2, num_layers - 1), num_layers // 2, max(num_layers - 3, 0))  # a target may have fewer than five
    layout = EagleLayout(
        generation=3 if is_third else 1,
        hidden_layers=layers if is_third else (num_layers,),
        target_width=given.hidden_size,
        draft_vocab_size=target.vocab_size,
    )
    embed_tokens, lm_head = target.model.get_input_embeddings(), target.model.get_output_embeddings()
    head = EagleHead(config, layout, embed_tokens, None if is_third else lm_head)
    if is_third:
        head.lm_head.weight = nn.Parameter(output_weight(target).float().clone())
        norms = [module for module in target.model.modules() if type(module).__name__.endswith("RMSNorm")]
        if norms:
            head.norm.weight.data = NORM_SCALE * norms[-1].weight.detach().float()
    return head
