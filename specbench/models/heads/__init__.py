"""Draft heads: small networks that draft from the hidden states of the target. `HEADS` names the published heads by
target, which methods load if they name none."""

from specbench.core.environment import EMBEDDED
from specbench.core.errors import ConfigError

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
        "meta-llama/Llama-2-7b-chat-hf": "yuhuili/EAGLE-llama2-chat-7B",
        "meta-llama/Llama-2-13b-chat-hf": "yuhuili/EAGLE-llama2-chat-13B",
        "meta-llama/Llama-2-70b-chat-hf": "yuhuili/EAGLE-llama2-chat-70B",
        "meta-llama/Meta-Llama-3-8B-Instruct": "yuhuili/EAGLE-LLaMA3-Instruct-8B",
        "meta-llama/Meta-Llama-3-70B-Instruct": "yuhuili/EAGLE-LLaMA3-Instruct-70B",
        "meta-llama/Llama-3.1-8B-Instruct": "yuhuili/EAGLE-LLaMA3.1-Instruct-8B",
        "Qwen/Qwen2-7B-Instruct": "yuhuili/EAGLE-Qwen2-7B-Instruct",
        "Qwen/Qwen2-72B-Instruct": "yuhuili/EAGLE-Qwen2-72B-Instruct",
    },
    "eagle3": {
        f"{EMBEDDED}target": f"{EMBEDDED}eagle3",
        "lmsys/vicuna-13b-v1.3": "yuhuili/EAGLE3-Vicuna1.3-13B",
        "meta-llama/Llama-3.1-8B-Instruct": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
        "meta-llama/Llama-3.3-70B-Instruct": "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B",
        "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": "yuhuili/EAGLE3-DeepSeek-R1-Distill-LLaMA-8B",
        "Qwen/Qwen3-4B": "deepseek-ai/eagle3_qwen3_4b_ttt7",
        "Qwen/Qwen3-8B": "RedHatAI/Qwen3-8B-speculator.eagle3",
        "Qwen/Qwen3-14B": "RedHatAI/Qwen3-14B-speculator.eagle3",
        "Qwen/Qwen3-32B": "RedHatAI/Qwen3-32B-speculator.eagle3",
        "Qwen/Qwen3-30B-A3B-Instruct-2507": "lmsys/SGLang-EAGLE3-Qwen3-30B-A3B-Instruct-2507-SpecForge-Nex",
        "Qwen/Qwen3-235B-A22B-Instruct-2507": "lmsys/SGLang-EAGLE3-Qwen3-235B-A22B-Instruct-2507-SpecForge-Meituan",
        "Qwen/Qwen3-Coder-30B-A3B-Instruct": "lmsys/SGLang-EAGLE3-Qwen3-Coder-30B-A3B-Instruct-SpecForge",
        "openai/gpt-oss-20b": "RedHatAI/gpt-oss-20b-speculator.eagle3",
        "openai/gpt-oss-120b": "lmsys/EAGLE3-gpt-oss-120b-bf16",
    },
    "peagle": {"openai/gpt-oss-120b": "amazon/gpt-oss-120b-p-eagle"},
    "dflash": {
        "Qwen/Qwen3-4B": "deepseek-ai/dflash_qwen3_4b_block7",
        "Qwen/Qwen3-8B": "z-lab/Qwen3-8B-DFlash-b16",
    },
    "dspark": {"Qwen/Qwen3-4B": "deepseek-ai/dspark_qwen3_4b_block7"},
    "domino": {
        "Qwen/Qwen3-4B": "Huang2020/Qwen3-4B-Domino-b16",
        "Qwen/Qwen3-8B": "Huang2020/Qwen3-8B-Domino-b16",
    },
}
TRAINED_HERE = ("medusa", "eagle", "eagle3", "peagle", "mtp", "dflash", "dspark", "domino")


def published_head(kind: str, target: str) -> str:
    """Returns the published head of a kind, a key of `HEADS`, for a target. Raises ConfigError without one."""
    if target in HEADS[kind]:
        return HEADS[kind][target]
    remedy = f", or train one with `specbench train {kind} --target {target}`" if kind in TRAINED_HERE else ""
    raise ConfigError(
        f"drafter.path is missing: target '{target}' has no published {kind} head: give --set drafter.path=DIR{remedy}"
    )
