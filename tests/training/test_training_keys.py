"""The help of `specbench train` names every key of --set, with the default and the meaning that the code has."""

from collections.abc import Callable
from typing import Any

import pytest

from specbench.cli.train import spec_keys
from specbench.core import dotted
from specbench.specs.components import Spec, build
from specbench.training.spec import CORPUS_MODELS, HEADS, NOT_FOR_HEADS, TrainSpec

KINDS = (
    "scdf",
    "distill",
    "finetune",
    "medusa",
    "eagle",
    "eagle3",
    "peagle",
    "mtp",
    "dflash",
    "dspark",
    "domino",
    *CORPUS_MODELS,
)
BASE: dict[str, Any] = {"data": {"tasks": ["world:mgsm"]}, "output": "out"}


def spec(kind: str, data: dict[str, Any]) -> Spec:
    model: type[Spec] = CORPUS_MODELS.get(kind, TrainSpec)
    return build(model, {**data, "kind": kind})


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_of_a_kind_is_named_with_its_default_and_its_meaning(kind: str) -> None:
    named = {key.key: key for key in spec_keys(kind)}
    others = set(KINDS) - {kind}
    without = {*others, *(NOT_FOR_HEADS if kind in HEADS else ())}
    made = spec(kind, BASE).model_dump(exclude={"kind", *without})
    assert set(dotted.flat(made)) <= set(named)
    for key in named.values():
        assert key.meaning, key.key
        if not key.key.startswith("lora.") and key.key not in ("data.tasks", "output"):
            assert dotted.get(made, key.key) in (key.value, (key.value,))


@pytest.mark.parametrize("kind", KINDS)
def test_every_named_key_can_be_set(kind: str) -> None:
    for key in spec_keys(kind):
        if key.key not in ("data.tasks", "output"):
            spec(kind, dotted.put(BASE, key.key, key.value))
    assert ("lora.rank" in {key.key for key in spec_keys(kind)}) == (kind in ("scdf", "distill", "finetune"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_help_ends_with_the_keys(specbench: Callable[..., tuple[int, str, str]], kind: str) -> None:
    code, out, _ = specbench("train", kind, "--help")
    assert code == 0
    options, _, listed = out.partition("Keys of --set and --config:")
    assert "--config" in options and "\n  seed = 0: " in listed
    assert ("\n  scdf.estimator = full (full, sampled): " in listed) == (kind == "scdf")
    assert ("\n  learning_rate = [0.0001, 5e-05, 2e-05]: " in listed) == (kind == "distill")
    assert ("\n  order = 2: " in listed) == (kind == "ngram")
