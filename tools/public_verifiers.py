"""Verifiers of other packages as functions that `specbench conformance` can call.

`python -m tools.public_verifiers` tests those whose package is installed (`pip install flashspec economize specdec
mini-infer`, `pip install --no-deps vllm-ascend`) and prints the table of docs/guide/verifiers.md. Most are called as
`--adapter torch` calls a function: p [n + 1, vocab], q [n, vocab] for chains and [n + 1, vocab] for trees, drafts [n].
"""

import argparse
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import module_from_spec, spec_from_file_location
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import MagicMock, patch

import torch
from torch import Generator, Tensor

from specbench.analysis.conformance.adapters import VLLM, Adapter, TorchFunction, Transformers
from specbench.analysis.conformance.kit import Report, run_conformance
from specbench.analysis.conformance.tables import Kind
from specbench.core.table import markdown_table


def flashspec_step(p: Tensor, q: Tensor, drafts: Tensor, generator: Generator) -> list[int]:
    from flashspec.sampling.rejection import rejection_step

    (found,) = rejection_step(drafts[None], q.log()[None], p.log()[None], generator=generator).tolist()
    return [*drafts[: found[0]].tolist(), found[1]]


class Given:
    """A sampler of economize whose distributions are the rows that it is asked about."""

    greedy = False

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    def distribution(self, logits: Tensor, history: Tensor) -> Tensor:
        return logits

    def distributions(self, logits: Tensor) -> Tensor:
        return logits

    def generator_for(self, device: torch.device) -> Generator:
        return self._generator

    def __call__(self, logits: Tensor, history: Tensor) -> int:
        return int(torch.multinomial(logits, 1, generator=self._generator))


def economize_verifier() -> Any:
    from economize.decoding.config import DecodeConfig
    from economize.decoding.verifiers import RejectionVerifier

    return RejectionVerifier(DecodeConfig())


def economize_chain(p: Tensor, q: Tensor, drafts: Tensor, generator: Generator) -> list[int]:
    tokens = drafts.tolist()
    num, token = economize_verifier().verify(p, tokens, q, Given(generator), drafts, 0)
    return [*tokens[:num], token]


def economize_batch(p: Tensor, q: Tensor, drafts: Tensor, generator: Generator) -> list[int]:
    from economize.decoding.protocols import Draft

    draft = Draft(drafts[None], [len(drafts)], probs=q[None])
    num, token = economize_verifier().verify_batch(p[None], draft, Given(generator), drafts[None], [0])
    return [*drafts[: int(num)].tolist(), int(token)]


def economize_tree(p: Tensor, q: Tensor, drafts: Tensor, generator: Generator, parents: Tensor) -> list[int]:
    """Of siblings that were drawn independently."""
    return _economize_tree(p, q[parents + 1], drafts, generator, parents)


def economize_tree_without_replacement(
    p: Tensor, q: Tensor, drafts: Tensor, generator: Generator, parents: Tensor
) -> list[int]:
    """q is that of each child after its earlier siblings, as the verifier asks."""
    rows = q[parents + 1]
    for node, row in enumerate(rows):
        before = [other for other in range(node) if parents[other] == parents[node]]
        row[drafts[before]] = 0
        row /= row.sum()
    return _economize_tree(p, rows, drafts, generator, parents)


def _economize_tree(p: Tensor, rows: Tensor, drafts: Tensor, generator: Generator, parents: Tensor) -> list[int]:
    from economize.decoding.protocols import Draft

    draft = Draft(drafts[None], [len(drafts)], parents[None], rows[None])
    (path,), (token,) = economize_verifier().verify_tree(p[None], draft, Given(generator))
    return [*drafts[path].tolist(), token]


def seeded(generator: Generator) -> None:
    """Seeds the draws of a verifier that takes no generator."""
    torch.manual_seed(int(torch.randint(1 << 62, (), generator=generator)))


def specdec_verify(p: Tensor, q: Tensor, drafts: Tensor, generator: Generator) -> list[int]:
    from specdec.decoder import SpecDecoder

    seeded(generator)
    decoder = SpecDecoder.__new__(SpecDecoder)  # whose constructor loads two models
    decoder.device = "cpu"
    decoder.big_model = lambda ids: SimpleNamespace(logits=p.log()[None])
    found: list[int] = decoder.verify(torch.zeros((1, 1), dtype=torch.long), drafts.tolist(), list(q[:, None]))
    return found


def mini_infer_step(p: Tensor, q: Tensor, drafts: Tensor, generator: Generator) -> list[int]:
    """The function drafts, too: its first draws are the drafts that are given."""
    from mini_infer.speculative.verifier import speculative_step

    seeded(generator)
    given, multinomial = iter(drafts.tolist()), torch.multinomial

    def draw(probs: Tensor, num_samples: int) -> Tensor:
        token = next(given, None)
        return multinomial(probs, num_samples) if token is None else torch.tensor([[token]])

    def drafter(ids: Tensor) -> tuple[Tensor, None]:
        return q.log()[None, : ids.shape[1]], None

    with patch.object(torch, "multinomial", draw):
        found: list[int]
        found, _ = speculative_step(
            lambda ids: (p.log()[None], None), drafter, torch.zeros((1, 1), dtype=torch.long), len(drafts), 1.0
        )
    return found


ASCEND = "vllm_ascend/sample/rejection_sampler.py"
IMPORTED = (  # by that file
    "vllm", "vllm.distributed", "vllm.distributed.parallel_state", "vllm.logger", "vllm.triton_utils", "vllm.v1",
    "vllm.v1.outputs", "vllm.v1.sample", "vllm.v1.sample.logits_processor", "vllm.v1.sample.logits_processor.builtin",
    "vllm.v1.sample.metadata", "vllm.v1.sample.ops", "vllm.v1.sample.ops.bad_words",
    "vllm.v1.sample.rejection_sampler", "vllm.v1.sample.sampler", "vllm.v1.spec_decode",
    "vllm.v1.spec_decode.metadata", "vllm_ascend", "vllm_ascend.ascend_config", "vllm_ascend.ops",
    "vllm_ascend.ops.triton", "vllm_ascend.ops.triton.reject_sample", "vllm_ascend.sample",
    "vllm_ascend.sample.penalties", "vllm_ascend.sample.sampler", "vllm_ascend.utils",
)  # fmt: skip


class UnpinnedTorch:
    """torch, but for memory that is pinned for an accelerator."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(torch, name)
        if name not in ("arange", "full", "ones", "tensor", "zeros"):
            return found
        return lambda *given, pin_memory=False, **named: found(*given, **named)


@cache
def ascend_function(block: bool) -> Callable[..., Any]:
    """Returns the sampler of vllm-ascend as it runs without its kernels, in torch. Of vLLM it imports constants and the
    draw of uniform numbers, which stand here; nothing else of what it imports is called."""
    modules = {name: MagicMock() for name in IMPORTED}
    modules["vllm.triton_utils"].HAS_TRITON = False
    sampler = modules["vllm.v1.sample.rejection_sampler"]
    sampler.RejectionSampler, sampler.MAX_SPEC_LEN = object, 128
    sampler.PLACEHOLDER_TOKEN_ID, sampler.GREEDY_TEMPERATURE = -1, 0
    sampler.generate_uniform_probs = lambda num, drafts, generators, device: torch.rand(num, dtype=torch.float64)
    config = modules["vllm_ascend.ascend_config"].get_ascend_config.return_value
    config.enable_reduce_sample = False
    config.rejection_sampler_config.enable_block_verify = block
    config.rejection_sampler_config.enable_entropy_verify = False
    spec = spec_from_file_location("ascend_sampler", str(distribution("vllm-ascend").locate_file(ASCEND)))
    assert spec is not None and spec.loader is not None
    module: Any = module_from_spec(spec)
    with patch.dict(sys.modules, modules):
        spec.loader.exec_module(module)
    module.torch = UnpinnedTorch()
    function: Callable[..., Any] = module.rejection_sample
    return function


def ascend(*given: Any) -> Any:
    return ascend_function(False)(*given)


def ascend_block(*given: Any) -> Any:
    return ascend_function(True)(*given)


def transformers_sampling(*arguments: Any) -> Any:
    from transformers.generation.utils import _speculative_sampling

    return _speculative_sampling(*arguments)


class Verifier(NamedTuple):
    package: str
    what: str
    function: Any
    kind: Kind


DRAWS, SEED = 4000, 0
VERIFIERS = (
    Verifier("transformers", "`_speculative_sampling`", transformers_sampling, "chain"),
    Verifier("flashspec", "`sampling.rejection.rejection_step`", flashspec_step, "chain"),
    Verifier("economize", "`RejectionVerifier.verify`", economize_chain, "chain"),
    Verifier("economize", "`RejectionVerifier.verify_batch`", economize_batch, "chain"),
    Verifier("economize", "`RejectionVerifier.verify_tree`", economize_tree, "tree"),
    Verifier(
        "economize", "`RejectionVerifier.verify_tree`", economize_tree_without_replacement,
        "tree:without_replacement",
    ),
    Verifier("specdec", "`SpecDecoder.verify`", specdec_verify, "chain"),
    Verifier("mini-infer", "`speculative.verifier.speculative_step`", mini_infer_step, "chain"),
    Verifier("vllm-ascend", "`sample.rejection_sampler.rejection_sample`", ascend, "chain"),
    Verifier("vllm-ascend", "the same with `enable_block_verify`", ascend_block, "chain"),
)  # fmt: skip
ADAPTERS: dict[Any, type[Adapter]] = {transformers_sampling: Transformers, ascend: VLLM, ascend_block: VLLM}


def line_of(verifier: Verifier) -> list[str]:
    """Returns the line of the table."""
    try:
        number = version(verifier.package)
    except PackageNotFoundError:
        return [f"{verifier.package}, {verifier.what}", "–", verifier.kind, "not installed", "–"]
    torch.manual_seed(SEED)  # some draw from torch's own generator
    adapter = ADAPTERS.get(verifier.function, TorchFunction)
    called = adapter(verifier.function, verifier.function.__name__, SEED)
    report = run_conformance(called, [verifier.kind], DRAWS, SEED, "torch", lambda text: None)
    return [f"{verifier.package}, {verifier.what}", number, verifier.kind, result(report), f"{report.p_value:.2g}"]


def result(report: Report) -> str:
    passed = f"{sum(table.passed for table in report.tables)} of {len(report.tables)} tables pass"
    if report.failed is None:
        return passed
    mistake = report.mistake or f"none known; the nearest: {report.nearest}"
    return f"{passed}; first failure: {report.failed.name}; likely mistake: {mistake}"


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    lines = [line_of(verifier) for verifier in VERIFIERS]
    print(markdown_table(["verifier", "version", "drafts", "result", "p-value"], lines))


if __name__ == "__main__":
    main()
