"""Warming up: a subset at a time, just before it is measured, and nothing twice."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.decoding.decoder import DraftingDecoder
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import ModelPair
from specbench.running.compose import compose
from specbench.running.warm_up import TEXT, warm_up
from specbench.specs.catalogue import load_method
from tests import tiny

Run = Callable[..., list[tuple[str, str]]]
LENGTHS = {"en": 1, "de": 30, "fr": 5}  # of the prompts: de needs a longer warm-up than en, fr a shorter one


@pytest.fixture
def decoded(
    monkeypatch: pytest.MonkeyPatch, specbench: Callable[..., tuple[int, str, str]], tiny_pair: tuple[str, str],
    tmp_path: Path,
) -> Run:  # fmt: skip
    """What a run decodes, in order: the method and the subset, `warm-up` for the filler."""
    for subset, length in LENGTHS.items():
        rows = "".join(f"{subset}: {'why ' * length}\t{n}\n" for n in range(2))
        (tmp_path / f"mgsm_{subset}.tsv").write_text(rows, encoding="utf-8")
    seen: list[tuple[str, str]] = []
    generate = DraftingDecoder.generate

    def spy(self: DraftingDecoder, prompt_ids: list[int], *given: Any, **named: Any) -> Any:
        text = self.model.decode_text(prompt_ids)
        seen.append((self.method.name, next((s for s in LENGTHS if f"{s}: why" in text), "warm-up")))
        assert (TEXT[:10] in text) == (seen[-1][1] == "warm-up")
        return generate(self, prompt_ids, *given, **named)

    monkeypatch.setattr(DraftingDecoder, "generate", spy)

    def run(subsets: str, *more: str) -> list[tuple[str, str]]:
        seen.clear()
        code, _, err = specbench(
            "run", "--task", "mgsm", "--method", "sd", "--data", str(tmp_path), "--subset", subsets, "--output", "out",
            "--target", tiny_pair[0], "--drafter", tiny_pair[1], "--set", "generation.max_new_tokens=8", *more,
        )  # fmt: skip
        assert code == 0, err
        return list(seen)

    return run


def test_a_subset_is_warmed_up_just_before_it_is_measured(decoded: Run) -> None:
    places = [place for _, place in decoded("en,de,fr")]
    assert places == ["warm-up"] * 2 + ["en"] * 4 + ["warm-up"] * 2 + ["de"] * 4 + ["fr"] * 4


def test_what_is_measured_already_is_not_warmed_up(decoded: Run) -> None:
    decoded("en,de")
    assert decoded("en,de") == []
    assert [place for _, place in decoded("en,de,fr")] == ["warm-up"] * 2 + ["fr"] * 4


def test_the_same_decoder_is_warmed_up_again_on_more_tokens_only(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    monkeypatch.setattr(DraftingDecoder, "generate", lambda self, ids, *given, **named: lengths.append(len(ids)))
    pair = ModelPair(tiny.causal_lm())
    decoder, other = (compose(load_method("ar"), pair, sampling) for sampling in (Sampling(), Sampling(1.0)))
    for num_tokens in (50, 40, 50, 60):
        warm_up([decoder], num_tokens, 1024)
    warm_up([decoder], 900, 60)
    assert lengths == [34, 44]
    warm_up([other], 40, 1024)
    assert lengths == [34, 44, 24]
