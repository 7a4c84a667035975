"""The conformance kit: exact laws, the test's false alarms, wrong verifiers found and named, adapters, bad input."""

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from transformers.generation import utils as generation

from specbench.analysis.conformance import rules
from specbench.analysis.conformance.adapters import ADAPTERS
from specbench.analysis.conformance.kit import (
    Report,
    deviation,
    is_unseen,
    num_cells,
    reachable,
    run_conformance,
    tables_of,
)
from specbench.analysis.conformance.rules import EXACT, MISTAKES, Rule, law, next_tokens
from specbench.analysis.conformance.tables import KINDS, TABLES, Kind, Table
from specbench.decoding.proposal import Proposal, TreeProposal
from specbench.decoding.sampling import DenseProbs, Distributions, Sampling
from specbench.decoding.tree_rules import BlockVerification, KSeq, RecursiveRejection, Traversal
from specbench.decoding.verification import exact_match, rejection
from tests.support import verifiers

Specbench = Callable[..., tuple[int, str, str]]
DRAWS = 1500


def report_of(
    function: Callable[..., Any], *kinds: Kind, seed: int = 0, draws: int = DRAWS, adapter: str = "numpy"
) -> Report:
    kinds = kinds or ("chain",)
    verifier = ADAPTERS[adapter](function, "mine:verify", seed)
    return run_conformance(verifier, kinds, draws, seed, adapter, lambda text: None)


WRONG: list[tuple[Callable[..., Any], type[Rule], tuple[Kind, ...]]] = [
    (verifiers.accepts_all, rules.AcceptsAll, ("chain",)),
    (verifiers.upside_down, rules.Reversed, ("chain",)),
    (verifiers.lenient, rules.Lenient, ("chain",)),
    (verifiers.from_target, rules.NoResidual, ("chain",)),
    (verifiers.absolute, rules.AbsoluteResidual, ("chain",)),
    (verifiers.negative, rules.ReversedResidual, ("chain",)),
    (verifiers.masked, rules.OnlyTokenExcluded, ("chain",)),
    (verifiers.shifted, rules.ShiftedResidual, ("chain",)),
    (verifiers.argmax_of_residual, rules.GreedyResidual, ("chain",)),
    (verifiers.greedy, rules.GreedyTarget, ("chain",)),
    (verifiers.bonus_of_last, rules.BonusOfLastPosition, ("chain",)),
    (verifiers.sharpened, rules.OtherTemperature, ("chain",)),
    (verifiers.one_uniform, rules.OneCoin, ("chain",)),
    (verifiers.summed, rules.CountsAll, ("chain",)),
    (verifiers.best_path, rules.BestPath, ("paths",)),
    (verifiers.tree_stale, rules.StaleTarget, ("tree",)),
    (verifiers.tree_unnormalized, rules.UnnormalizedResidual, ("tree",)),
    (verifiers.tree, rules.WithReplacement, ("tree:without_replacement",)),
    (verifiers.tree_distinct, rules.WithoutReplacement, ("tree",)),
    (verifiers.tree, rules.DrawnInsteadOfFixed, ("tree:fixed",)),
]
RIGHT: list[tuple[Callable[..., Any], tuple[Kind, ...]]] = [
    (verifiers.speculative, ("chain",)),
    (verifiers.naive, ("chain",)),
    (verifiers.paths, ("paths",)),
    (verifiers.tree, ("tree",)),
    (verifiers.tree_distinct, ("tree:without_replacement",)),
    (verifiers.tree_point, ("tree", "tree:without_replacement", "tree:fixed")),
]
NAMES = [f"{function.__name__}-{kinds[0]}" for function, _, kinds in WRONG]


def caught(function: Callable[..., Any], mistake: type[Rule], kinds: tuple[Kind, ...], seed: int, draws: int) -> bool:
    report = report_of(function, *kinds, seed=seed, draws=draws)
    assert report.verdict == "fail" and report.failed is not None, f"seed {seed}: not caught"
    assert report.p_value <= 1e-4 and report.failed.p_value <= 1e-4
    assert report.mistake == mistake.name, f"seed {seed}: named {report.mistake}, nearest {report.nearest}"
    return True


@pytest.mark.parametrize(("function", "mistake", "kinds"), WRONG, ids=NAMES)
def test_a_wrong_verifier_is_caught_and_named(
    function: Callable[..., Any], mistake: type[Rule], kinds: tuple[Kind, ...]
) -> None:
    assert caught(function, mistake, kinds, seed=0, draws=DRAWS)


@pytest.mark.slow
@pytest.mark.parametrize(("function", "mistake", "kinds"), WRONG, ids=NAMES)
def test_a_wrong_verifier_is_caught_and_named_in_20_of_20_seeds(
    function: Callable[..., Any], mistake: type[Rule], kinds: tuple[Kind, ...]
) -> None:
    assert sum(caught(function, mistake, kinds, seed, draws=2000) for seed in range(1, 21)) == 20


@pytest.mark.parametrize(("function", "kinds"), RIGHT, ids=[f"{each.__name__}-{kinds[0]}" for each, kinds in RIGHT])
def test_an_exact_verifier_passes(function: Callable[..., Any], kinds: tuple[Kind, ...]) -> None:
    report = report_of(function, *kinds, draws=2000)
    assert report.verdict == "pass", (report.failed, report.unseen)
    assert report.mistake is None and report.nearest is None and len(report.tables) == len(tables_of(kinds))


@pytest.mark.slow
@pytest.mark.parametrize(("function", "kinds"), RIGHT, ids=[f"{each.__name__}-{kinds[0]}" for each, kinds in RIGHT])
def test_an_exact_verifier_passes_with_every_seed(function: Callable[..., Any], kinds: tuple[Kind, ...]) -> None:
    assert all(report_of(function, *kinds, seed=seed, draws=2000).verdict == "pass" for seed in range(1, 11))


def test_every_known_mistake_has_a_wrong_verifier() -> None:
    assert {mistake for _, mistake, _ in WRONG} == {type(rule) for rule in MISTAKES}


@pytest.mark.parametrize("table", TABLES, ids=[f"{table.kind} {table.name}" for table in TABLES])
def test_the_exact_rule_has_the_target_law_in_rational_numbers(table: Table) -> None:
    """The identity on which the test rests, for each table: given a prefix, the next emitted token has law p."""
    emitted = law(EXACT, table)
    assert sum(emitted.values()) == 1 and sum(mass for mass, _ in table.drafts()) == 1
    following = next_tokens(emitted)
    assert set(following) <= set(reachable(table)), "no token is emitted that p does not allow"
    for prefix, masses in following.items():
        total = sum(masses.values())
        row = table.target(prefix)
        assert {token: mass / total for token, mass in masses.items() if mass} == {
            token: mass for token, mass in enumerate(row) if mass
        }


@pytest.mark.parametrize("rule", MISTAKES, ids=lambda rule: type(rule).__name__)
def test_the_law_of_a_mistake_is_another_one_in_rational_numbers(rule: Rule) -> None:
    made = [table for table in TABLES if rule.is_made_in(table)]
    assert made and all(sum(law(rule, table).values()) == 1 for table in made)

    def differs(table: Table) -> bool:
        return any(
            mass != row[token] * sum(masses.values())
            for prefix, masses in next_tokens(law(rule, table)).items()
            for row in [table.target(prefix)]
            for token, mass in masses.items()
        )

    for kind in {table.kind for table in made}:
        assert any(differs(table) for table in made if table.kind == kind), f"{kind}: no table shows it"


def test_the_laws_of_mistakes_are_told_apart() -> None:
    for kind in KINDS:
        tables = tables_of([kind])
        possible = [rule for rule in MISTAKES if any(rule.is_made_in(table) for table in tables)]
        laws = [[law(rule if rule.is_made_in(table) else EXACT, table) for table in tables] for rule in possible]
        for place, rule in enumerate(possible):
            same = [type(other).__name__ for other, its in zip(possible, laws, strict=True) if its == laws[place]]
            assert same == [type(rule).__name__]


@pytest.mark.parametrize(("total", "probability"), [(7, Fraction(1, 3)), (12, Fraction(1, 10)), (9, Fraction(1, 2))])
def test_a_cell_gives_no_more_false_alarms_than_its_p_value(total: int, probability: Fraction) -> None:
    masses = stats.binom.pmf(range(total + 1), total, float(probability))
    values = np.array([deviation(count, total, probability) for count in range(total + 1)])
    assert all(masses[values <= level].sum() <= level + 1e-12 for level in [*values, 1e-4, 0.01, 0.3])


def test_impossible_tokens_are_certain_failures() -> None:
    assert deviation(0, 50, Fraction(0)) == 1 and deviation(1, 50, Fraction(0)) == 0
    assert deviation(50, 50, Fraction(1)) == 1 and deviation(49, 50, Fraction(1)) == 0


def test_few_draws_prove_nothing() -> None:
    tables = tables_of(["chain"])
    cells = sum(map(num_cells, tables))
    unseen = [rule for rule in MISTAKES if is_unseen(rule, tables, 20, cells)]
    assert unseen and not any(is_unseen(rule, tables, 2000, cells) for rule in MISTAKES)
    report = report_of(verifiers.speculative, draws=20)
    assert report.verdict == "undecided" and set(report.unseen) == {rule.name for rule in unseen}


def test_a_mistake_that_nobody_knows_is_not_named() -> None:
    def verify(p: Any, q: Any, drafts: Any, rng: Any) -> list[int]:
        return [verifiers.pick((p[0] + np.roll(p[0], 1)) / 2, rng)]

    report = report_of(verify)
    assert report.verdict == "fail" and report.mistake is None and report.nearest in {rule.name for rule in MISTAKES}


class Probs(DenseProbs):
    def __init__(self, rows: Any) -> None:
        self.rows = torch.as_tensor(rows)

    @property
    def probs(self) -> torch.Tensor:
        return self.rows


@pytest.mark.parametrize("rule", [rejection, exact_match, BlockVerification()], ids=lambda rule: type(rule).__name__)
def test_the_rules_of_chains_of_this_project_pass(rule: Any) -> None:
    def verify(p: Any, q: Any, drafts: Any, rng: torch.Generator) -> list[int]:
        found = rule(Proposal(drafts.tolist(), Probs(q)), Distributions(p.log(), Sampling(1.0), p), rng)
        return [*drafts.tolist()[: found.num_accepted], found.next_token]

    report = report_of(verify, adapter="torch", draws=400)
    assert report.failed is None


@pytest.mark.parametrize(
    ("rule", "kind"),
    [(RecursiveRejection(), "tree"), (RecursiveRejection(), "tree:without_replacement"),
     (RecursiveRejection(), "tree:fixed"), (Traversal(), "tree"), (exact_match, "tree:fixed"), (KSeq(), "tree")],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)  # fmt: skip
def test_the_rules_of_trees_of_this_project_pass(rule: Any, kind: Kind) -> None:
    draws: Any = kind.partition(":")[2] or "independent"

    def verify(p: Any, q: Any, drafts: Any, rng: torch.Generator, parents: Any) -> list[int]:
        expanded = sorted({*parents.tolist()})
        tree = TreeProposal(
            drafts.tolist(), parents.tolist(), draws, Probs(q[[node + 1 for node in expanded]]), expanded
        )
        found = rule(tree, Distributions(p.log(), Sampling(1.0), p), rng)
        return [*(tree.token_ids[node] for node in found.path), found.next_token]

    report = report_of(verify, kind, adapter="torch", draws=400)
    assert report.failed is None


def vllm_sample(
    draft_token_ids: torch.Tensor, num_draft_tokens: list[int], max_spec_len: int, cu_num_draft_tokens: torch.Tensor,
    draft_probs: torch.Tensor, target_logits: torch.Tensor, bonus_token_ids: torch.Tensor,
    sampling_metadata: SimpleNamespace, *, has_residual: bool = True,
) -> torch.Tensor:  # fmt: skip
    """A kernel with vLLM's signature."""
    assert sampling_metadata.all_random and cu_num_draft_tokens[-1] == len(draft_token_ids)
    found = torch.full((len(num_draft_tokens), max_spec_len + 1), -1, dtype=torch.int32)
    target = target_logits.softmax(dim=-1)
    rest = (target - draft_probs).clamp_min(0) if has_residual else target
    recovered = torch.where(rest.sum(-1, keepdim=True) > 0, rest, target).multinomial(1)[:, 0]
    ids = draft_token_ids.long()[:, None]
    accepted = (torch.rand(len(ids), 1) * draft_probs.gather(1, ids) < target.gather(1, ids))[:, 0].tolist()
    start = 0
    for request, num in enumerate(num_draft_tokens):
        for place in range(num):
            taken = draft_token_ids if accepted[start + place] else recovered
            found[request, place] = taken[start + place]
            if not accepted[start + place]:
                break
        else:
            found[request, num] = bonus_token_ids[request, 0]
        start += num
        assert start == cu_num_draft_tokens[request]
    return found


def vllm_sample_of_probs(
    draft_token_ids: torch.Tensor, num_draft_tokens: list[int], max_spec_len: int, cu_num_draft_tokens: torch.Tensor,
    draft_probs: torch.Tensor, target_probs: torch.Tensor, bonus_token_ids: torch.Tensor, sampling_metadata: Any,
) -> torch.Tensor:  # fmt: skip
    """The signature of earlier versions."""
    assert torch.allclose(target_probs.sum(-1), torch.ones(len(target_probs)))
    return vllm_sample(
        draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens, draft_probs, target_probs.log(),
        bonus_token_ids, sampling_metadata,
    )  # fmt: skip


@pytest.mark.parametrize("kernel", [vllm_sample, vllm_sample_of_probs])
def test_kernels_with_the_signature_of_vllm(kernel: Callable[..., Any]) -> None:
    assert report_of(kernel, adapter="vllm", draws=2000).verdict == "pass"


def test_a_wrong_kernel_with_the_signature_of_vllm_is_named() -> None:
    report = report_of(lambda *given: vllm_sample(*given, has_residual=False), adapter="vllm")
    assert report.mistake == rules.NoResidual.name


def sglang_sample(
    predicts: torch.Tensor, accept_index: torch.Tensor, accept_token_num: torch.Tensor, candidates: torch.Tensor,
    retrive_index: torch.Tensor, retrive_next_token: torch.Tensor, retrive_next_sibling: torch.Tensor,
    uniform_samples: torch.Tensor, uniform_samples_for_final_sampling: torch.Tensor, target_probs: torch.Tensor,
    draft_probs: torch.Tensor, threshold_single: float = 1.0, threshold_acc: float = 1.0, deterministic: bool = True,
    *, excludes: bool = True,
) -> None:  # fmt: skip
    """A kernel with SGLang's signature: one number decides among the children by the running sum of their p.

    excludes: whether the token after a rejection is none of the rejected ones."""
    for request, tokens in enumerate(candidates.tolist()):
        node, count = 0, 0
        accept_index[request, 0] = retrive_index[request, 0]
        while True:
            u, total, rest = uniform_samples[request, node], 0.0, target_probs[request, node].clone()
            child = int(retrive_next_token[request, node])
            while child >= 0:
                total += float(rest[tokens[child]])  # a second sibling with the same token adds nothing
                rest[tokens[child]] = 0.0
                if u < total:
                    break
                child = int(retrive_next_sibling[request, child])
            if child < 0:
                break
            predicts[retrive_index[request, node]] = tokens[child]
            count += 1
            accept_index[request, count] = retrive_index[request, child]
            node = child
        accept_token_num[request] = count
        bounds = (rest if excludes else target_probs[request, node]).cumsum(0)
        place = torch.searchsorted(bounds, uniform_samples_for_final_sampling[request] * bounds[-1], right=True)
        predicts[retrive_index[request, node]] = place.clamp_max(len(rest) - 1)


ALL_TREES: tuple[Kind, ...] = ("chain", "tree", "tree:without_replacement", "tree:fixed")


def test_kernels_with_the_signature_of_sglang() -> None:
    report = report_of(sglang_sample, *ALL_TREES, adapter="sglang", draws=300)
    assert report.failed is None
    wrong = report_of(lambda **given: sglang_sample(**given, excludes=False), "tree:fixed", adapter="sglang")
    assert wrong.mistake == rules.NoResidual.name


def test_assisted_sampling_of_transformers_passes() -> None:
    report = report_of(generation._speculative_sampling, adapter="transformers", draws=600)
    assert report.failed is None
    ensemble = report_of(
        lambda *given: generation._speculative_sampling(*given, assistant_ensemble_weight=0.5), adapter="transformers",
        draws=600,
    )  # fmt: skip
    assert ensemble.verdict == "fail", "a control: it is meant to be lossy"


def test_a_function_that_changes_its_arguments_changes_nothing_else() -> None:
    def verify(p: Any, q: Any, drafts: Any, rng: Any) -> list[int]:
        found = verifiers.speculative(p, q, drafts.copy(), rng)
        p[:], q[:], drafts[:] = 0, 0, 0
        return found

    assert report_of(verify).failed is None


def test_torch_computes_with_one_thread_during_the_test_only() -> None:
    before, found = torch.get_num_threads(), set()
    torch.set_num_threads(2)

    def verify(p: Any, q: Any, drafts: Any, rng: Any) -> list[int]:
        found.add(torch.get_num_threads())
        return verifiers.speculative(p, q, drafts, rng)

    try:
        report_of(verify, draws=20)
        assert found == {1} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_same_seed_gives_the_same_report() -> None:
    assert report_of(verifiers.speculative, seed=3, draws=200) == report_of(verifiers.speculative, seed=3, draws=200)
    assert report_of(verifiers.speculative, seed=3, draws=200) != report_of(verifiers.speculative, seed=4, draws=200)


MINE = """
import numpy as np
def draw(row, rng):
    return int(rng.choice(len(row), p=row / row.sum()))
def verify(p, q, drafts, rng):
    for i, x in enumerate(drafts):
        if rng.random() * q[i, x] >= p[i, x]:
            return [*drafts[:i], draw(REST, rng)]
    return [*drafts, draw(p[-1], rng)]
def raising(p, q, drafts, rng):
    raise IndexError("no such row")
def few(p, q):
    return [0]
def none(p, q, drafts, rng):
    return None
def floats(p, q, drafts, rng):
    return [0.5]
def empty(p, q, drafts, rng):
    return []
def many(p, q, drafts, rng):
    return [0] * 9
def outside(p, q, drafts, rng):
    return [len(p[0])]
def negative(p, q, drafts, rng):
    return [-1]
def nested(p, q, drafts, rng):
    return [[0]]
"""
RIGHT_REST, WRONG_REST = "np.maximum(p[i] - q[i], 0)", "p[i]"


def test_the_command(specbench: Specbench) -> None:
    Path("mine.py").write_text(MINE.replace("REST", RIGHT_REST))
    code, out, err = specbench("conformance", "mine.py:verify", "--draws", "2000", "--output", "report.json")
    assert code == 0 and "pass: mine.py:verify keeps the target's distribution" in out, err
    assert max(map(len, out.splitlines())) <= 100 and out.splitlines()[-1] == "report: report.json"
    assert Report.model_validate_json(Path("report.json").read_text()).verdict == "pass"


def test_the_command_tells_the_first_failure(specbench: Specbench) -> None:
    Path("wrong.py").write_text(MINE.replace("REST", WRONG_REST))
    code, out, _ = specbench("conformance", "wrong.py:verify", "--draws", "2000")
    assert code == 1 and "first failure: chain, one draft token" in out and "3/10" in out
    assert f"likely mistake: {rules.NoResidual.name}" in " ".join(out.split())
    code, out, _ = specbench("conformance", "wrong.py:verify", "--draws", "2000", "--json")
    found = json.loads(out)
    assert code == 1 and found["mistake"] == rules.NoResidual.name and found["failed"]["name"] == "one draft token"
    assert [cell["exact"] for cell in found["failed"]["cells"]] == ["3/5", "3/10", "1/10"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mine.py"], "VERIFIER 'mine.py': names no function: give MODULE:FUNCTION or FILE.py:FUNCTION"),
        (["nowhere:verify"], "'nowhere' cannot be imported: No module named 'nowhere'"),
        (["mine.py:verfy"], "'mine.py' has no function or class 'verfy': did you mean 'verify'?"),
        (["mine.py:verify", "--drafts", "trees"], "--drafts trees: did you mean 'tree'?"),
        (["mine.py:verify", "--drafts", ""], "--drafts '': name at least one kind"),
        (["mine.py:verify", "--adapter", "vlm"], "--adapter vlm: did you mean 'vllm'?"),
        (["mine.py:verify", "--adapter", "vllm", "--drafts", "tree"], "--drafts tree: the signature of vllm"),
        (["mine.py:verify", "--draws", "3"], "--draws"),
        (["mine.py:verify", "--device", "nowhere"], "--device nowhere: not available on this machine"),
        (["mine.py:raising"], "(table 'one draft token') raised IndexError: no such row (mine.py, line"),
        (["mine.py:few"], "raised TypeError: few() takes 2 positional arguments but 4 were given"),
        (["mine.py:none"], "returned NoneType, not a list of token ids"),
        (["mine.py:floats"], "returned [0.5], not a list of token ids"),
        (["mine.py:nested"], "returned [[0]], not a list of token ids"),
        (["mine.py:empty"], "returned 0 tokens, not 1 to 2"),
        (["mine.py:many"], "returned 9 tokens, not 1 to 2"),
        (["mine.py:outside"], "returned token 3, but tokens are 0 to 2"),
        (["mine.py:negative"], "returned token -1, but tokens are 0 to 2"),
    ],
)
def test_bad_input_is_one_line(words: list[str], message: str, specbench: Specbench) -> None:
    Path("mine.py").write_text(MINE.replace("REST", RIGHT_REST))
    code, out, err = specbench("conformance", *words)
    assert code == 2 and not out and len(err.splitlines()) == 1 and message in err
