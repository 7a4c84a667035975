"""Of a public model, a right pass is taken in every precision, however it rounds, and a faulty one is refused."""

from pathlib import Path

import pytest
import torch

from specbench.models.compiling import CannotCompile
from specbench.models.loading import load_model
from tests.support.passes import FAULTS, SHAPES, passes_with, rounding_once

pytestmark = pytest.mark.real


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@torch.inference_mode()
def test_faults_and_rounding_are_told_apart(dtype: str, real_models: Path) -> None:
    network = load_model(str(real_models / "smollm2-135m"), device="cpu", dtype=dtype).model
    for created in (rounding_once, *FAULTS):
        with pytest.MonkeyPatch.context() as patch:
            passes = passes_with(network, created, patch)
            for shape in SHAPES[1:]:
                passes.fill_example(shape)
                if created is rounding_once:
                    passes.run(shape)
                    continue
                with pytest.raises(CannotCompile, match="gives other "):
                    passes.run(shape)
