"""Draft heads by target: those that a method loads where it names none."""

from specbench.core.errors import ConfigError
from specbench.core.resources import EMBEDDED

HEADS = {
    "medusa": {
        f"{EMBEDDED}target": f"{EMBEDDED}medusa",
        "lmsys/vicuna-7b-v1.3": "FasterDecoding/medusa-vicuna-7b-v1.3",
        "lmsys/vicuna-13b-v1.3": "FasterDecoding/medusa-vicuna-13b-v1.3",
        "lmsys/vicuna-33b-v1.3": "FasterDecoding/medusa-vicuna-33b-v1.3",
    },
    "eagle": {
        f"{EMBEDDED}target": f"{EMBEDDED}eagle",
        "lmsys/vicuna-7b-v1.3": "yuhuili/EAGLE-Vicuna-7B-v1.3",
        "lmsys/vicuna-13b-v1.3": "yuhuili/EAGLE-Vicuna-13B-v1.3",
        "lmsys/vicuna-33b-v1.3": "yuhuili/EAGLE-Vicuna-33B-v1.3",
        "meta-llama/Llama-3.1-8B-Instruct": "yuhuili/EAGLE-LLaMA3.1-Instruct-8B",
    },
    "eagle3": {
        f"{EMBEDDED}target": f"{EMBEDDED}eagle3",
        "lmsys/vicuna-13b-v1.3": "yuhuili/EAGLE3-Vicuna1.3-13B",
        "meta-llama/Llama-3.1-8B-Instruct": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
        "meta-llama/Llama-3.3-70B-Instruct": "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B",
        "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": "yuhuili/EAGLE3-DeepSeek-R1-Distill-LLaMA-8B",
    },
}


def head_of(kind: str, target: str) -> str:
    """Returns the head of a target, by kind: medusa, eagle or eagle3. Raises ConfigError where none is known."""
    if target in HEADS[kind]:
        return HEADS[kind][target]
    raise ConfigError(
        f"drafter.path is missing: target '{target}' has no published {kind} head: give --set drafter.path=DIR, or "
        f"train one with `specbench train {kind} --target {target}`"
    )
