"""lm-eval's `generation_kwargs` → how an answer is sampled and where it ends."""

from collections.abc import Mapping
from typing import Any

from specbench.errors import ConfigError
from specbench.specs import GenerationSpec, build

PLACE = "generation_kwargs."
LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # the first that is given counts
KNOWN = (*LIMITS, "until", "do_sample", "temperature", "top_k", "top_p")
WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "num_beams": (1,), "num_return_sequences": (1,), "repetition_penalty": (1,), "presence_penalty": (0,),
    "frequency_penalty": (0,), "length_penalty": (1,), "min_p": (0,), "typical_p": (1,), "use_cache": (True, False),
}  # fmt: skip
MAX_GEN_TOKS = 256  # of lm-eval's own models, where a task does not say


def generation_spec(gen_kwargs: Mapping[str, Any], max_gen_toks: int = MAX_GEN_TOKS) -> GenerationSpec:
    """The generation that lm-eval asks for. As in lm-eval, `do_sample: false` is greedy whatever the temperature, and
    a temperature above 0 samples unless that is said; `do_sample: true` alone samples at temperature 1.

    Raises ConfigError naming the key: an option that would change what is decoded is never ignored.
    """
    given = {key: value for key, value in gen_kwargs.items() if value is not None}
    for key, value in given.items():
        if key not in KNOWN and value not in WITHOUT_EFFECT.get(key, ()):
            raise ConfigError(f"{PLACE}{key} = {value!r}: specbench knows {', '.join(KNOWN)}: leave the option out")
    until = given.get("until", [])
    limits = [given[key] for key in LIMITS if key in given]
    top_k, do_sample = given.get("top_k"), given.get("do_sample")
    temperature = given.get("temperature", 1.0 if do_sample else 0.0)
    data = {
        "max_new_tokens": limits[0] if limits else max_gen_toks,
        "stop": tuple(text for text in ([until] if isinstance(until, str) else until) if text),
        "temperature": 0.0 if do_sample is False else temperature,
        "top_k": None if top_k in (0, -1) else top_k,
        "top_p": given.get("top_p"),
    }
    return build(GenerationSpec, data, prefix=PLACE)
