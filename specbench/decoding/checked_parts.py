"""Drafters and verification rules from outside this package, also those that are given as Python functions, objects or
classes. What they raise and return is checked where it comes from, so that a mistake is one line that names the part.
Built-in parts are not checked, and no check reads a whole distribution more than once per generation."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from operator import index
from typing import Any

import torch

from specbench.core.errors import ConfigError, DrafterError, naming_code
from specbench.decoding.drafters import Drafter, LookUpDrafter
from specbench.decoding.proposal import (
    OUT_OF_VOCABULARY,
    OnDeviceProposal,
    PointMass,
    Proposal,
    TreeProposal,
    Verification,
)
from specbench.decoding.sampling import Distributions, DraftProbs, Sampling
from specbench.decoding.verification import VerificationRule
from specbench.models.causal_lm import ModelPair

TOLERANCE = 1e-3  # of a sum of probabilities
COLUMNS = ("target_prob", "draft_prob", "overlap", "divergence", "draw_overlap")


def shown(value: object) -> str:
    """Returns a value for a message, with its type."""
    return f"{value!r:.60} ({type(value).__name__})" if value is not None else "None"


def integer(place: str, value: object, least: int, most: int, what: str = "token") -> int:
    """Returns an integer of any kind, such as NumPy's, as an int. Raises DrafterError for other values and for one that
    is not from `least` to `most`."""
    try:
        number = index(value)  # type: ignore[arg-type]
    except Exception as error:  # tensors raise several classes
        raise DrafterError(f"{place} returned {what} = {shown(value)}: return an integer") from error
    if not least <= number <= most:
        raise DrafterError(f"{place} returned {what} {number}: it must be from {least} to {most}")
    return number


NAMED = frozenset({
    "prefill", "observe", "rehearse", "reserve", "rewind", "tree_lengths", "level_lengths", "chain_lengths",
    "begin_cell",
})  # fmt: skip


class CheckedDrafter(Drafter):
    """A drafter of a user, with checks of its proposals. It has all attributes of that drafter.

    `needs_probs`: whether the method's rule reads draft probabilities.
    """

    def __init__(self, part: Drafter, place: str, vocab_size: int, needs_probs: bool) -> None:
        self._part, self.place, self._vocab_size, self._needs_probs = part, place, vocab_size, needs_probs
        self._is_first = True  # the first proposal of a generation

    def __getattribute__(self, name: str) -> Any:
        if name in ("propose", "place") or name.startswith("_"):
            return object.__getattribute__(self, name)
        value = getattr(self._part, name)
        return self._named(name, value) if name in NAMED else value

    def _named(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            self._is_first |= name == "prefill"
            with naming_code(f"{self.place}, {name}", DrafterError):
                return method(*given, **named)

        return call

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        place = self.place
        length = len(ids)
        last = ids[-1]
        with naming_code(place, DrafterError):
            found: Any = self._part.propose(ids, num_draft_tokens, generator)
        if len(ids) != length or ids[-1] != last:
            raise DrafterError(f"{place} changed the list `ids`, which is the sequence itself: change a copy")
        if not isinstance(found, Proposal):
            raise DrafterError(f"{place} returned {shown(found)}: return a Proposal, empty if nothing is drafted")
        if not isinstance(found, OnDeviceProposal):  # reading its tokens would wait for the device
            self._check(found, num_draft_tokens)
        return found

    def _check(self, proposal: Proposal, num_draft_tokens: int) -> None:
        """Raises DrafterError for tokens and probabilities that no rule can verify."""
        # 1. Tokens: a list of ints, of which only the last may be none of the vocabulary's.
        place = self.place
        given = proposal.token_ids
        if not isinstance(given, list | tuple):
            raise DrafterError(f"{place} returned token_ids = {shown(given)}: give a list of token ids")
        foreign = list(given[-1:]) if given and given[-1] == OUT_OF_VOCABULARY else []
        known = [integer(place, token, 0, self._vocab_size - 1) for token in given[: len(given) - len(foreign)]]
        proposal._token_ids = tokens = known + foreign
        if proposal.num_drafted > num_draft_tokens:
            unit = "levels" if isinstance(proposal, TreeProposal) else "tokens"
            raise DrafterError(
                f"{place} proposed {proposal.num_drafted} {unit} where num_draft_tokens = {num_draft_tokens}: propose "
                "at most that many, which may be 0 near the end of an answer"
            )
        if not tokens or isinstance(proposal, TreeProposal):
            return
        # 2. Probabilities. Whole rows are read once in a generation; those of the tokens at every step, unless this
        #    would wait for a device.
        probs: object = proposal.probs
        if probs is None and self._needs_probs:
            raise DrafterError(
                f"{place} gives no probs, which the rule needs: give PointMass(token_ids), or the Distributions that "
                "the tokens were drawn from"
            )
        is_first, self._is_first = self._is_first, False
        if isinstance(probs, PointMass):
            if len(probs._token_ids) != len(tokens):
                raise DrafterError(f"{place} gave a PointMass of {len(probs._token_ids)} tokens for {len(tokens)}")
        elif isinstance(probs, DraftProbs):
            with naming_code(f"{place}, its probs", DrafterError):
                self._check_probs(proposal, probs, is_first)
        elif probs is not None:
            raise DrafterError(f"{place} gave probs = {shown(probs)}: give a PointMass or Distributions")

    def _check_probs(self, proposal: Proposal, probs: DraftProbs, is_first: bool) -> None:
        place = self.place
        num_tokens = len(proposal.token_ids)
        device = torch.device("cpu")
        if isinstance(probs, Distributions) and not probs._parts:
            rows = probs._logits if probs._given_probs is None else probs._given_probs
            shape = list(getattr(rows, "shape", ()))
            right = [num_tokens, self._vocab_size]
            if rows is None or shape != right:
                raise DrafterError(f"{place} gave probs of shape {shape}: give {right}, a row for each draft token")
            device = rows.device
            if is_first and rows is probs._given_probs:
                sums = rows.sum(dim=-1)
                if not bool(((sums - 1).abs() <= TOLERANCE).all()) or bool((rows < 0).any()):
                    raise DrafterError(f"{place} gave probs whose rows sum to {sums.tolist()!s:.60}: give sums of 1")
        if is_first or (isinstance(probs, Distributions) and device.type == "cpu"):
            values = torch.as_tensor(probs.token_probs(proposal.on(device)))
            is_probable = list(values.shape) == [num_tokens] and bool(((values >= 0) & (values <= 1 + TOLERANCE)).all())
            if not is_probable:
                raise DrafterError(
                    f"{place} gave its tokens the probabilities {values.tolist()!s:.60}: give each one from 0 to 1"
                )


class CheckedRule(VerificationRule):
    """A rule of a user, with checks of its decisions."""

    def __init__(self, part: Callable[..., Any], place: str, vocab_size: int) -> None:
        self._part, self.place, self._vocab_size = part, place, vocab_size
        self.compares_processed = getattr(part, "compares_processed", False)

    def __call__(self, proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verification:
        """Returns the rule's decision, given as a Verification or as (num_accepted, next_token)."""
        place = self.place
        with naming_code(place, DrafterError):
            found: Any = self._part(proposal, target, generator)
        if isinstance(found, tuple | list) and len(found) == 2:
            found = Verification(*found)
        if not isinstance(found, Verification):
            raise DrafterError(f"{place} returned {shown(found)}: return a Verification, or (num_accepted, next_token)")
        num_drafted = proposal.num_drafted
        nodes = found.nodes
        num_accepted = integer(place, found.num_accepted, 0, num_drafted, "num_accepted")
        next_token = integer(place, found.next_token, 0, self._vocab_size - 1, "next_token")
        if nodes is not None and len(nodes) != num_accepted:
            raise DrafterError(
                f"{place} returned {len(nodes)} nodes and num_accepted {num_accepted}: return num_accepted nodes"
            )
        for node, parent in zip(nodes or (), (-1, *(nodes or ())), strict=False):
            if not 0 <= node < len(proposal.token_ids) or proposal.parents[node] != parent:
                raise DrafterError(f"{place} returned the nodes {shown(nodes)}: they are not a path from the root")
        num_verified = min(num_drafted, num_accepted + 1)
        remedy = "give a number for each verified token"
        for name in COLUMNS:
            column: Any = getattr(found, name)
            is_tensor = isinstance(column, torch.Tensor)
            is_flat = column.ndim == 1 if is_tensor else isinstance(column, list | tuple)
            if column is not None and (not is_flat or len(column) < num_verified):
                raise DrafterError(f"{place} returned {name} = {shown(column)}: {remedy}")
            if column is None or (is_tensor and column.device.type != "cpu"):  # reading it would wait for the device
                continue
            for value in column.tolist() if is_tensor else column:
                if not isinstance(value, int | float) or value != value:
                    raise DrafterError(f"{place} returned {name} with {shown(value)}: {remedy}")
        return replace(found, num_accepted=num_accepted, next_token=next_token)

    def child_chance(self, tree: TreeProposal, node: int, target: Distributions) -> float | None:
        if not isinstance(self._part, VerificationRule):
            return None
        with naming_code(self.place, DrafterError):
            return self._part.child_chance(tree, node, target)


# What torch keeps for the whole process, or for the thread: how it is read and set.
STATES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "the default device": (
        torch.get_default_device,
        lambda device: torch.set_default_device(None if device.type == "cpu" else device),
    ),
    "the seed of the global generator": (torch.initial_seed, torch.manual_seed),
    "the number of threads": (torch.get_num_threads, torch.set_num_threads),
    "the gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "the deterministic mode": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "the precision of float32 products": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
}


@contextmanager
def same_torch_state(place: str) -> Iterator[None]:
    """Raises DrafterError if the block leaves torch in another state, with which other methods would then run. The
    state is restored. What is compared takes microseconds, outside of any measured time."""
    before = {name: get() for name, (get, _) in STATES.items()}
    try:
        yield
    finally:
        changed = [(name, before[name], now) for name, (get, _) in STATES.items() if (now := get()) != before[name]]
        for name, old, _ in changed:
            STATES[name][1](old)
    if changed:
        what = ", ".join(f"{name} from {old} to {now}" for name, old, now in changed)
        raise DrafterError(f"{place} changed torch's global state, which all methods share ({what}): restore it")


class FunctionDrafter(LookUpDrafter):
    """Drafts the tokens that a function returns for the token ids so far and a number of draft tokens. Tokens beyond
    that number are dropped. `place`: begins the messages about what it returns."""

    def __init__(self, function: Callable[[list[int], int], Any], vocab_size: int, place: str = "the drafter") -> None:
        super().__init__()
        self.function, self.vocab_size, self.place = function, vocab_size, place

    def look_up(self, ids: list[int], num_draft_tokens: int) -> tuple[list[int], None]:
        place = self.place
        with naming_code(place, DrafterError):
            found: Any = self.function(list(ids), num_draft_tokens)
        is_listed = isinstance(found, Iterable) and not isinstance(found, str | bytes | Mapping | Set)
        if not is_listed or getattr(found, "ndim", 1) != 1:
            raise DrafterError(f"{place} returned {shown(found)}: return a list of token ids, empty to draft nothing")
        with naming_code(place, DrafterError):  # an iterator runs the user's code, and may have no end
            first = list(islice(found, num_draft_tokens))
        return [integer(place, token, 0, self.vocab_size - 1) for token in first], None


class FunctionRule(VerificationRule):
    """The rule that a function of the proposal, the target's distributions and the random generator defines."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function


def drafter_factory(part: Any) -> Callable[..., Any]:
    """Returns the factory of a drafter that is given as an object or a function; a class is its own factory.

    Raises ConfigError for anything else, and for an object that proposes trees, since only factories declare shapes.
    """
    if isinstance(part, Drafter) and part.draws is not None:
        raise ConfigError(
            f"drafter {type(part).__name__}: proposes trees: give a factory with @DRAFTERS.declare(tree_shape=…)"
        )

    def make(models: ModelPair, sampling: Sampling) -> Drafter:
        return FunctionDrafter(part, models.target.vocab_size)

    return _factory(part, Drafter, make, "drafter", "draft", ("ids", "num_draft_tokens"))


def rule_factory(part: Any) -> Callable[..., Any]:
    """Returns the factory of a rule that is given as an object or a function; a class is its own factory. Raises
    ConfigError for anything else."""
    arguments = ("proposal", "target", "generator")
    return _factory(part, VerificationRule, lambda: FunctionRule(part), "rule", "verify", arguments)


def _factory(
    part: Any, base: type, make: Callable[..., Any], key: str, verb: str, arguments: Sequence[str]
) -> Callable[..., Any]:
    """`make`: the factory for a function. `arguments`: those with which the function is called."""
    if isinstance(part, type):
        return part
    if isinstance(part, base):
        return lambda *given: part
    if not callable(part):
        raise ConfigError(f"{key} = {shown(part)}: cannot {verb}: give a name, a function or a {base.__name__}")
    name = getattr(part, "__name__", type(part).__name__)
    call = f"{key} '{name}': is called as {name}({', '.join(arguments)})"
    if inspect.iscoroutinefunction(part) or inspect.isasyncgenfunction(part):
        raise ConfigError(f"{call}: write it with def, not async def")
    try:
        inspect.signature(part).bind(*arguments)
    except TypeError as error:
        raise ConfigError(f"{call}, but its signature does not take this: {error}") from error
    except ValueError:  # built-in functions do not tell theirs
        pass
    return make
