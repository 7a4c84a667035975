"""A method's external code → a decoder: constructed where it is a class, and bound to what is known before a run."""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from specbench.decoding.drafters.none import NoDrafter
from specbench.decoding.sampling import Sampling
from specbench.errors import ConfigError
from specbench.external import entry as entries
from specbench.external.contract import LoadedModel
from specbench.external.decoder import ExternalDecoder, no_rule
from specbench.external.guard import blaming
from specbench.models.causal_lm import CausalLM
from specbench.models.pair import ModelPair
from specbench.specs import MethodSpec, digest

RUN = ("max_new_tokens", "eos_token_ids", "seed", "on_token")  # what is passed anew for every generation
_BUILT: WeakKeyDictionary[CausalLM, dict[Any, Any]] = WeakKeyDictionary()  # what classes made, with their draft model


def external_decoder(method: MethodSpec, models: ModelPair, sampling: Sampling) -> ExternalDecoder:
    """Load a method's code and, where it is a class, construct it: once for all cells of a run."""
    assert method.decoder is not None
    options = method.decoder.options
    drafter = models.drafter if method.needs_drafter else None
    fixed = {
        "target": LoadedModel(models.target.model, models.target.tokenizer),
        "drafter": LoadedModel(drafter.model, drafter.tokenizer) if drafter is not None else None,
        "num_draft_tokens": method.num_draft_tokens,
        "sampling": sampling,
    }
    with blaming(method):
        code = entries.load(method.decoder.entry)
        call: Callable[..., Any] = code.call
        if not sampling.greedy and not entries.takes_sampling(code):
            raise ConfigError("it does not take 'sampling', so it decodes greedily only: set generation.temperature=0")
        if code.is_class:
            key = (method.decoder.entry, code.revision, digest(method), sampling)
            built = _BUILT.setdefault(models.target, {})
            if key not in built or built[key][0] is not drafter:
                built[key] = drafter, call(**entries.keywords(call, fixed, options, 0))
            call, options = built[key][1].generate, {}
        bound = bind(call, fixed, options, "generate" if code.is_class else "decoder.options")
    return ExternalDecoder(method, models.target, NoDrafter(), no_rule, sampling, bound, code.revision)


def bind(call: Callable[..., Any], fixed: dict[str, Any], options: dict[str, Any], place: str) -> Callable[..., Any]:
    """The call with all that is known before a generation; later it is passed what it names of RUN."""
    passed = entries.keywords(call, {**fixed, **dict.fromkeys(RUN)}, options, 1, place)
    early = {name: value for name, value in passed.items() if name not in RUN}

    def decode(prompt_ids: list[int], **run: Any) -> Any:
        return call(prompt_ids, **early, **{name: run[name] for name in RUN if name in passed})

    return decode
