"""Jacobi decoding: the target's rows after a rejected draft are the next draft."""

from collections import Counter

import pytest
import torch

from specbench.decoding.build import build_decoder
from specbench.decoding.drafters.lookahead import Jacobi
from specbench.decoding.loop import GenerationOutput, StopRules, decode
from specbench.decoding.proposal import Proposal, Verification
from specbench.decoding.sampling import Distributions, Sampling
from specbench.decoding.verification import VerificationRule, exact_match, rejection
from specbench.models.causal_lm import ModelPair
from specbench.models.scoring import Output
from specbench.specs.catalogue import load_method
from tests.support.distributions import PLAIN, PROMPT, VOCAB, chi_square_p
from tests.support.toys import TableModel, joint, models

GENERATOR = torch.Generator()
TOP_P = Sampling(1.0, None, 0.8)


def rows(*best: int) -> Output:
    """Rows whose most probable tokens are `best`."""
    return Output(torch.nn.functional.one_hot(torch.tensor(best), 9).float())


def test_the_rows_after_the_accepted_tokens_are_the_next_draft() -> None:
    made = Jacobi(models(), PLAIN)
    made.prefill([1, 2, 3])
    assert made.propose([1, 2, 3, 4], 4, GENERATOR).token_ids == [1, 2, 3, 3]  # the prompt's end, filled up
    made.observe(Proposal([1, 2, 3, 3]), rows(1, 7, 5, 6, 8), Verification(1, 7))
    assert made.propose([1, 2, 3, 4, 1, 7], 4, GENERATOR).token_ids == [5, 6, 8, 8]
    made.observe(Proposal([5, 6, 8, 8]), rows(5, 6, 8, 8, 2), Verification(4, 2))
    assert made.propose([1, 2, 3, 4, 1, 7, 5, 6, 8, 8, 2], 3, GENERATOR).token_ids == [2, 2, 2]  # nothing is left
    made.observe(Proposal(), rows(5), Verification(0, 5))
    made.prefill([6])
    assert made.propose([6, 1], 2, GENERATOR).token_ids == [6, 6] and made.propose([6, 1], 0, GENERATOR).token_ids == []


def test_a_draft_ends_with_the_answer() -> None:
    made = Jacobi(models(eos_token_ids=[2]), PLAIN)
    made.prefill([1, 2, 3])
    assert made.propose([1, 2, 3, 4], 4, GENERATOR).token_ids == [1, 2]


def jacobi(matrix: torch.Tensor, first: int, guess: list[int]) -> list[list[int]]:
    """The iterates of a table in which a token depends on the one before."""
    found = [guess]
    for _ in guess:
        found.append([int(matrix[token].argmax()) for token in (first, *found[-1][:-1])])
    return found


def test_a_guess_becomes_the_greedy_text_as_in_jacobis_iteration() -> None:
    """After i passes at least i tokens are those of the greedy text, and each pass moves the rest on."""
    table = torch.randn(7, 7, generator=torch.Generator().manual_seed(3))
    iterates = jacobi(table, 0, [1, 2, 3, 4])
    target = TableModel(7, 0)
    target.table = table.expand(7, 7, 7)
    made = Jacobi(models(), Sampling(0.0))
    made.prefill([1, 2, 3, 4])
    ids = [0]
    drafts = []
    while len(ids) < 4:
        proposal = made.propose(ids, 4, GENERATOR)
        drafts.append((len(ids) - 1, proposal.token_ids))
        output = target.score_proposal(ids, proposal)
        found = exact_match(proposal, Distributions(output.logits, Sampling(0.0)), GENERATOR)
        made.observe(proposal, output, found)
        ids += [*proposal.token_ids[: found.num_accepted], found.next_token]
    for number, (start, drafted) in enumerate(drafts):
        known = [int(token) for token in iterates[number][start:]]
        assert drafted[: len(known)] == known
    assert ids[1:5] == iterates[-1][: len(ids[1:5])]


def outputs(target: TableModel, rule: VerificationRule, sampling: Sampling) -> list[GenerationOutput]:
    made, generator = Jacobi(models(), sampling), torch.Generator().manual_seed(2)
    return [
        decode(
            target, made, rule, PROMPT, num_draft_tokens=2, sampling=sampling, stop=StopRules(max_new_tokens=6),
            generator=generator,
        )
        for _ in range(400)
    ]  # fmt: skip


def law(target: TableModel, sampling: Sampling) -> dict[tuple[int, ...], float]:
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        found = {
            (*tokens, token): mass * chance
            for tokens, mass in found.items()
            for token, chance in enumerate(
                Distributions(target.table[tuple([*PROMPT, *tokens][-2:])][None], sampling).probs[0].tolist()
            )
            if chance
        }
    return found


@pytest.mark.parametrize("sampling", [PLAIN, TOP_P], ids=["T=1", "top-p"])
@pytest.mark.parametrize("rule", [exact_match, rejection])
def test_decoding_is_lossless(rule: VerificationRule, sampling: Sampling) -> None:
    target = TableModel(VOCAB, 5)
    made = outputs(target, rule, sampling)
    assert chi_square_p(Counter(tuple(each.token_ids[:3]) for each in made), law(target, sampling)) > 1e-3
    assert sum(step.num_accepted for each in made for step in each.steps) > 100


def committed(proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verification:
    """Keeps a token whose left neighbour changed in this pass: the whole new row, as if it were final."""
    if len(proposal.token_ids) < 2:
        return exact_match(proposal, target, generator)
    found = exact_match(proposal, target, generator)
    if found.num_accepted:
        return found
    return Verification(1, target.draw(1, generator))


def test_control_tokens_behind_a_changed_one_are_caught() -> None:
    target = TableModel(VOCAB, 5)
    counts = Counter(tuple(each.token_ids[:3]) for each in outputs(target, committed, PLAIN))  # type: ignore[arg-type]
    assert chi_square_p(counts, joint(target, PROMPT, 3)) < 1e-6


def test_a_prompt_alone_is_drafted_as_after_others() -> None:
    def steps(*prompts: list[int]) -> list[object]:
        made, target = Jacobi(models(), PLAIN), TableModel(VOCAB, 5)
        return [
            decode(
                target, made, exact_match, prompt, num_draft_tokens=3, sampling=PLAIN, stop=StopRules(20),
                generator=torch.Generator().manual_seed(1),
            ).steps
            for prompt in prompts
        ]  # fmt: skip

    assert steps([0, 1, 2], [2, 1, 0])[-1:] == steps([2, 1, 0])


def test_greedy_output_on_the_embedded_target_is_its_own(
    embedded_pair: ModelPair, embedded_prompts: dict[str, list[list[int]]]
) -> None:
    target = embedded_pair.target
    stop = StopRules(24, target.eos_token_ids)
    decoders = [build_decoder(load_method(name), ModelPair(target), Sampling(0.0)) for name in ("ar", "jacobi")]
    num_accepted = 0
    for prompt in (prompts[0] for prompts in embedded_prompts.values()):
        expected, found = (each.generate(prompt, stop, 0) for each in decoders)
        assert found.token_ids == expected.token_ids
        num_accepted += sum(step.num_accepted for step in found.steps)
    assert num_accepted > 0
