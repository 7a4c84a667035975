"""RMS norms as single kernels: which are replaced, and that logits stay as they are."""

import pytest
import torch
from torch.nn import functional

from specbench.models.fused import fusable_norms, fused_norms
from tests.support import tiny


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kind", "are_fusable"), [("llama", True), ("qwen3", True), ("gemma3_text", False)])
def test_norms_that_compute_the_same_are_fused_during_the_block(
    kind: str, are_fusable: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = tiny.network(kind).to(dtype)
    with torch.no_grad():
        for part in network.modules():
            if type(part).__name__.endswith("RMSNorm"):
                part.weight.uniform_(-1.5, 1.5)
    norms = fusable_norms(network)
    assert len(norms) == are_fusable * sum(type(part).__name__.endswith("RMSNorm") for part in network.modules())
    calls = []

    def counted(*given: torch.Tensor) -> torch.Tensor:
        calls.append(given[0].shape)
        return rms_norm(*given)

    rms_norm = functional.rms_norm
    monkeypatch.setattr(functional, "rms_norm", counted)
    ids = torch.arange(8)[None]
    with torch.inference_mode():
        expected = network(ids).logits
        assert not calls
        with fused_norms(norms):
            found = network(ids).logits
        assert len(calls) == len(norms)
        difference = (found - expected).float().norm() / expected.float().norm()
        assert difference < (0.03 if dtype == torch.bfloat16 else 1e-6)  # rounding
        network(ids)
    assert len(calls) == len(norms) and not any("forward" in vars(norm) for norm in norms)


def test_a_norm_that_computes_something_else_is_left_out() -> None:
    network = tiny.network("llama")
    norm = next(part for part in network.modules() if type(part).__name__ == "LlamaRMSNorm")
    num_norms = len(fusable_norms(network))
    norm.variance_epsilon, plain = 1e-3, type(norm).forward
    norm.__class__ = type("OtherRMSNorm", (type(norm),), {"forward": lambda self, states: 2 * plain(self, states)})
    assert len(fusable_norms(network)) == num_norms - 1


def test_states_of_another_dtype_keep_the_kernels_of_the_model() -> None:
    network = tiny.network("llama").to(torch.bfloat16)
    norms = fusable_norms(network)
    states = torch.linspace(-3, 3, len(norms[0].weight))[None]  # float32
    with torch.inference_mode():
        expected = norms[0](states)
        with fused_norms(norms):
            assert torch.equal(norms[0](states), expected)
