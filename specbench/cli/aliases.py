"""Other names of options: with underscores, and as lm-eval calls the same things. The help does not list them."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from specbench.core.errors import ConfigError, nearest

SAME_VALUE = {
    "--tasks": "--task", "--output-path": "--output", "--include-path": "--lm-eval-include",
    "--limit": "--limit-report",
}  # fmt: skip
# Keys of --model_args, with the options that take their values.
MODEL_ARGS = {
    "pretrained": "--target", "revision": "--target-revision", "dtype": "--dtype", "device": "--device",
    "trust_remote_code": "--trust-remote-code", "drafter": "--drafter", "method": "--method",
    "quantize": "--quantize", "device_map": "--device-map",
    "chat_template_args": "--chat-template-args",
}  # fmt: skip
NUM_SHOTS = "--set fewshot.num_shots="  # what --num_fewshot stands for
ANSWERS = {
    "--batch-size": "one sequence is decoded at a time, as speculative decoding is measured at batch size 1: leave it "
    "out; a served engine measures concurrent requests",
    "--gen-kwargs": "the task's file has the keys of generation: give --set generation.KEY=VALUE for each, such as "
    "--set generation.temperature=0.8",
    **{
        f"--{name.replace('_', '-')}": f"the task's file has it: give --set generation.{name}=VALUE"
        for name in ("temperature", "top_k", "top_p", "max_new_tokens")
    },
    "--model": "models are loaded by transformers: give --target MODEL, or --model_args pretrained=MODEL",
}


def with_own_names(words: Sequence[str], known: Collection[str]) -> list[str]:
    """Returns the words of a command line with options that have another name under their own.

    `known`: the options of the command. An option that neither it nor the table has stays as it is. Raises ConfigError
    for options that lm-eval and other programs have and that are set in another way here.
    """
    rest, found = iter(words), []
    for word in rest:
        name, equals, value = word.partition("=")
        dashed = name.replace("_", "-")
        if not word.startswith("--") or name in known:
            found.append(word)
        elif dashed in known or SAME_VALUE.get(dashed) in known:
            found.append(f"{SAME_VALUE.get(dashed, dashed) if dashed not in known else dashed}{equals}{value}")
        elif dashed in ANSWERS and "--target" in known:
            given = value if equals else next(rest, "")
            if (dashed, given) != ("--batch-size", "1"):
                raise ConfigError(f"{name} {given}".rstrip() + f": {ANSWERS[dashed]}")
        elif dashed == "--model-args" and "--target" in known:
            found += model_words(name, value if equals else next(rest, ""), known)
        elif dashed == "--num-fewshot" and "--set" in known:
            found += f"{NUM_SHOTS}{value if equals else next(rest, '')}".split(" ", 1)
        elif dashed == "--apply-chat-template" and "--chat" in known:
            found += ["--chat", "always"]
            if equals:
                raise ConfigError(f"{word}: the template is the tokenizer's own: give {name} without a value")
        else:
            found.append(word)
    return found


def with_given_names(message: str, words: Sequence[str]) -> str:
    """Returns a message about --set fewshot.num_shots with --num_fewshot in its place, where the words have that."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == "--num-fewshot":
            given = value if equals else following
            message = message.replace(f"{NUM_SHOTS}{given}", f"{name} {given}")
    return message


def model_words(option: str, text: str, known: Collection[str]) -> Iterator[str]:
    """Yields the options that load the model as --model_args says: KEY=VALUE separated by commas, or JSON."""
    for key, value in model_args(option, text).items():
        own = MODEL_ARGS.get(key, "")
        if own not in known:
            raise ConfigError(
                f"{option} {key}={value}: {nearest(key, [k for k, name in MODEL_ARGS.items() if name in known])}"
            )
        if own != "--trust-remote-code":
            yield from (own, str(value))
        elif str(value).lower() == "true":
            yield own


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
