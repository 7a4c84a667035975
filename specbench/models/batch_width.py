"""How a target's logits depend on the number of tokens that one pass reads, its *width*.

Kernels for one row and for several sum in another order, and some quantise activations otherwise. So a method that is
exact may still write other tokens than AR: its target is, at these places, another one. The measurement here says by
how much, and gives the tolerance of near-ties.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, cycle
from statistics import median
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from specbench.core.progress import Say, format_duration
from specbench.models.agreement import SAFETY, shift_of
from specbench.statistics.bootstrap import FilePart

if TYPE_CHECKING:
    import torch

    from specbench.models.planned_passes import TimeLeft
    from specbench.models.scoring import ScoringModel

ULPS = 2.0  # a tolerance is at least this many rounding steps of the largest logit
NUM_TOP = 10
NUM_NOISE_ANSWERS = 4
NUM_NOISE_TOKENS = 64
NUM_MIXED = 3  # readings of an answer in passes of all widths in turn
NUM_TIMED = 6  # passes
LONG_PREFIX = 512  # tokens of other prompts before the longer prefix
# One row in so many may be farther from other readings than rounding explains: rounding moves a few rows of a model by
# far more than all others, and a fault of passes changes many.
ROWS_PER_OUTLIER = 50

# kept: an answer in passes of this width, which are all kept; in the short form in passes of all widths in turn, since
# a long prompt is read anew for each reading. prompt: a whole answer in one pass. chain, tree: a pass on the prefix
# that the single passes read, too. after: a single pass after a pass of this width that was kept, whose keys and values
# it reads. fresh tree: a tree right behind a text whose passes were all kept. Only kept, prompt and fresh tree are free
# of rollbacks, so that they alone make the noise: a fault in rolling back is none of the width. A fault of the passes
# themselves is none either: see `BatchWidth.is_wrong` and `BatchWidth.trust`. No method reads a whole answer in one
# pass, so that against readings in passes like its own, kept and fresh tree are the noise.
Compared = Literal["chain", "after", "tree", "after tree", "kept", "prompt", "fresh tree"]
Prefix = Literal["short", "long"]
Found: TypeAlias = "tuple[Compared, int, int, torch.Tensor]"


@dataclass(frozen=True)
class BaselineAnswer:
    """A prompt and AR's greedy output for it."""

    name: str
    prompt_ids: list[int]
    token_ids: list[int]


class Noise(FilePart):
    """The change of the target's logits with the number of tokens that one pass scores.

    `num_changed`: prompts for which AR picks another token at some position if computed with other query lengths.
    `max_gap_change`: the largest change of a gap between the highest logit and one of the next nine. `tolerance`:
    SAFETY times that; a gap beyond it is not explained by the width. `kept_tolerance`: the same without passes over a
    whole answer, which no method makes; null: no other pass is known to be right, and in files of earlier versions.
    `mean_square_change`: E_p[(Δ ln p)²] per position, the noise in the probabilities of a correct method.
    `share_equal`: rows that are those of single passes, bit for bit; null in files of earlier versions. Passes that are
    wrong are left out of all of them.
    """

    num_prompts: int
    num_positions: int
    num_changed: int
    max_gap_change: float
    tolerance: float
    mean_square_change: float
    share_equal: float | None = None
    kept_tolerance: float | None = None


@dataclass(frozen=True)
class Trust:
    """What the controls of the target's passes allow to be said of a method's. `wide`: whether no fault was found in
    passes over several tokens behind cached ones. `trees`: whether those over draft trees are shown to be right, or
    wrong; None: neither."""

    wide: bool = True
    trees: bool | None = True


TRUSTED = Trust()


class WidthChange(FilePart):
    """The rows of logits of passes of one width against those of passes over one token each.

    `num_equal`: rows that are equal bit for bit. `median_change`, `max_change`: of the rows' largest |Δlogit|.
    `flip_gaps`: for each row with another argmax, the gap between the two highest logits of the single pass.
    `total_variation`, `divergence`: the mean total variation and KL divergence of the distributions at temperature 1;
    null in the short form.
    `same_as`: the smallest width whose rows are the same bit for bit; 1: those of single passes; null: not compared.
    `seconds`: the fastest pass; `cost`: in fastest single passes; null: not timed. `shift`: the root mean
    square change in standard deviations of a row's logits that at most one row in ROWS_PER_OUTLIER exceeds, from the
    nearer of two other readings of the same text: single passes, and one pass over all of it; of the latter itself, the
    largest from single passes. Null in files of earlier versions, or the largest.
    """

    compared: Compared
    width: int
    prefix: Prefix = "short"
    num_positions: int
    num_equal: int
    median_change: float
    max_change: float
    max_gap_change: float
    flip_gaps: tuple[float, ...]
    total_variation: float | None
    divergence: float | None
    same_as: int | None = None
    seconds: float | None = None
    cost: float | None = None
    shift: float | None = None

    @property
    def share_equal(self) -> float:
        return self.num_equal / self.num_positions


class BatchWidth(FilePart):
    """The dependence of a target on the width of its passes, along AR's answers.

    `prefixes`: the shortest and longest prefix of each kind, in tokens. `repeated`: whether a second pass of the same
    width gave the same rows; `rolled_back`: whether it did so after wrong draft tokens were read and dropped; null: not
    tried. `rollback_change`: their largest |Δlogit|. `rounding`: the rounding step of the largest logit.
    `padding_cost`: of a target with passes of a fixed number of rows, the fastest pass over one token in fastest ones
    of one row; null: others, or not timed. `max_shift`: the largest `WidthChange.shift` that rounding explains; null in
    files of earlier versions. `sibling_change`: the largest change of a gap in rows of a draft tree when only tokens
    change that these rows must not see; null: no tree was read.
    """

    num_prompts: int
    num_positions: int
    num_changed: int
    mean_square_change: float
    rounding: float
    prefixes: dict[Prefix, tuple[int, int]]
    changes: tuple[WidthChange, ...]
    repeated: bool | None = None
    rolled_back: bool | None = None
    rollback_change: float | None = None
    padding_cost: float | None = None
    max_shift: float | None = None
    sibling_change: float | None = None

    @property
    def is_independent(self) -> bool:
        """Whether every row of every width equals that of single passes, bit for bit."""
        return _are_equal(self.changes)

    @property
    def methods_are_equal(self) -> bool:
        """Whether that is so in passes as methods make them, which read no whole answer at once."""
        kept = _without_prompts(self.changes)
        return bool(kept) and _are_equal(kept)

    def is_wrong(self, change: WidthChange) -> bool:
        """Whether more than a few rows are farther from both other readings of the same text than rounding explains.
        These two share no pass, and all three have kernels of their own: where they round differently, the other two
        differ as well."""
        return self.max_shift is not None and change.shift is not None and change.shift > self.max_shift

    @property
    def wrong_widths(self) -> tuple[int, ...]:
        """The widths whose passes are wrong behind cached tokens, though nothing was rolled back."""
        return tuple(sorted({each.width for each in self.changes if each.compared == "kept" and self.is_wrong(each)}))

    def trust(self, tree_width: int | None = None) -> Trust:
        """Returns what can be said of passes, and of those over trees of up to `tree_width` tokens."""
        trees = [each for each in self.changes if each.compared == "fresh tree"]
        if tree_width is None:
            is_right: bool | None = True
        elif any(map(self.is_wrong, trees)):
            is_right = False
        else:
            kept = self._tolerance(_without_prompts(self._used()))
            has_mask = self.sibling_change is not None and self.sibling_change <= kept
            is_right = True if trees and has_mask else None
        return Trust(not self.wrong_widths, is_right)

    def noise(self, max_width: int | None = None, tree_width: int | None = None) -> Noise:
        """Returns the noise of passes over up to `max_width` tokens, None: of all that were measured, and over trees
        of `tree_width` tokens."""
        used = self._used(max_width, tree_width)
        if tree_width is not None and self.trust(tree_width).trees:
            used += [each for each in self.changes if each.compared == "fresh tree"]
        num_positions = sum(each.num_positions for each in used)
        kept = _without_prompts(used)
        return Noise(
            num_prompts=self.num_prompts, num_positions=self.num_positions, num_changed=self.num_changed,
            max_gap_change=max((each.max_gap_change for each in used), default=0.0), tolerance=self._tolerance(used),
            mean_square_change=self.mean_square_change,
            share_equal=sum(each.num_equal for each in used) / num_positions if num_positions else None,
            kept_tolerance=self._tolerance(kept) if kept and not self.wrong_widths else None,
        )  # fmt: skip

    def _used(self, max_width: int | None = None, tree_width: int | None = None) -> list[WidthChange]:
        """Returns the changes with the width of passes over texts that are right."""
        return [
            each for each in self.changes
            if each.compared == "prompt" or (each.compared == "kept" and not self.is_wrong(each) and (
                max_width is None or each.width <= max(2, max_width) or each.width == tree_width))
        ]  # fmt: skip

    def _tolerance(self, used: Sequence[WidthChange]) -> float:
        return max(SAFETY * max((each.max_gap_change for each in used), default=0.0), ULPS * self.rounding)


def _are_equal(changes: Sequence[WidthChange]) -> bool:
    return all(each.num_equal == each.num_positions for each in changes)


def _without_prompts(changes: Sequence[WidthChange]) -> list[WidthChange]:
    return [each for each in changes if each.compared != "prompt"]


@dataclass
class _Rows:
    """What is known of the rows of one width."""

    num_equal: int = 0
    changes: list[float] = field(default_factory=list)
    gap_change: float = 0.0
    flip_gaps: list[float] = field(default_factory=list)
    distances: list[tuple[float, float]] = field(default_factory=list)  # Σ total variation, Σ KL divergence
    seconds: list[float] = field(default_factory=list)
    shifts: list[float] = field(default_factory=list)
    squares: dict[int, tuple[float, int]] = field(default_factory=dict)  # Σ E_p[(Δ ln p)²], and rows, by answer
    changed: set[str] = field(default_factory=set)  # answers of which AR would write another token

    def add(self, alone: "torch.Tensor", whole: "torch.Tensor", rows: "torch.Tensor") -> None:
        """Adds rows [n, vocab], beside those of single passes and of one pass over the whole text."""
        is_whole = rows is whole
        shifts = shift_of(alone, rows) if is_whole else shift_of(alone, rows).minimum(shift_of(whole, rows))
        self.shifts += shifts.tolist()
        self.num_equal += int((alone == rows).all(dim=-1).sum())
        self.changes += largest_changes(alone, rows).tolist()
        self.gap_change = max(self.gap_change, gap_change(alone, rows))
        highest = alone.float().topk(2, dim=-1).values
        flipped = alone.argmax(dim=-1) != rows.argmax(dim=-1)
        self.flip_gaps += (highest[:, 0] - highest[:, 1])[flipped].tolist()

    @property
    def shift(self) -> float:
        """What all rows but the outliers are within."""
        return sorted(self.shifts)[-1 - len(self.shifts) // ROWS_PER_OUTLIER]

    def result(self, compared: Compared, width: int, prefix: Prefix, same_as: int | None, single: float) -> WidthChange:
        num, seconds = len(self.changes), min(self.seconds, default=None)
        variation, divergence = map(sum, zip(*self.distances, strict=True)) if self.distances else (None, None)
        return WidthChange(
            compared=compared, width=width, prefix=prefix, num_positions=num, num_equal=self.num_equal,
            median_change=median(self.changes), max_change=max(self.changes), max_gap_change=self.gap_change,
            flip_gaps=tuple(sorted(self.flip_gaps, reverse=True)),
            total_variation=None if variation is None else variation / num,
            divergence=None if divergence is None else max(0.0, divergence / num), same_as=same_as, seconds=seconds,
            cost=seconds / single if seconds is not None and single else None,
            shift=max(self.shifts) if compared == "prompt" else self.shift,
        )  # fmt: skip


def measure_noise(
    target: "ScoringModel", answers: Sequence[BaselineAnswer], max_query_length: int, tree_width: int | None = None
) -> Noise:
    """Returns the noise of the target's logits along AR's answers. The model keeps only its last sequence."""
    return measure_batch_width(target, answers, max_query_length, tree_width).noise()


def beginnings(answers: Sequence[BaselineAnswer]) -> list[BaselineAnswer]:
    """Returns the beginnings of the first answers, along which the noise of a run is measured."""
    return [BaselineAnswer(a.name, a.prompt_ids, a.token_ids[:NUM_NOISE_TOKENS]) for a in answers[:NUM_NOISE_ANSWERS]]


def near_tie_tolerance(target: "ScoringModel", answers: Sequence[BaselineAnswer], max_query_length: int) -> float:
    """Returns the tolerance in logits, measured along the beginnings of the first NUM_NOISE_ANSWERS answers."""
    return measure_noise(target, beginnings(answers), max_query_length).tolerance


def measure_batch_width(
    target: "ScoringModel", answers: Sequence[BaselineAnswer], max_width: int, tree_width: int | None = None,
    *, whole: bool = False, progress: Say | None = None,
) -> BatchWidth:  # fmt: skip
    """Compares passes over 2 … `max_width` tokens, and over trees of `tree_width` tokens with their root, with passes
    over one token each, along AR's answers. The short form gives the noise; it reads each prompt NUM_MIXED + 2 times.
    `whole`: reads it for each width, also compares passes on one prefix, repeats them, drops wrong drafts, reads after
    a longer prefix, and times the passes. The model keeps only its last sequence. `progress`: gets the time left.

    A server, which chooses the widths of its passes, is asked only for the rows along each answer that it wrote, and
    for those after the same text as a prompt."""
    import torch

    limit = getattr(target, "context_limit", None) or math.inf
    places: list[tuple[BaselineAnswer, Prefix]] = [(answer, "short") for answer in answers]
    if whole and not target.chooses_width:
        before = [token for answer in answers for token in (*answer.prompt_ids, *answer.token_ids)]
        for answer in answers:
            room = limit - len(answer.prompt_ids) - len(answer.token_ids) - max(max_width, tree_width or 0)
            if (num := int(min(LONG_PREFIX, len(before), room))) > 0:
                prefix = [*before[:num], *answer.prompt_ids]
                places.append((BaselineAnswer(answer.name, prefix, answer.token_ids), "long"))
    settings = (max(2, max_width), tree_width, whole)
    measured = _Measurement(target, *settings)
    with torch.inference_mode():
        if progress is not None and not target.chooses_width:
            from specbench.models.planned_passes import Rehearsal, TimeLeft

            rehearsal = Rehearsal()
            rehearsed = _Measurement(rehearsal, *settings)
            for answer, prefix_kind in places:
                rehearsed.along(answer, prefix_kind)
            measured.tell = partial(_tell, progress, TimeLeft(rehearsal.passes.lengths, target.passes))
        for answer, prefix_kind in places:
            measured.along(answer, prefix_kind)
        if whole and not target.chooses_width and answers:
            measured.time_padding(answers[0])
    return measured.result(len(answers))


def _tell(progress: Say, left: "TimeLeft") -> None:
    if (seconds := left.seconds()) is not None:
        progress(f"about {format_duration(seconds)} left")


class _Measurement:
    """A measurement under way: what is known of the rows of each prefix, kind of pass, and width."""

    def __init__(self, target: "ScoringModel", max_width: int, tree_width: int | None, whole: bool) -> None:
        self.target, self.max_width, self.tree_width, self.whole = target, max_width, tree_width, whole
        self.rows: dict[tuple[Prefix, Compared, int], _Rows] = {}
        self.differing: set[tuple[Prefix, int, int]] = set()  # pairs of widths whose rows differ
        self.lengths: dict[Prefix, list[int]] = {}
        self.single_seconds: dict[Prefix, list[float]] = {}
        self.rounding = self.max_shift = 0.0
        self.sibling_change: float | None = None
        self.num_tokens: list[int] = []  # of each answer
        self.longest = 1  # tokens of an answer
        self.repeated: bool | None = None
        self.rolled_back: bool | None = None
        self.rollback_change: float | None = None
        self.padding_cost: float | None = None
        self.tell: Callable[[], None] = lambda: None  # called now and then, between passes

    def along(self, answer: BaselineAnswer, prefix: Prefix) -> None:
        """Measures along one answer."""
        import torch

        from specbench.models.scoring import max_shift

        target, start, num = self.target, len(answer.prompt_ids), len(answer.token_ids)
        ids = [*answer.prompt_ids, *answer.token_ids]
        self.lengths.setdefault(prefix, []).extend([start, start + num - 1])
        self.longest = max(self.longest, num)
        # 1. Single passes, then the answer in passes of 2, 3, … tokens, and in one pass. Nothing is rolled back.
        found: list[Found] = []  # rows, and the index of the first
        single = self._kept(ids, start, 1)
        widths = sorted({*range(2, self.max_width + 1), self.tree_width or 2})
        if target.chooses_width:
            pass
        elif self.whole:
            found += [("kept", width, 0, self._kept(ids, start, width)) for width in widths]
        else:
            for reading in range(NUM_MIXED):
                first = reading * len(widths) // NUM_MIXED
                found += self._mixed(ids, start, [*widths[first:], *widths[:first]])
        target.reset()
        whole = target.score(ids[:-1], num).logits.clone()
        found.append(("prompt", 0, 0, whole))
        if self.tree_width is not None and not target.chooses_width:
            found += self._fresh_trees(ids, start, self.tree_width)
        # 2. Passes on the same prefix.
        if self.whole and not target.chooses_width:
            found += self._blocks(ids, start, prefix)
        # 3. All of them against the single passes.
        chosen = torch.tensor(answer.token_ids, device=single.device)
        logs = single.float().log_softmax(dim=-1)
        number = len(self.num_tokens)
        for compared, width, first, rows in found:
            places = slice(first, first + len(rows))
            known = self.rows.setdefault((prefix, compared, width), _Rows())
            known.add(single[places], rows if rows is whole else whole[places], rows)
            makes_noise = compared in ("kept", "prompt")
            if not (makes_noise or self.whole):
                continue
            others = rows.float().log_softmax(dim=-1)
            probabilities, change = logs[places].exp(), logs[places] - others
            if self.whole:
                variation = float((probabilities - others.exp()).abs().sum()) / 2
                known.distances.append((variation, float((probabilities * change).nan_to_num().sum())))
            if makes_noise:
                total, num_rows = known.squares.get(number, (0.0, 0))
                total += float((probabilities * change.square()).nan_to_num().sum())
                known.squares[number] = total, num_rows + len(rows)
                if bool((rows.argmax(-1) != chosen[places]).any()):
                    known.changed.add(answer.name)
        self.rounding = max(self.rounding, torch.finfo(single.dtype).eps * float(single.float().abs().max()))
        rounds = getattr(target.underlying, "rounds", False)
        self.max_shift = max(self.max_shift, max_shift(single.dtype, rounds=rounds))
        if prefix == "short":
            self.num_tokens.append(num)

    def time_padding(self, answer: BaselineAnswer) -> None:
        """Times single passes with and without padding in turns, if the target pads them."""
        from specbench.models.causal_lm import CausalLM

        target = self.target.underlying
        if not isinstance(target, CausalLM) or target.pass_width is None:
            return
        ids = answer.prompt_ids
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for turn in range(2 * (NUM_TIMED + 1)):
            pads = turn % 2 == 0
            with nullcontext() if pads else target.without_width():
                target.score(ids, 1)  # which reads the last token anew
                start = target.passes.clock.now()
                target.score(ids, 1)
                seconds[pads].append(target.passes.clock.now() - start)
        self.padding_cost = min(seconds[True]) / min(seconds[False])
        target.reset()  # its keys and values are of both kinds

    def _kept(self, ids: list[int], start: int, width: int) -> "torch.Tensor":
        """Returns the rows before each token of an answer, from passes of `width` tokens that are all kept."""
        import torch

        self.target.reset()
        rows = [self.target.score(ids[:start], 1).logits[-1:].clone()]
        for place in range(start, len(ids) - 1, width):
            end = min(place + width, len(ids) - 1)
            rows.append(self.target.score(ids[:end], end - place).logits.clone())
        self.tell()
        return torch.cat(rows)

    def _mixed(self, ids: list[int], start: int, widths: Sequence[int]) -> "list[Found]":
        """Returns the rows of an answer from passes of these widths in turn that are all kept."""
        found: list[Found] = []
        self.target.reset()
        self.target.score(ids[:start], 1)
        place = start
        for width in cycle(widths):
            end = min(place + width, len(ids) - 1)
            if end - place < 2:
                return found
            rows = self.target.score(ids[:end], end - place).logits.clone()
            found.append(("kept", end - place, place - start + 1, rows))
            place = end
        return found

    def _blocks(self, ids: list[int], start: int, prefix: Prefix) -> "list[Found]":
        """Measures in blocks of `max_width` tokens. In each the wide passes come first and the single ones last, so
        that all of them follow keys and values that single passes wrote."""
        import torch

        found: list[Found] = []
        self.target.reset()
        self.target.score(ids[:start], 1)
        done = 0
        while (num_left := len(ids) - 1 - start - done) > 0:
            place, width = start + done, min(self.max_width, num_left)
            # 1. Passes over several tokens, the widest first.
            wide = {length: self._pass(ids, place, length, prefix) for length in range(width, 1, -1)}
            found += [("chain", length, done + 1, rows) for length, rows in wide.items()]
            if width > 1:
                self._repeat(ids, place, width, wide[width])
            if 1 < width < num_left:  # the pass after one that is kept reads its keys and values
                self._pass(ids, place, width, prefix)
                found.append(("after", width, done + width + 1, self._next(ids[: place + width + 1])))
            if self.tree_width is not None:
                found += self._tree(ids, place, done, self.tree_width)
            # 2. Passes over one token.
            singles = [self._pass(ids, place + number, 1, prefix)[0] for number in range(width)]
            self._classify(prefix, {1: torch.stack(singles), **wide})
            self.tell()
            done += width
        return found

    def _pass(self, ids: list[int], place: int, width: int, prefix: Prefix) -> "torch.Tensor":
        """Returns the rows of a pass over `width` tokens after the first `place`, all that is cached afterwards."""
        clock = self.target.passes.clock if self.whole else None
        start = clock.now() if clock is not None else 0.0
        rows = self.target.score(ids[: place + width], width).logits.clone()
        if clock is not None:
            seconds = clock.now() - start
            if width == 1:
                self.single_seconds.setdefault(prefix, []).append(seconds)
            else:
                self.rows.setdefault((prefix, "chain", width), _Rows()).seconds.append(seconds)
        return rows

    def _next(self, ids: list[int]) -> "torch.Tensor":
        return self.target.score(ids, 1).logits.clone()

    def _repeat(self, ids: list[int], place: int, width: int, rows: "torch.Tensor") -> None:
        """Makes a pass again, and once more after a pass over wrong tokens."""
        import torch

        length, vocab = place + width, rows.shape[-1]
        same = torch.equal(self.target.score(ids[:length], width).logits, rows)
        self.repeated = same and self.repeated is not False
        wrong = [(token + 1) % vocab for token in ids[place + 1 : length]]
        self.target.score([*ids[: place + 1], *wrong], width)
        again = self.target.score(ids[:length], width).logits
        self.rolled_back = torch.equal(again, rows) and self.rolled_back is not False
        change = float(largest_changes(again, rows).max())
        self.rollback_change = max(self.rollback_change or 0.0, change)

    def _tree(self, ids: list[int], place: int, done: int, width: int) -> "list[Found]":
        """Reads a tree after the first `place` tokens. Returns the rows of the right tokens, and the row after their
        path was kept."""
        nodes, parents, path = self._nodes(ids, place, width)
        if not path:
            return []
        rows = self._tree_rows(ids[: place + 1], nodes, parents, path)
        found: list[Found] = [("tree", width, done + 1, rows)]
        self.target.keep_path(path)
        if place + len(path) < len(ids) - 2:
            found.append(("after tree", width, done + len(path) + 2, self._next(ids[: place + len(path) + 2])))
        return found

    def _fresh_trees(self, ids: list[int], start: int, width: int) -> "list[Found]":
        """Reads a tree in the middle of an answer, right behind the text, and once more with other wrong tokens in the
        same places. The answer before it is read in kept passes, as by a method. Returns the rows of the right tokens
        of both."""
        place = max(start, (start + len(ids)) // 2 - 1)
        rows: list[torch.Tensor] = []
        for offset in (0, self.max_width):
            nodes, parents, path = self._nodes(ids, place, width, offset)
            if not path:
                return []
            self.target.reset()
            for end in (*range(start, place, self.max_width), place):
                self.target.score(ids[:end], 1)
            rows.append(self._tree_rows(ids[: place + 1], nodes, parents, path))
        self.sibling_change = max(self.sibling_change or 0.0, gap_change(*rows), gap_change(*rows[::-1]))
        return [("fresh tree", width, place - start + 1, each) for each in rows]

    def _tree_rows(
        self, ids: list[int], nodes: list[int], parents: Sequence[int], path: Sequence[int]
    ) -> "torch.Tensor":
        """Returns the row after `ids`, and those after the nodes of a path."""
        rows = self.target.score_tree(ids, nodes, parents, len(nodes) + 1).logits
        return rows[[0, *(node + 1 for node in path)]].clone()

    def _nodes(self, ids: list[int], place: int, width: int, offset: int = 0) -> tuple[list[int], list[int], list[int]]:
        """Returns the tokens and parents of a tree of `width` − 1 nodes behind the token at `place`: the next tokens,
        each behind wrong siblings, which depend on `offset`. And the indices of the next tokens; none if the text ends.
        """
        num_nodes = width - 1
        depth = min(num_nodes, self.max_width - 1, len(ids) - 2 - place)
        nodes: list[int] = []
        parents: list[int] = []
        path: list[int] = []
        for level in range(depth):
            num = num_nodes // depth + (level < num_nodes % depth)
            right = ids[place + 1 + level]
            parents += [path[-1] if path else -1] * num
            nodes += [(right + offset + number) % self._vocab(ids) for number in range(num - 1, 0, -1)] + [right]
            path.append(len(nodes) - 1)
        return nodes, parents, path

    def _vocab(self, ids: list[int]) -> int:
        return getattr(self.target, "vocab_size", None) or max(ids) + 1

    def _classify(self, prefix: Prefix, wide: "dict[int, torch.Tensor]") -> None:
        import torch

        for shorter, longer in combinations(sorted(wide), 2):
            num = shorter if shorter > 1 else longer  # of single passes there are as many as of the widest
            if not torch.equal(wide[longer][:num], wide[shorter][:num]):
                self.differing.add((prefix, shorter, longer))

    def result(self, num_prompts: int) -> BatchWidth:
        singles = {prefix: min(seconds) for prefix, seconds in self.single_seconds.items()}
        changes = []
        for (prefix, compared, width), rows in sorted(self.rows.items(), key=lambda item: self._order(item[0])):
            if not rows.changes:
                continue
            same = [
                shorter for shorter in range(1, width + 1) if (prefix, shorter, width) not in self.differing
            ] if compared == "chain" else [None]  # fmt: skip
            changes.append(rows.result(compared, width or self.longest, prefix, same[0], singles.get(prefix, 0.0)))
        # A fault of all wide passes must not make the noise that excuses it.
        apart = max(
            (max(rows.shifts) for (_, compared, _), rows in self.rows.items() if compared == "prompt"), default=0.0
        )
        limit = max(self.max_shift, SAFETY * apart)
        right = [
            rows for (prefix, compared, _), rows in self.rows.items()
            if prefix == "short" and (compared == "prompt" or (compared == "kept" and rows.shift <= limit))
        ]  # fmt: skip
        squares = sum(
            num * max((total / num_rows for each in right for total, num_rows in [each.squares.get(number, (0.0, 1))]))
            for number, num in enumerate(self.num_tokens)
        )
        num_positions = sum(self.num_tokens)
        return BatchWidth(
            num_prompts=num_prompts, num_positions=num_positions,
            num_changed=len(set[str]().union(*(rows.changed for rows in right))),
            mean_square_change=squares / max(1, num_positions), rounding=self.rounding,
            max_shift=limit, sibling_change=self.sibling_change,
            prefixes={prefix: (min(lengths), max(lengths)) for prefix, lengths in self.lengths.items()},
            changes=tuple(changes), repeated=self.repeated, rolled_back=self.rolled_back,
            rollback_change=self.rollback_change, padding_cost=self.padding_cost,
        )  # fmt: skip

    @staticmethod
    def _order(key: tuple[Prefix, Compared, int]) -> tuple[bool, int, int]:
        prefix, compared, width = key
        return prefix == "long", list(get_args(Compared)).index(compared), width


def largest_changes(first: "torch.Tensor", second: "torch.Tensor") -> "torch.Tensor":
    """Returns the largest |Δlogit| of each row. Logits that are −∞ in both rows do not differ."""
    return (second.float() - first.float()).nan_to_num().abs().amax(dim=-1)


def gap_change(first: "torch.Tensor", second: "torch.Tensor") -> float:
    """Returns the largest change of a distance between the highest logit of a position and another of its NUM_TOP
    highest."""
    top = first.topk(min(NUM_TOP, first.shape[-1]), dim=-1).indices
    moved = (second.float() - first.float()).gather(-1, top)
    return float((moved[..., :1] - moved).abs().max())
