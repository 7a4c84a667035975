"""Verifiers of other packages as functions that `specbench conformance` can call.

`python -m tools.public_verifiers` tests those whose package is installed (`pip install flashspec economize specdec
mini-infer`) and prints the table of docs/guide/verifiers.md. All are called as `--adapter torch` calls a function:
p [n + 1, vocab], q [n, vocab] for chains and [n + 1, vocab] for trees, drafts [n].
"""

import argparse
from importlib.metadata import PackageNotFoundError, version
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Generator, Tensor

from specbench.analysis.conformance.adapters import TorchFunction, Transformers
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
)  # fmt: skip


def line_of(verifier: Verifier) -> list[str]:
    """Returns the line of the table."""
    try:
        number = version(verifier.package)
    except PackageNotFoundError:
        return [f"{verifier.package}, {verifier.what}", "–", verifier.kind, "not installed", "–"]
    adapter = Transformers if verifier.function is transformers_sampling else TorchFunction
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
