"""Other names of options: with underscores, or as in lm-eval. The help does not list them."""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from specbench.core.errors import ConfigError, nearest

SAME_VALUE = {
    "--tasks": "--task", "--output-path": "--output", "--include-path": "--lm-eval-include",
    "--limit": "--limit-report",
}  # fmt: skip
# The options that take the values of --model_args.
MODEL_ARGS = {
    "pretrained": "--target", "revision": "--target-revision", "dtype": "--dtype", "device": "--device",
    "trust_remote_code": "--trust-remote-code", "drafter": "--drafter", "method": "--method",
    "quantize": "--quantize", "device_map": "--device-map",
    "chat_template_args": "--chat-template-args",
}  # fmt: skip
NUM_SHOTS = "--set fewshot.num_shots="  # the meaning of --num_fewshot
REMEDIES = {  # for options that are set in another way
    "--batch-size": "sequences are decoded one at a time, since speculative decoding is measured at batch size 1: "
    "remove it (servers can be measured with concurrent requests)",
    "--gen-kwargs": "generation is set in the task's file: give --set generation.KEY=VALUE for each key, such as "
    "--set generation.temperature=0.8",
    **{
        f"--{name.replace('_', '-')}": f"this is set in the task's file: give --set generation.{name}=VALUE"
        for name in ("temperature", "top_k", "top_p", "max_new_tokens")
    },
    "--model": "transformers loads the models: give --target MODEL, or --model_args pretrained=MODEL",
}


def translate_options(words: Sequence[str], known: Collection[str]) -> list[str]:
    """Returns the words of a command line with other names of options replaced by the command's names.

    `known`: the command's options. Unknown options are kept. Raises ConfigError for options of lm-eval and other
    programs that are set in another way here, and for an option that is given under two names.
    """
    rest, found = iter(words), []
    renamed: dict[str, str] = {}  # options given under another name, with this name
    for word in rest:
        name, equals, value = word.partition("=")
        dashed = name.replace("_", "-")
        if not word.startswith("--") or name in known:
            found.append(word)
        elif dashed in known or SAME_VALUE.get(dashed) in known:
            option = dashed if dashed in known else SAME_VALUE[dashed]
            renamed[option] = name
            found.append(f"{option}{equals}{value}")
        elif dashed in REMEDIES and "--target" in known:
            given = value if equals else next(rest, "")
            if (dashed, given) != ("--batch-size", "1"):
                raise ConfigError(f"{name} {given}".rstrip() + f": {REMEDIES[dashed]}")
        elif dashed == "--model-args" and "--target" in known:
            options = [*model_options(name, value if equals else next(rest, ""), known)]
            renamed |= {option: name for option in options if option in known}
            found += options
        elif dashed == "--num-fewshot" and "--set" in known:
            found += f"{NUM_SHOTS}{value if equals else next(rest, '')}".split(" ", 1)
        elif dashed == "--apply-chat-template" and "--chat" in known:
            renamed["--chat"] = name
            found += ["--chat", "always"]
            if equals:
                raise ConfigError(f"{word}: only the tokenizer's template can be used: give {name} without a value")
        else:
            found.append(word)
    num_given = Counter(word.partition("=")[0] for word in found)
    for option, name in renamed.items():
        if num_given[option] > 1:
            raise ConfigError(f"{option} is given twice, once as {name}: remove one")
    return found


def restore_option_names(message: str, words: Sequence[str]) -> str:
    """Returns a message with --num_fewshot in place of --set fewshot.num_shots if the user gave the former."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == "--num-fewshot":
            given = value if equals else following
            message = message.replace(f"{NUM_SHOTS}{given}", f"{name} {given}")
    return message


def model_options(option: str, text: str, known: Collection[str]) -> Iterator[str]:
    """Yields the command's options for --model_args: KEY=VALUE separated by commas, or JSON."""
    for key, value in model_args(option, text).items():
        name = MODEL_ARGS.get(key, "")
        if name not in known:
            keys = [key for key, name in MODEL_ARGS.items() if name in known]
            raise ConfigError(f"{option} {key}={value}: {nearest(key, keys)}")
        if name != "--trust-remote-code":
            yield from (name, str(value))
        elif str(value).lower() == "true":
            yield name


def model_args(option: str, text: str) -> Mapping[str, Any]:
    """Returns the keys and values of --model_args."""
    if text.strip().startswith("{"):
        try:
            found: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{option} {text:.60}: is not valid JSON ({error})") from error
        return found
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    if wrong := [key for key, equals, _ in pairs if not equals]:
        raise ConfigError(f"{option} {wrong[0]}: write it as KEY=VALUE, such as pretrained=MODEL,dtype=bfloat16")
    return {key.strip(): value.strip() for key, _, value in pairs}
