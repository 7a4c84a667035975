"""Prompt lookup: what is copied from where, the index that never rescans, and losslessness with a control."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.decoding.drafters.retrieval import PromptLookupDrafter
from specbench.decoding.loop import StopRules, decode
from specbench.decoding.proposal import PointMass, Proposal, Verification
from specbench.decoding.sampling import Distributions, Sampling
from specbench.decoding.verification import VerificationRule, exact_match, rejection
from tests.support.distributions import chi_square_p
from tests.support.toys import TableModel, joint, models

NUM_DRAWS = 450  # sequences; the controls fail at p < 1e-6 with them
GENERATOR = torch.Generator()
PROMPT = [0, 1, 2, 0, 1, 3, 0, 1]
SEED = 7  # of a table in which wrong rules show


def drafter(eos: tuple[int, ...] = (), **options: Any) -> PromptLookupDrafter:
    return PromptLookupDrafter(models(eos), Sampling(), **options)


def propose(
    ids: list[int], count: int, max_match: int = 3, min_match: int = 1, per_match: int | None = None,
    eos: tuple[int, ...] = (),
) -> list[int]:  # fmt: skip
    made = drafter(eos, max_match=max_match, min_match=min_match, tokens_per_match=per_match)
    made.prefill(ids)
    proposal = made.propose(ids, count, GENERATOR)
    assert (proposal.probs is None) == (not proposal.token_ids)
    return proposal.token_ids


@pytest.mark.parametrize(
    ("ids", "options", "expected"),
    [
        ([1, 2, 3, 9, 8, 7, 1, 2, 3], {}, [9, 8, 7, 1]),
        ([2, 3, 5, 1, 2, 3, 6, 7, 3, 8, 8, 8, 1, 2, 3], {}, [6, 7, 3, 8]),  # the longest match, not the latest
        ([2, 3, 5, 1, 2, 3, 6, 7, 3, 8, 8, 8, 1, 2, 3], {"max_match": 1}, [8, 8, 8, 1]),
        ([1, 2, 5, 5, 5, 5, 1, 2, 6, 6, 6, 6, 1, 2], {}, [6, 6, 6, 6]),  # the latest of equally long ones
        ([1, 2, 3, 4], {}, []),
        ([4, 1, 2, 4], {"min_match": 2}, []),
        ([4, 1, 2, 4], {}, [1, 2, 4, 1]),  # beyond the end it copies what it has copied
        ([7, 7], {}, [7, 7, 7, 7]),
        ([1, 2, 1, 2, 1], {}, [2, 1, 2, 1]),
        ([5], {}, []),
        ([], {}, []),
        ([1, 9, 5, 6, 1], {"eos": (5,)}, [9, 5]),
        ([1, 2, 3, 9, 8, 7, 1, 2, 3], {"per_match": 1}, [9, 8, 7]),  # three tokens matched
        ([4, 1, 2, 4], {"per_match": 2}, [1, 2]),
        ([4, 1, 2, 4], {"per_match": 9}, [1, 2, 4, 1]),
    ],
)
def test_what_is_drafted(ids: list[int], options: dict, expected: list[int]) -> None:
    assert propose(ids, 4, **options) == expected


def test_no_more_is_drafted_than_asked_for() -> None:
    assert propose([1, 2, 3, 1], 2) == [2, 3]
    assert propose([1, 2, 3, 1], 0) == []


def naive(ids: list[int], count: int, max_match: int, min_match: int) -> list[int]:
    """The same by scanning the context."""
    for length in range(max_match, min_match - 1, -1):
        for start in range(len(ids) - length - 1, -1, -1):
            if ids[start : start + length] == ids[len(ids) - length :]:
                extended = list(ids)
                for source in range(start + length, start + length + count):
                    extended.append(extended[source])
                return extended[len(ids) :]
    return []


@pytest.mark.parametrize("seed", range(5))
def test_a_growing_sequence_gives_what_a_scan_gives(seed: int) -> None:
    random = Random(seed)
    ids = random.choices(range(4), k=3)
    made = drafter(max_match=4, min_match=2)
    made.prefill(ids)
    for _ in range(80):
        assert made.propose(ids, 5, GENERATOR).token_ids == naive(ids, 5, 4, 2)
        ids = ids + random.choices(range(4), k=random.randint(1, 4))


class Counting(dict[tuple[int, ...], int]):
    """A mapping that counts insertions."""

    num_inserted = 0

    def __setitem__(self, key: tuple[int, ...], value: int) -> None:
        self.num_inserted += 1
        super().__setitem__(key, value)


def test_the_index_takes_in_every_token_once() -> None:
    """Insertions grow with the tokens, not with the tokens times the steps."""
    random = Random(1)
    ids = random.choices(range(9), k=500)
    made = drafter()
    made.prefill(ids)
    made._continues_at = index = Counting(made._continues_at)
    for number in range(200):
        ids = [*ids, *random.choices(range(9), k=2)]
        made.propose(ids, 5, GENERATOR)
        made.propose(ids, 5, GENERATOR)  # nothing new: nothing is taken in
        assert index.num_inserted == (number + 1) * 2 * 3


def test_another_prompt_knows_nothing_of_the_first() -> None:
    made = drafter(max_match=2)
    made.prefill([1, 2, 1])
    made.prefill([3, 4])
    assert made.propose([3, 4, 1], 3, GENERATOR).token_ids == []


def test_one_pass_is_logged_per_proposal() -> None:
    made = drafter()
    made.prefill([1, 2, 1])
    made.propose([1, 2, 1], 4, GENERATOR)
    made.propose([1, 2, 1, 7], 4, GENERATOR)
    assert made.passes is not None
    assert [length for length, _ in made.passes.read()] == [4, 0]


def test_options_are_checked() -> None:
    made = drafter((3,), max_match=4, min_match=2)
    assert list(made.lengths) == [4, 3, 2] and made.eos_token_ids == {3}
    with pytest.raises(ConfigError, match="min_match = 3: is above max_match = 2"):
        drafter(max_match=2, min_match=3)


def sequences(
    target: TableModel, make: Callable[[], PromptLookupDrafter], rule: VerificationRule, seed: int
) -> Counter:
    generator = torch.Generator().manual_seed(seed)
    counts: Counter[tuple[int, ...]] = Counter()
    made, num_drafted = make(), 0
    for _ in range(NUM_DRAWS):
        generation = decode(
            target, made, rule, PROMPT, num_draft_tokens=2, sampling=Sampling(1.0), stop=StopRules(max_new_tokens=4),
            generator=generator,
        )  # fmt: skip
        counts[tuple(generation.token_ids[:3])] += 1
        num_drafted += sum(step.num_drafted for step in generation.steps)
    assert num_drafted > NUM_DRAWS
    return counts


@pytest.mark.parametrize(("seed", "rule"), [(5, exact_match), (SEED, rejection)])
def test_decoding_is_lossless(seed: int, rule: VerificationRule) -> None:
    target = TableModel(4, seed)
    counts = sequences(target, drafter, rule, seed)
    assert chi_square_p(counts, joint(target, PROMPT, 3)) > 1e-3


def trusting(proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verification:
    """Takes the first draft token as it is."""
    return Verification(min(1, proposal.num_drafted), target.draw(min(1, proposal.num_drafted), generator))


def test_control_taking_drafts_as_they_are_is_caught() -> None:
    target = TableModel(4, SEED)
    counts = sequences(target, drafter, trusting, 1)
    assert chi_square_p(counts, joint(target, PROMPT, 3)) < 1e-6


class OneSided(PointMass):
    """A point mass whose residual forgets to leave out the rejected token."""

    residual_is_sampled = True

    def sample_residual(self, index: int, target_probs: torch.Tensor, generator: torch.Generator) -> int:
        return int(torch.multinomial(target_probs, 1, generator=generator).item())


class Forgetful(PromptLookupDrafter):
    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        proposal = super().propose(ids, num_draft_tokens, generator)
        return Proposal(proposal.token_ids, OneSided(proposal.token_ids)) if proposal.token_ids else proposal


def test_control_a_wrong_residual_is_caught() -> None:
    target = TableModel(4, SEED)
    counts = sequences(target, lambda: Forgetful(models(), Sampling()), rejection, 1)
    assert chi_square_p(counts, joint(target, PROMPT, 3)) < 1e-6


@pytest.mark.parametrize("method", ["pld", "pld-by-rejection"])
def test_greedy_output_is_that_of_autoregressive_decoding(
    specbench: Callable[..., tuple[int, str, str]], tiny_pair: tuple[str, str], tmp_path: Path, method: str
) -> None:
    """Through the command line; a repetitive prompt, so that something is copied and accepted."""
    (tmp_path / "mgsm_en.tsv").write_text("ab ab ab ab ab\t5\nthe the the the\t7\n", encoding="utf-8")
    (tmp_path / "pld-by-rejection.yaml").write_text(
        "name: pld-by-rejection\nversion: 1\ntitle: t\ndrafter: {type: prompt_lookup}\n"
        "verification: {rule: rejection}\nnum_draft_tokens: 4\n"
    )
    name = method if method == "pld" else f"{method}.yaml"
    code, _, err = specbench(
        "run", "--task", "mgsm", "--subset", "en", "--method", name, "--data", str(tmp_path), "--target", tiny_pair[0],
        "--set", "generation.max_new_tokens=40", "--set", "generation.temperature=0", "--output", "out",
    )  # fmt: skip
    assert code == 0, err
    records = [json.loads(line) for line in (tmp_path / "out" / "records.jsonl").read_bytes().splitlines()]
    assert len(records) == 2
    for record in records:
        assert record["methods"][method]["token_ids"] == record["methods"]["ar"]["token_ids"]
    assert sum(step[2] for record in records for step in record["methods"][method]["steps"]) > 0
