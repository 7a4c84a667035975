"""What lm-eval's own filters and metric make of answers, for tests that compare our verdicts with them.

lm-eval, which takes a second, is imported by the tests that use it and not when all tests are collected."""

import types
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

INVALID = "[invalid]"  # what lm-eval's regex filter finds where there is no match
GSM8K = "gsm8k/gsm8k-cot-zeroshot.yaml"


def mgsm(language: str) -> str:
    return f"mgsm/native_cot/mgsm_native_cot_{language}.yaml"


@cache
def config(task: str) -> dict[str, Any]:
    """A task's YAML with what it includes. `task`: the path of the file below lm-eval's folder of tasks."""
    import lm_eval.tasks
    from lm_eval.tasks._yaml_loader import load_yaml

    read: dict[str, Any] = load_yaml(Path(lm_eval.tasks.__file__).parent / task, resolve_func=False)
    return read


def extracted(task: str, name: str, answers: Sequence[str]) -> list[str]:
    """What the filter called `name` finds in each answer."""
    from lm_eval.filters import build_filter_ensemble

    steps = next(each["filter"] for each in config(task)["filter_list"] if each["name"] == name)
    parts = [(step["function"], {k: v for k, v in step.items() if k != "function"} or None) for step in steps]
    asked = [types.SimpleNamespace(resps=[answer], doc={}, filtered_resps={}) for answer in answers]
    build_filter_ensemble(name, parts).apply(asked)
    return [each.filtered_resps[name] for each in asked]


def matches(task: str, found: Sequence[str], references: Sequence[str]) -> list[bool]:
    """The task's metric on each pair."""
    from lm_eval.api.metrics import exact_match_fn

    metric = config(task)["metric_list"][0]
    options = {key: value for key, value in metric.items() if key.startswith(("ignore", "regexes"))}
    pairs = zip(found, references, strict=True)
    return [bool(exact_match_fn(predictions=[a], references=[b], **options)["exact_match"]) for a, b in pairs]


def verdicts(task: str, answers: Sequence[str], references: Sequence[str]) -> list[bool]:
    """lm-eval's verdicts: those of strict-match where it finds a number, else those of flexible-extract."""
    both = zip(extracted(task, "strict-match", answers), extracted(task, "flexible-extract", answers), strict=True)
    return matches(task, [strict if strict != INVALID else flexible for strict, flexible in both], references)


@cache
def math_normalisers() -> dict[str, types.ModuleType]:
    """lm-eval's modules of hendrycks_math and minerva_math. The latter wants an older antlr4 for its parser, which the
    tests do not call."""
    from importlib import import_module, metadata
    from unittest.mock import patch

    actual = metadata.version
    with patch.object(metadata, "version", lambda name: "4.11" if name.startswith("antlr4") else actual(name)):
        return {name: import_module(f"lm_eval.tasks.{name}_math.utils") for name in ("hendrycks", "minerva")}
