"""Drafts of a model by its own weights: passes that skip sub-layers, or that read only a window of the text. They begin
with the keys and values of the model's own passes, and leave these as they were.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn

from specbench.core.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.models.devices import is_out_of_memory
from specbench.models.eager import EagerSequence, common_prefix
from specbench.models.fused import attending_in_groups
from specbench.models.kv_cache import ATTENTION, PreallocatedLayer, attention_mask, by_layer_type, check_attention
from specbench.models.meters import PassLog
from specbench.models.scoring import Output, ScoringModel


class OwnSequence(EagerSequence):
    """A sequence of draft passes over a model's network, which begins with the model's cached tokens. Between `begin`
    and `end` it alone is read. Subclasses say whose keys and values the passes read."""

    def __init__(self, model: CausalLM, option: str) -> None:
        if model.engine != "eager":
            raise ConfigError(
                f"{option}: its draft passes share keys and values with eager passes, and target '{model.name}' has "
                f"those of engine {model.engine}: take --engine eager"
            )
        assert isinstance(model.sequence, EagerSequence)
        if model.sequence.recurrent is not None:
            raise ConfigError(
                f"{option}: target '{model.name}' has recurrent layers, whose one state drafts cannot share: use "
                "another method"
            )
        super().__init__(model.model, model.name, model.vocab_size, PassLog(model.passes.clock))
        self.whole = model.sequence

    def begin(self, ids: list[int]) -> None:
        """Begins a draft after `ids`, of which the last token at least is read again."""
        self.whole.rollback(min(common_prefix(self.whole.cached_ids, ids), len(ids) - 1))
        self.cached_ids = list(self.whole.cached_ids)

    def end(self) -> None:
        """Drops what the draft passes wrote."""
        self.cached_ids = []


class OwnDraftModel(ScoringModel):
    """A model whose draft passes are those of an OwnSequence. They need no prefill."""

    def __init__(self, model: CausalLM, sequence: OwnSequence) -> None:
        self.sequence = sequence
        self.passes, self.eos_token_ids = sequence.passes, model.eos_token_ids
        self.vocab_size = sequence.vocab_size
        self.prefers_pending = model.prefers_pending

    @contextmanager
    def drafting(self, ids: list[int]) -> Iterator[None]:
        """Within the block, `score` makes draft passes after `ids`."""
        self.sequence.begin(ids)
        try:
            yield
        finally:
            self.sequence.end()

    def reset(self) -> None:
        """There is nothing to drop: each draft begins with what the model has cached."""

    def score(self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None) -> Output:
        return self.sequence.score(ids, num_logits, pending)

    def resolve_pending(self, token_ids: list[int]) -> None:
        """The tokens of an ended draft are not cached."""


class SubLayers(NamedTuple):
    """The numbers of layers whose attention, and of those whose feed-forward network, a pass skips, ascending."""

    attention: tuple[int, ...]
    mlp: tuple[int, ...]

    def __str__(self) -> str:
        return f"attention {listed(self.attention)}, mlp {listed(self.mlp)}"


def listed(numbers: Iterable[int]) -> str:
    return " ".join(map(str, numbers)) or "none"


class SkippingSequence(OwnSequence):
    """Passes that skip sub-layers: the residual stream passes them unchanged.

    They append to the model's own cache, whose text has the keys and values of all layers. A skipped attention writes
    none, but its cache counts the tokens, so that positions and masks of all layers agree. `end` crops the cache to the
    text: the pass that verifies the draft writes the keys and values of all layers.
    """

    def __init__(self, model: CausalLM, option: str) -> None:
        super().__init__(model, option)
        self.cache, self._attention_layers = self.whole.cache, self.whole._attention_layers
        self.layers = layers_of(model, option)
        self.skipped = SubLayers((), ())
        self._check(option)

    def _check(self, option: str) -> None:
        """Raises ConfigError if the layers fail without their parts."""
        ids = [0, 1]
        self.skipped = SubLayers((len(self.layers) - 1,), (len(self.layers) - 1,))
        self.begin(ids)
        try:
            self.score(ids, 1)
        except Exception as error:  # networks take other outputs of their parts in many ways
            if is_out_of_memory(error):
                raise
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"{option}: the layers of '{self.name}' cannot be skipped in part ({reason}): use another method"
            ) from error
        finally:
            self.end()
            self.passes.clear()
            self.skipped = SubLayers((), ())

    def end(self) -> None:
        super().end()
        self._truncate_layers(len(self.whole.cached_ids))

    def _truncate_layers(self, num_tokens: int) -> None:
        for layer in self._attention_layers:
            layer.truncate(num_tokens)

    def _read(self, *given: Any, **named: Any) -> Output:
        with ExitStack() as stack:
            for number in self.skipped.attention:
                cached = self.cache.layers[number]
                assert isinstance(cached, PreallocatedLayer)
                stack.enter_context(replaced(self.layers[number].self_attn, skipped_attention(cached)))
            for number in self.skipped.mlp:
                stack.enter_context(replaced(self.layers[number].mlp, torch.zeros_like))
            return super()._read(*given, **named)

    @torch.inference_mode()
    def agreement(self, ids: list[int], num_tokens: int) -> float:
        """Returns the share of the last `num_tokens` of `ids` that the skipping passes find most probable, read in one
        pass after all tokens before them. The model must have cached all of `ids` but the last token. It keeps its own
        keys and values."""
        start, end = len(ids) - num_tokens - 1, len(ids) - 1
        kept = [
            (buffer, buffer[:, :, start:end].clone())
            for layer in self._attention_layers
            for buffer in (layer.keys, layer.values)
            if buffer is not None
        ]
        self.cached_ids = ids[:start]
        self._truncate_layers(start)
        try:
            logits = self._read(ids[:end], None, (), num_tokens, 0, num_tokens, ()).logits[-num_tokens:]
            best = logits[:, : self.vocab_size].argmax(dim=-1)
        finally:
            self.cached_ids = ids[:end]
            for buffer, states in kept:
                buffer[:, :, start:end] = states
            for layer in self._attention_layers:
                layer.length = end
        wanted = torch.tensor(ids[start + 1 :], device=best.device)
        return float((best == wanted).float().mean())


def layers_of(model: CausalLM, option: str) -> list[Any]:
    """Returns the layers of a network. Raises ConfigError unless each has an attention and a feed-forward network that
    are added to the residual stream under transformers' usual names."""
    number = model.model.config.get_text_config().num_hidden_layers
    stacks = [
        part for part in model.model.modules()
        if isinstance(part, nn.ModuleList) and len(part) == number
        and all(isinstance(getattr(layer, name, None), nn.Module) for layer in part for name in ("self_attn", "mlp"))
    ]  # fmt: skip
    if len(stacks) != 1:
        raise ConfigError(
            f"{option}: the layers of '{model.name}' have no parts named self_attn and mlp: use another method"
        )
    return list(stacks[0])


def skipped_attention(cached: PreallocatedLayer) -> Callable[..., tuple[torch.Tensor, None]]:
    """Returns the forward function of an attention that adds nothing and writes no keys."""

    def forward(hidden_states: torch.Tensor, *given: Any, **named: Any) -> tuple[torch.Tensor, None]:
        cached.length += hidden_states.shape[-2]
        return torch.zeros_like(hidden_states), None

    return forward


@contextmanager
def replaced(part: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Within the block, a module computes `forward`."""
    own = vars(part).get("forward")
    vars(part)["forward"] = forward
    try:
        yield
    finally:
        if own is None:
            del vars(part)["forward"]
        else:
            vars(part)["forward"] = own


class WindowSequence(OwnSequence):
    """Passes over the first `sink` and the last `window` tokens of the text, and the draft.

    Their keys and values are copied from the model's cache when a draft begins, at the positions that they have in the
    text, so that the model's own pass over the draft reads and writes a cache that knows nothing of them.
    """

    def __init__(self, model: CausalLM, option: str, sink: int, window: int) -> None:
        super().__init__(model, option)
        check_attention(self.model, self.name, ATTENTION, f"{option}: drafts need")
        self.sink, self.window = sink, window
        self._places = torch.empty(0, dtype=torch.long, device=self.device)  # of the cached columns in the text
        self._start: Any = None

    @torch.inference_mode()
    def begin(self, ids: list[int]) -> None:
        self._start = self.passes.clock.mark()  # the copy is part of the first pass
        super().begin(ids)
        num_cached = len(self.cached_ids)
        places = torch.arange(num_cached, device=self.device)
        first = max(self.sink, num_cached - self.window)
        self._places = places if first <= self.sink else torch.cat([places[: self.sink], places[first:]])
        for own, whole in zip(self._attention_layers, self.whole._attention_layers, strict=True):
            own.truncate(0)
            if whole.keys is None or whole.values is None or not num_cached:
                continue
            keys, values = whole.keys[:, :, :num_cached], whole.values[:, :, :num_cached]
            if first > self.sink:
                keys, values = (
                    torch.cat([states[:, :, : self.sink], states[:, :, first:]], dim=2) for states in (keys, values)
                )
            own.update(keys, values)

    def _truncate(self, num_tokens: int) -> None:
        """Crops the draft behind the text; the text itself has fewer columns than tokens."""
        num_dropped = max(0, len(self.cached_ids) - num_tokens)
        del self.cached_ids[num_tokens:]
        self._places = self._places[: len(self._places) - num_dropped]
        for layer in self._attention_layers:
            layer.truncate(len(self._places))

    def _read(
        self, ids: list[int], pending: torch.Tensor | None, parents: Sequence[int], num_read: int, num_replayed: int,
        num_logits: int, hidden_layers: Sequence[int],
    ) -> Output:  # fmt: skip
        tokens = self._input(ids, pending, num_read)
        num_cached = len(self.cached_ids)
        positions = torch.arange(num_cached, num_cached + num_read, device=self.device)
        places = torch.cat([self._places, positions])
        visible = places <= positions[:, None]
        windows = {layer.is_sliding for layer in self._attention_layers}
        masks = {}
        if False in windows:
            masks["full_attention"] = attention_mask(visible, self.model)
        if True in windows:
            near = positions[:, None] - places < self.model.config.get_text_config().sliding_window
            masks["sliding_attention"] = attention_mask(visible & near, self.model)
        options = self._options(tokens, num_logits)
        options["position_ids"] = positions[None]
        if num_read > 1 or True in windows:  # one token alone sees all columns
            options["attention_mask"] = by_layer_type(masks)
        grouping = attending_in_groups(self.model.config) if self.groups_heads else nullcontext()
        with self._timed(num_read), grouping:
            made = self.model(input_ids=tokens, **options)
        self._places = places
        return Output(made.logits[0])

    @contextmanager
    def _timed(self, num_tokens: int) -> Iterator[None]:
        first = self.passes.num_passes
        if self._start is not None:
            self.passes.add(0, self._start, self.passes.clock.mark())
            self._start = None
        with super()._timed(num_tokens):
            yield
        self.passes.join(first)
