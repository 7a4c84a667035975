"""Public models, each loaded once for the tests of a worker, in float32 unless their names say otherwise."""

from pathlib import Path

import pytest

from specbench.models.causal_lm import CausalLM
from specbench.models.loading import load_model
from specbench.training.layers import with_layers

DROPPED = (8, 14, 20)  # of the 30 layers: about two of three draft tokens are then accepted


@pytest.fixture(scope="session")
def smollm(real_models: Path) -> CausalLM:
    return load_model(str(real_models / "smollm2-135m"), device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def smollm_drafter(smollm: CausalLM) -> CausalLM:
    """A drafter of SmolLM2's vocabulary."""
    return with_layers(smollm, [number for number in range(30) if number not in DROPPED])


@pytest.fixture(scope="session")
def gemma(real_models: Path) -> CausalLM:
    return load_model(str(real_models / "gemma3-270m"), device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def qwen(real_models: Path) -> CausalLM:
    return load_model(str(real_models / "qwen-coder-0.5b"), device="cpu", dtype="float32")
