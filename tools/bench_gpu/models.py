"""The models of random weights that are measured, read by any engine."""

import argparse
import time
from typing import Any, cast, get_args

import torch

QWEN: dict[str, Any] = {"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1e6}
SHAPES: dict[str, dict[str, Any]] = {
    "7b": {
        **QWEN, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
    },
    "0.5b": {
        **QWEN, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
        "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
    },
    "13m": {
        **QWEN, "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 6,
        "num_key_value_heads": 3, "vocab_size": 8192, "tie_word_embeddings": True,
    },
    "1.4m": {
        **QWEN, "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 8192, "tie_word_embeddings": True,
    },
    "tiny": {
        **QWEN, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 300, "tie_word_embeddings": True,
    },
}  # fmt: skip
PAIRS = {"qwen": ("7b", "0.5b"), "small": ("13m", "1.4m"), "tiny": ("tiny", "tiny")}
VOCABULARY = {"qwen": 151643, "small": 8182, "tiny": 290}
CONTEXT, NUM_TOKENS, NUM_DRAFT_TOKENS = 256, 64, 5
STARTED = time.time()


def say(line: str) -> None:
    print(f"[{time.time() - STARTED:6.1f} s] {line}", flush=True)


def own_engines(args: argparse.Namespace) -> list[str]:
    return [engine for engine in args.engines if not engine.startswith("transformers")]


class Numbers:
    """A tokenizer of random models: tokens without texts."""

    eos_token_id = None

    def __init__(self, size: int) -> None:
        self._size = size

    def get_vocab(self) -> dict[str, int]:
        return {str(number): number for number in range(self._size)}


def random_model(shape: str, size: int, device: str) -> Any:
    """A model of random weights: bfloat16 on a GPU, float32 on a CPU."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    from specbench.models.causal_lm import CausalLM

    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    torch.manual_seed(0)
    with torch.device(device):
        network = AutoModelForCausalLM.from_config(Qwen2Config(**SHAPES[shape]), dtype=dtype).eval()
    network.generation_config.eos_token_id = network.config.eos_token_id = None
    return CausalLM(network, Numbers(size), f"random-{shape}", None)


def bytes_per_token(model: Any) -> int:
    """The bytes of the weights that a pass over one token reads."""
    is_tied = model.model.config.tie_word_embeddings
    weights = model.model.named_parameters()
    return sum(w.numel() * w.element_size() for name, w in weights if is_tied or "embed_tokens" not in name)


def ids_of(model: Any, number: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, model.vocab_size, (number,), generator=generator).tolist()


def with_engine(model: Any, engine: str) -> Any:
    """The same network read by another engine."""
    from specbench.models.causal_lm import CausalLM
    from specbench.models.loading import make_passes
    from specbench.specs.components import StaticEngine

    made = CausalLM(model.model, model.tokenizer, model.name, None)
    if engine in get_args(StaticEngine):
        make_passes(made, cast(StaticEngine, engine))
        if made.why_eager:
            say(f"{made.name}: {engine} cannot be made: {made.why_eager}")
    return made


def decode_ids(
    target: Any, drafter: Any, ids: list[int], num_tokens: int, num_draft_tokens: int, rule: Any, seed: int = 1
) -> Any:
    """Returns the generation. `seed`: of the random stream."""
    from specbench.decoding.loop import StopRules, decode
    from specbench.decoding.sampling import Sampling

    return decode(
        target, drafter, rule, ids, num_draft_tokens=num_draft_tokens, sampling=Sampling(0.0),
        stop=StopRules(num_tokens), generator=torch.Generator(device=target.device).manual_seed(seed),
    )  # fmt: skip
