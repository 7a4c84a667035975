"""How a target depends on the width of its passes, and the kinds of differences from AR: each defect, planted in a tiny
network, has its right name."""

import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specbench.decoding.build import build_decoder
from specbench.decoding.decoder import DraftingDecoder
from specbench.decoding.loop import StopRules
from specbench.decoding.proposal import Proposal, Verification
from specbench.decoding.sampling import Distributions, Sampling
from specbench.decoding.verification import rejection
from specbench.models.batch_width import TRUSTED, BaselineAnswer, BatchWidth, beginnings, measure_batch_width
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.eager import EagerSequence, tree_inputs
from specbench.models.loading import load_model
from specbench.models.meters import Clock, PassLog
from specbench.models.near_ties import NEARLY_TIED, Divergence, TokenDifference, find_differences
from specbench.models.own_passes import independent_rows
from specbench.models.planned_passes import Rehearsal, TimeLeft
from specbench.models.scoring import Output
from specbench.specs.catalogue import load_method
from tests.support import differences, tiny
from tests.support.differences import kinds
from tests.support.loops import GREEDY, SometimesWrong, autoregressive
from tests.support.toys import TableModel

STOP = StopRules(max_new_tokens=24)
PROMPTS = [list(range(start, start + 20)) for start in (30, 60, 90)]


def twin(kind: type[CausalLM] = CausalLM, dtype: torch.dtype = torch.float32) -> CausalLM:
    return kind(tiny.network(num_hidden_layers=2).to(dtype), tiny.tokenizer(), "tiny", None)


def answers_of(target: CausalLM) -> list[BaselineAnswer]:
    return differences.answers_of(target, PROMPTS, STOP)


def found_by(
    target: CausalLM, method: str = "sd", rule: Any = None, num_noise_tokens: int = 24
) -> tuple[list[TokenDifference], BatchWidth]:
    """The differences of a method with a drafter that is sometimes wrong, and what is known of the target."""
    decoder = build_decoder(load_method(method), ModelPair(target, twin(SometimesWrong)), GREEDY)
    assert isinstance(decoder, DraftingDecoder)
    if rule is not None:
        decoder = DraftingDecoder(decoder.method, target, decoder.drafter, rule, GREEDY)
    return differences.differences_of(decoder, target, PROMPTS, STOP, num_noise_tokens)


# A right method on a target whose passes round alike.


@pytest.mark.parametrize("method", ["sd", "sd-tree"])
def test_a_correct_method_does_not_differ(method: str) -> None:
    found, width = found_by(twin(), method)
    assert not found and width.num_changed == 0
    assert width.noise().tolerance < 1e-3
    assert width.trust() == TRUSTED and width.trust(6).trees == (True if method == "sd-tree" else None)


@pytest.mark.parametrize("method", ["sd", "sd-tree"])
def test_rounding_is_no_fault_of_wide_passes(method: str) -> None:
    """In bfloat16 the rows of wide passes and of trees are others, and their target is not accused."""
    target = twin(dtype=torch.bfloat16)
    found, width = found_by(target, method)
    assert {each.kind for each in found} <= {"near-tie", "width"}
    assert not width.wrong_widths and width.trust(6).trees == (True if method == "sd-tree" else None)
    assert width.noise().max_gap_change > 0.01 and width.noise().share_equal is not None
    assert 0 < width.noise().share_equal < 1


# Faults of the state.


class StaleRow(EagerSequence):
    """Whenever tokens are dropped, the last kept one gets the key and value of the first dropped one."""

    def rollback(self, num_tokens: int) -> None:
        is_cut = 0 < num_tokens < len(self.cached_ids)
        super().rollback(num_tokens)
        for layer in self._attention_layers if is_cut else ():
            for buffer in (layer.keys, layer.values):
                assert buffer is not None
                buffer[:, :, num_tokens - 1] = buffer[:, :, num_tokens]


class OffByOne(EagerSequence):
    """After tokens were dropped, all positions are one too high, until the sequence is reset."""

    shift = 0

    def reset(self) -> None:
        super().reset()
        self.shift = 0

    def rollback(self, num_tokens: int) -> None:
        self.shift = max(self.shift, int(0 < num_tokens < len(self.cached_ids)))
        super().rollback(num_tokens)

    def _options(self, tokens: torch.Tensor, num_logits: int) -> dict[str, object]:
        num = len(self.cached_ids) + self.shift
        return super()._options(tokens, num_logits) | {
            "position_ids": torch.arange(num, num + tokens.shape[1]).expand(tokens.shape)
        }


@pytest.mark.parametrize("broken", [StaleRow, OffByOne])
def test_a_fault_in_rolling_back_is_one_of_the_state(broken: type[EagerSequence]) -> None:
    target = twin()
    target.sequence = broken(target.model, target.name, target.vocab_size, target.passes)
    found, width = found_by(target)
    assert kinds(found) == {"state"}
    assert all(each.state_change is not None and each.state_change > width.noise().tolerance for each in found)
    measured = measure_batch_width(target, beginnings(answers_of(target)), 6, whole=True)
    assert not measured.rolled_back and measured.repeated is False  # a repeated pass drops its own tokens first


class WidePasses(EagerSequence):
    """Passes over several tokens behind cached ones are wrong, whether or not tokens were dropped."""

    def _options(self, tokens: torch.Tensor, num_logits: int) -> dict[str, object]:
        options = super()._options(tokens, num_logits)
        is_wide = tokens.shape[1] > 1 and len(self.cached_ids) > 0
        return options | self.wrong(len(self.cached_ids), tokens.shape[1]) if is_wide else options

    def wrong(self, num_cached: int, num: int) -> dict[str, object]:
        raise NotImplementedError


class WideOffByOne(WidePasses):
    """Their positions are one too high."""

    def wrong(self, num_cached: int, num: int) -> dict[str, object]:
        return {"position_ids": torch.arange(num_cached + 1, num_cached + 1 + num)[None]}


class WideNotCausal(WidePasses):
    """Their tokens see each other, the later ones too."""

    def wrong(self, num_cached: int, num: int) -> dict[str, object]:
        return {"attention_mask": torch.zeros(1, 1, num, num_cached + num, dtype=self.model.dtype)}


class WideBlind(WidePasses):
    """They do not see the last cached token."""

    def wrong(self, num_cached: int, num: int) -> dict[str, object]:
        mask = torch.full((num, num_cached + num), -torch.inf, dtype=self.model.dtype).triu(num_cached + 1)
        mask[:, num_cached - 1] = -torch.inf
        return {"attention_mask": mask[None, None]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("broken", [WideOffByOne, WideNotCausal, WideBlind])
def test_a_fault_of_every_wide_pass_is_one_of_the_state(broken: type[EagerSequence], dtype: torch.dtype) -> None:
    """It neither makes the noise that would explain it, nor is its own witness."""
    right = found_by(twin(dtype=dtype))[1]
    target = twin(dtype=dtype)
    target.sequence = broken(target.model, target.name, target.vocab_size, target.passes)
    found, width = found_by(target)
    assert kinds(found) == {"state"}
    assert width.wrong_widths == (2, 3, 4, 5, 6) and not width.trust().wide
    assert width.noise().tolerance <= 2 * right.noise().tolerance
    assert width.mean_square_change <= 2 * right.mean_square_change + 1e-9 and not width.is_independent
    excused = max(each.max_gap_change for each in width.changes)
    assert excused > 10 * width.noise().tolerance, "the fault is as small as the noise: the control is none"


def test_a_fault_of_some_wide_passes_is_found_at_their_widths() -> None:
    class Widest(WideOffByOne):
        def wrong(self, num_cached: int, num: int) -> dict[str, object]:
            return super().wrong(num_cached, num) if num > 4 else {}

    target = twin()
    target.sequence = Widest(target.model, target.name, target.vocab_size, target.passes)
    measured = measure_batch_width(target, beginnings(answers_of(twin())), 6, whole=True)
    assert measured.wrong_widths == (5, 6) and measured.noise().tolerance < 1e-3
    mixed = measure_batch_width(target, beginnings(answers_of(twin())), 6)  # whose other passes follow wrong ones
    assert {5, 6} <= set(mixed.wrong_widths) and mixed.noise().tolerance < 1e-3


class OtherRows(CausalLM):
    """The first row of some passes over several tokens is another; their keys and values are right."""

    num_passes, every = 0, 0

    def score(self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None) -> Output:
        output = super().score(ids, num_logits, pending)
        if not 1 < num_logits <= 6:
            return output
        self.num_passes += 1
        logits = output.logits.clone()
        if self.num_passes == 9 or (self.every and self.num_passes % self.every == 0):
            logits[0] += 5.0 * torch.arange(logits.shape[-1]).sin()
        return Output(logits, output.hidden)


@pytest.mark.parametrize(("every", "is_wrong"), [(0, False), (1, True)])
def test_a_fault_changes_more_than_a_row_that_rounding_moves_by_far(every: int, is_wrong: bool) -> None:
    """As it moves few rows of models in low precisions."""
    target = twin(OtherRows)
    assert isinstance(target, OtherRows)
    target.every = every
    measured = measure_batch_width(target, beginnings(answers_of(twin())), 6, whole=True)
    assert target.num_passes > 20 and bool(measured.wrong_widths) is is_wrong
    assert (measured.noise().tolerance > 1) is not is_wrong  # what is no fault is noise


def as_chain(model: Any, windows: Any, num_prefix: int, parents: Sequence[int], *others: Any) -> Any:
    return tree_inputs(model, windows, num_prefix, range(-1, len(parents) - 1), *others)


def test_a_wrong_tree_mask_is_a_fault_of_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.models.eager.tree_inputs", as_chain)
    found, width = found_by(twin(), "sd-tree")
    assert kinds(found) == {"state"}
    assert width.trust(6).trees is False and width.noise(None, 6).tolerance == width.noise().tolerance
    whole = measure_batch_width(twin(), beginnings(answers_of(twin())), 6, 12, whole=True)
    tree, chain = (next(each for each in whole.changes if each.compared == name) for name in ("tree", "chain"))
    assert tree.max_change > 100 * chain.max_change and width.noise().tolerance < 1e-3


# Faults that are smaller than what a pass over a whole text changes.


class LongPassesDiffer(EagerSequence):
    """Passes over more than `most` tokens give other rows, keys and values, as kernels for many rows do."""

    most = 17

    def score(
        self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None, hidden_layers: Sequence[int] = ()
    ) -> Output:
        output = super().score(ids, num_logits, pending, hidden_layers)
        num_read = self.passes.lengths[-1]
        if num_read <= self.most:
            return output
        for layer in self._attention_layers:
            for buffer in (layer.keys, layer.values):
                assert buffer is not None
                buffer[:, :, len(ids) - num_read : len(ids)] *= 1.2
        return Output(output.logits + 5.0 * torch.arange(output.logits.shape[-1]).sin(), output.hidden)


class LongPassesDifferStaleRow(LongPassesDiffer, StaleRow):
    pass


class LongPassesDifferOffByOne(LongPassesDiffer, OffByOne):
    pass


@pytest.mark.parametrize("broken", [LongPassesDifferStaleRow, LongPassesDifferOffByOne])
def test_a_fault_below_the_noise_of_long_passes_is_one_of_the_state(broken: type[EagerSequence]) -> None:
    target = twin()
    target.sequence = broken(target.model, target.name, target.vocab_size, target.passes)
    found, width = found_by(target)
    noise = width.noise()
    assert kinds(found) == {"state"}
    assert noise.kept_tolerance is not None and noise.kept_tolerance < 1e-3 < noise.tolerance
    for each in found:
        assert each.state_change is not None and each.state_change <= noise.tolerance, (
            "passes over a whole text tell it"
        )
        assert each.replay_change is not None and each.replay_change > noise.kept_tolerance


def test_a_wrong_tree_mask_is_not_excused_by_the_noise_of_long_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.models.eager.tree_inputs", as_chain)
    target = twin()
    sequence = LongPassesDiffer(target.model, target.name, target.vocab_size, target.passes)
    sequence.most, target.sequence = 30, sequence  # tokens of a tree and its root are fewer
    found, width = found_by(target, "sd-tree")
    assert width.trust(6).trees is None and kinds(found) == {"unknown"}
    assert all(each.state_change is not None and each.state_change <= width.noise().tolerance for each in found)


# Trees that round otherwise than chains.


class TreesRound(CausalLM):
    """The two best tokens are 2e-3 apart; in the passes of trees, the other way round."""

    def score(self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None) -> Output:
        return self.apart(super().score(ids, num_logits, pending), 2e-3)

    def score_tree(self, ids: list[int], tree_ids: list[int], parents: Sequence[int], num_logits: int) -> Output:
        return self.apart(super().score_tree(ids, tree_ids, parents, num_logits), -self.rounding(tree_ids))

    def rounding(self, tree_ids: list[int]) -> float:
        return 2e-3

    def apart(self, output: Output, distance: float) -> Output:
        logits = output.logits.clone()
        best = logits.topk(2, dim=-1)
        logits.scatter_(1, best.indices[:, 1:], best.values[:, :1] - distance)
        return Output(logits, output.hidden)


class SiblingsCount(TreesRound):
    """By how much, depends on wrong tokens of the tree."""

    def rounding(self, tree_ids: list[int]) -> float:
        return 2e-3 + 2e-4 * (sum(tree_ids) % 7)


def test_trees_that_round_otherwise_are_not_accused() -> None:
    found, width = found_by(twin(TreesRound), "sd-tree")
    trees = next(each for each in width.changes if each.compared == "fresh tree")
    assert width.sibling_change == 0 and width.trust(trees.width).trees
    assert width.noise().tolerance < 1e-3 < trees.max_gap_change  # chains alone would call it a fault of the state
    assert kinds(found) == {"near-tie"}


def test_trees_that_nothing_shows_to_be_right_are_undecided() -> None:
    found, width = found_by(twin(SiblingsCount), "sd-tree")
    trees = next(each for each in width.changes if each.compared == "fresh tree")
    assert width.sibling_change is not None and width.sibling_change > width.noise().tolerance
    assert not width.is_wrong(trees) and width.trust(trees.width).trees is None
    assert width.noise(None, trees.width) == width.noise()
    assert kinds(found) == {"unknown"} and not any(each.is_explained for each in found)
    assert str(Divergence.of(found)) == f"unknown {len(found)}"


# Faults of the rule.


def unjudged(proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verification:
    """Accepts the first draft token, whatever the target says."""
    if not proposal.num_drafted:
        return rejection(proposal, target, generator)
    return Verification(1, target.draw(1, generator))


def test_a_draft_that_is_emitted_unjudged_is_a_fault_of_the_rule() -> None:
    found, _ = found_by(twin(), rule=unjudged)
    assert kinds(found) == {"rule"}
    assert Divergence.of(found).rule == len(found) and not Divergence.of(found).is_width_only


# A target that depends on the width of its passes, and one that is undecided.


class DependsOnWidth(CausalLM):
    """A pass that gives several rows prefers token 7 by 5."""

    def score(self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None) -> Output:
        output = super().score(ids, num_logits, pending)
        logits = output.logits.clone()
        logits[:, 7] += 5.0 * (num_logits > 1)
        return Output(logits, output.hidden)


class Undecided(CausalLM):
    """The two best tokens are 1e-5 apart, the other way round in a pass over `late` tokens that gives several rows."""

    late = 0

    def score(self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None) -> Output:
        output = super().score(ids, num_logits, pending)
        logits = output.logits.clone()
        best = logits.topk(2, dim=-1)
        logits.scatter_(
            1, best.indices[:, 1:], best.values[:, :1] + (1e-5 if num_logits > 1 and len(ids) >= self.late else -1e-5)
        )
        return Output(logits, output.hidden)


def test_a_target_that_depends_on_the_width_is_named() -> None:
    found, width = found_by(twin(DependsOnWidth))
    assert "width" in kinds(found) and kinds(found) <= {"width", "near-tie"}
    divergence = Divergence.of(found)
    assert divergence.is_width_only and str(divergence) == f"width {divergence.width}"
    assert width.num_changed > 0 and width.noise().max_gap_change == pytest.approx(5.0, abs=0.01)
    assert all(each.gap is not None and each.gap > NEARLY_TIED for each in found if each.kind == "width")


def test_a_tie_is_a_near_tie() -> None:
    found, width = found_by(twin(Undecided))
    assert kinds(found) == {"near-tie"} and all(each.near_tie for each in found)
    assert not Divergence.of(found).total and width.noise().tolerance < 1e-3


def test_a_width_that_no_sample_shows_is_not_blamed_on_the_state() -> None:
    """Only after long texts does the width matter: the noise of the beginnings does not tell."""

    class Late(DependsOnWidth):
        def score(self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None) -> Output:
            if len(ids) < 36:
                return CausalLM.score(self, ids, num_logits, pending)
            return super().score(ids, num_logits, pending)

    found, width = found_by(twin(Late), num_noise_tokens=8)
    own = [each for each in found if each.kind != "near-tie"]
    assert width.noise().tolerance < 1e-3 and own and kinds(own) == {"width"}


class LateUndecided(Undecided):
    late = 30  # a pass over the whole of such texts changes their rows


class LateTreesRound(TreesRound):
    def score_tree(self, ids: list[int], tree_ids: list[int], parents: Sequence[int], num_logits: int) -> Output:
        if len(ids) >= 30:
            return super().score_tree(ids, tree_ids, parents, num_logits)
        return self.apart(CausalLM.score_tree(self, ids, tree_ids, parents, num_logits), 2e-3)


@pytest.mark.parametrize(("method", "kind"), [("sd", LateUndecided), ("sd-tree", LateTreesRound)])
def test_the_noise_of_long_passes_accuses_no_method(method: str, kind: type[CausalLM]) -> None:
    """The method's own rows differ from all readings of the text but those in passes like its own. The trees are wider
    than all passes along which the noise was measured, so that chains as wide are other passes, too."""
    target = twin(kind)
    target.sequence = LongPassesDiffer(target.model, target.name, target.vocab_size, target.passes)
    found, width = found_by(target, method)
    kept = width.noise(None, 6 if method == "sd-tree" else None).kept_tolerance
    assert kinds(found) <= {"near-tie", "width"} and kept is not None
    again = [each for each in found if each.replay_change is not None]
    assert again and all(each.state_change is not None and each.state_change > kept for each in again)


# What is measured.


def test_the_rows_of_every_width_are_compared() -> None:
    target = twin()
    measured = measure_batch_width(target, beginnings(answers_of(target)), 4, 7, whole=True)
    short = {each.compared: each.width for each in measured.changes if each.prefix == "short"}
    assert set(short) == {"chain", "after", "tree", "after tree", "kept", "prompt", "fresh tree"}
    chains = [each for each in measured.changes if each.compared == "chain" and each.prefix == "short"]
    assert [each.width for each in chains] == [2, 3, 4]
    assert chains[0].num_positions == 3 * 6 * 2 and all(each.max_change < 1e-3 for each in measured.changes)
    assert all(each.same_as is not None and each.same_as <= each.width for each in chains)
    assert all(each.seconds is not None and each.cost is not None for each in chains)
    assert measured.repeated and measured.rolled_back and measured.prefixes["short"] == (20, 43)
    assert measured.prefixes["long"][0] == 20 + 3 * 44
    assert BatchWidth.model_validate_json(measured.model_dump_json()) == measured


@pytest.mark.parametrize("whole", [True, False])
def test_a_rehearsal_has_exactly_the_passes_that_are_made(whole: bool) -> None:
    target, rehearsal, told = twin(), Rehearsal(), list[str]()
    answers = beginnings(answers_of(target))
    target.passes.clear()
    measure_batch_width(target, answers, 4, 7, whole=whole, progress=told.append)
    measure_batch_width(rehearsal, answers, 4, 7, whole=whole)
    assert rehearsal.passes.lengths == target.passes.lengths and len(rehearsal.passes.lengths) > 100
    assert told and all(re.fullmatch(r"about \d+ s left", line) for line in told)
    assert not whole or len(told) > 50


def test_the_time_left_is_that_of_the_passes_not_made_yet() -> None:
    log = PassLog(Clock(torch.device("cpu")))
    log.add(1, 0.0, 9.0)  # before the planned ones
    left = TimeLeft([10, 1, 1, 1, 4, 4, 20], log)
    log.add(10, 0.0, 200.0)
    assert left.seconds() is None, "how the time grows with the length is not known"
    log.add(1, 200.0, 300.0)
    # Two of 100 s, two between 100 and 200 s, and one twice as long as the longest so far.
    assert left.seconds() == pytest.approx(2 * 100 + 2 * (100 + 100 * 3 / 9) + 2 * 200)


def test_a_target_with_one_row_at_a_time_does_not_depend_on_the_width() -> None:
    target = TableModel(5, 1)
    tokens = autoregressive(target, [0, 1], STOP).token_ids
    measured = measure_batch_width(target, [BaselineAnswer("", [0, 1], tokens)], 4, 6, whole=True)
    assert measured.is_independent and measured.num_changed == 0 and measured.repeated and measured.rolled_back
    assert {each.same_as for each in measured.changes if each.compared == "chain"} == {1}
    assert all(each.total_variation == each.divergence == 0 and not each.flip_gaps for each in measured.changes)
    noise = measured.noise()
    assert noise.max_gap_change == 0 and 0 < noise.tolerance < 1e-5


def test_flips_have_the_gap_of_the_single_pass() -> None:
    target = twin(DependsOnWidth)
    measured = measure_batch_width(target, beginnings(answers_of(target)), 3, whole=True)
    chain = next(each for each in measured.changes if each.compared == "chain")
    assert chain.flip_gaps and all(0 <= gap <= 5 for gap in chain.flip_gaps)
    assert chain.flip_gaps == tuple(sorted(chain.flip_gaps, reverse=True))
    assert chain.same_as == chain.width and chain.total_variation > 0.01 and chain.divergence > 0.001


def test_independent_readings_share_nothing_with_the_cache() -> None:
    target = twin()
    expected = independent_rows(target, PROMPTS[0], 15, 9)
    target.score(PROMPTS[1], 1)
    assert len(expected) == 3
    assert all(torch.equal(*pair) for pair in zip(expected, independent_rows(target, PROMPTS[0], 15, 9), strict=True))
    assert all(torch.allclose(expected[0], row, atol=1e-4) for row in expected)


def test_a_method_that_is_not_repeated_is_unknown() -> None:
    """A second decoding that gives other tokens has no row of the token in question."""
    target = twin()
    answers = answers_of(target)
    decoder = build_decoder(load_method("sd"), ModelPair(target, twin(SometimesWrong)), GREEDY)
    wrong = [[*each.token_ids[:5], (each.token_ids[5] + 1) % 200, *each.token_ids[6:]] for each in answers]

    def again(index: int, position: int) -> Any:
        return decoder.record_passes(answers[index].prompt_ids, STOP, 0, position)

    found = find_differences(target, answers, wrong, 1e-3, decode_again=again)
    assert {(each.kind, each.repeated) for each in found} == {("unknown", False)}
    assert Divergence.of(found) == Divergence(unknown=3, not_repeated=3)


@pytest.mark.parametrize(
    ("gap", "tolerance", "kind"),
    [
        (0.1, 0.2, "near-tie"),
        (0.6, 2.0, "near-tie"),
        (0.8, 2.0, "width"),
        (0.1, 0.05, "unknown"),
        (3.0, 2.0, "unknown"),
    ],
)
def test_kinds_without_own_passes(monkeypatch: pytest.MonkeyPatch, gap: float, tolerance: float, kind: str) -> None:
    monkeypatch.setattr("specbench.models.near_ties.logit_gap", lambda *given: gap)
    (found,) = find_differences(TableModel(5, 1), [BaselineAnswer("", [0], [1, 2])], [[1, 3]], tolerance)
    assert found.kind == kind and found.near_tie == (kind == "near-tie") and found.repeated is None
    assert found.is_explained == (kind != "unknown")


@pytest.mark.parametrize("output", [[1], [1, 2, 3]], ids=["cut", "overrun"])
def test_an_answer_of_another_length_is_no_matter_of_the_width(output: list[int]) -> None:
    """Neither a method that loses the end of an answer nor one that goes on behind it is excused by the width."""
    own: Any = SimpleNamespace(not_argmax=None, token_ids=output, state_change=lambda *given, trusts_wide: 0.0)
    answers = [BaselineAnswer("", [0], [1, 2])]
    (found,) = find_differences(TableModel(5, 1), answers, [output], 10.0, decode_again=lambda *given: own)
    assert found.kind == "unknown" and found.repeated and found.gap is None and not found.is_explained


# Public models.


@pytest.mark.real
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m", "qwen-coder-0.5b"])
def test_the_rows_of_public_models_are_equal_in_passes_of_one_width(real_models: Any, name: str, dtype: str) -> None:
    """Chains, trees, and the answer in one pass."""
    target = load_model(str(real_models / name), dtype=dtype, device="cpu", pass_width=6)
    ids = target.encode_prompt("def add(a, b):\n    return", chat=False)
    answer = BaselineAnswer("", ids, autoregressive(target, ids, StopRules(max_new_tokens=8)).token_ids)
    assert measure_batch_width(target, [answer], 4, 9, whole=True).is_independent


@pytest.mark.real
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_public_models_differ_by_near_ties_and_width_only(real_models: Any, name: str, dtype: str) -> None:
    target = load_model(str(real_models / name), dtype=dtype, device="cpu")
    texts = ["The capital of France is", "def add(a, b):\n    return", "1, 2, 3, 4, 5, 6,"]
    stop = StopRules(max_new_tokens=24)
    decoder = build_decoder(load_method("pld"), ModelPair(target), Sampling(0.0))
    answers = []
    for text in texts:
        ids = target.encode_prompt(text, chat=False)
        answers.append(BaselineAnswer(text, ids, autoregressive(target, ids, stop).token_ids))
    most = decoder.method.most_draft_tokens + 1
    whole = measure_batch_width(target, answers[:1], 3, whole=True)
    assert whole.repeated and whole.rolled_back and not whole.wrong_widths
    measured = measure_batch_width(target, answers, most, 16)
    assert measured.trust(16) == TRUSTED
    outputs = [decoder.generate(each.prompt_ids, stop, 0).token_ids for each in answers]

    def again(index: int, position: int) -> Any:
        return decoder.record_passes(answers[index].prompt_ids, stop, 0, position)

    found = find_differences(target, answers, outputs, measured.noise(most).tolerance, decode_again=again)
    assert {each.kind for each in found} <= {"near-tie", "width"}
    assert all(each.total_variation is not None and each.total_variation < 0.2 for each in whole.changes)
    assert all(each.total_variation is None for each in measured.changes)  # which no verdict needs
    if dtype == "float32":
        assert not found and measured.noise(most).tolerance < 0.05
