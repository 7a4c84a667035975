"""Acceptance profiles of made-up steps."""

from collections.abc import Sequence

import numpy as np

from specbench.analysis.profile.profile import cell_of_steps
from specbench.records.profile import Profile, ProfileConditions, ProfileEntry, ProfileModel, ProfilePrompts

PROMPTS = ProfilePrompts(
    task="gsm8k@1:0", subset="default", language="en", examples=8, repeats=1, data_source="sample",
    data_location="gsm8k.jsonl", data_revision=None, shots=None, system=None, template_date=None, seed=0,
    max_new_tokens=64, stop=(),
)  # fmt: skip


def steps_of(counts: Sequence[tuple[int, int, int, int]], num_prompts: int = 1) -> np.ndarray:
    """Steps with these drafted, verified, accepted and emitted tokens, dealt to prompts in turn."""
    steps = np.zeros((len(counts), 8), dtype=np.int32)
    steps[:, 0] = np.arange(len(counts)) % num_prompts
    steps[:, 4:] = counts
    return steps


def drawn_steps(rates: Sequence[float], number: int, seed: int, cut: float = 0.0) -> list[tuple[int, int, int, int]]:
    """Steps of full drafts, whose tokens are accepted at these conditional rates. `cut`: the share of the drafts at one
    of whose tokens the text ends, if it is accepted."""
    draws = np.random.default_rng(seed)
    found = []
    for _ in range(number):
        accepted = next((place for place, rate in enumerate(rates) if draws.random() >= rate), len(rates))
        end = int(draws.integers(1, len(rates) + 1)) if draws.random() < cut else len(rates) + 1
        if accepted >= end:
            found.append((len(rates), end, end, end))
        else:
            found.append((len(rates), min(accepted + 1, len(rates)), accepted, accepted + 1))
    return found


def entry(counts: Sequence[tuple[int, int, int, int]], num_draft_tokens: int, **changes) -> ProfileEntry:
    """An entry of 8 prompts with a total only."""
    fields = {
        "id": f"sd-k{num_draft_tokens}", "method": "sd@1:0", "lossless": True, "shape": "chain",
        "num_draft_tokens": num_draft_tokens, "rule": "rejection", "options": {},
        "target": ProfileModel(name="org/target", revision=None, precision="float32"),
        "drafter": ProfileModel(name="org/drafter", revision=None, precision="float32"),
        "conditions": ProfileConditions(
            temperature=0.0, top_k=None, top_p=None, chat=False, thinking="off", memory=None, prompts=(PROMPTS,)
        ),
        "sources": (), "cells": (cell_of_steps(steps_of(counts, 8), num_draft_tokens),),
    }  # fmt: skip
    return ProfileEntry(**{**fields, **changes})


def profile(*entries: ProfileEntry) -> Profile:
    return Profile(specbench="0.1.0", created="2026-01-01T00:00:00+00:00", entries=entries)
