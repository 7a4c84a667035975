"""An acceptance profile in the forms in which engines force acceptance, for benchmarks without a trained drafter.

    engine        option                                       what it takes                 the target's own token
    vLLM          synthetic_acceptance_rates                   r of all K positions          not counted
                  synthetic_acceptance_length                  a length from 1 to K + 1      counted
    SGLang        SGLANG_SIMULATE_ACC_LEN                      a length from 1 to K + 1      counted
    TensorRT-LLM  TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS   accepted tokens, 0 is off     not counted
    llama.cpp     --spec-synth-rates                           r of all K positions          not counted
                  --spec-synth-len                             a length from 1 to K + 1      counted
    InferenceX    golden acceptance lengths (YAML)             measured lengths by K         counted

r never rises, and engines refuse rates that do. Rates give every engine that takes them the same distribution of
lengths; from a length, each makes another one. No engine knows ends of texts, so that lengths are 1 + Σ r; only the
lengths for InferenceX are those that were measured, ends included.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from specbench.core.errors import ConfigError, nearest
from specbench.records.profile import Profile, ProfileCell, ProfileEntry

Form = Literal["rates", "length"]
FORMS: tuple[Form, ...] = ("rates", "length")
SHORT_DRAFTS = ("skip", "reject")
MANY_SHORT = 0.1  # share of the steps


@dataclass(frozen=True)
class Forced:
    """What an engine is to force. `rates`: r of each position, [num_draft_tokens]. `notes`: what a user must know."""

    rates: tuple[float, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, entry: ProfileEntry, cell: ProfileCell, short_drafts: str, form: Form) -> "Forced":
        """`short_drafts`: whether positions that a step did not draft are left out (skip), or count as rejected
        (reject). Raises ConfigError for rates of trees, and if no position was verified."""
        if entry.shape == "tree" and form == "rates":
            raise ConfigError(
                f"entry {entry.id}: is of draft trees, whose levels are not positions of a chain: engines force rates "
                "of chains only: give --form length"
            )
        notes = []
        if short_drafts == "reject":
            rates = rates_of_steps(cell)
        else:
            rates = cell.unconditional
            if cell.share_short > MANY_SHORT:
                measured = cell.mean_acceptance_length.pooled.value
                notes.append(
                    f"{cell.share_short:.0%} of the steps drafted fewer than {entry.num_draft_tokens} tokens: the "
                    f"measured length is {measured:.2f}, that of these rates {1 + sum(rates):.2f}: --short-drafts "
                    "reject counts what was not drafted as rejected"
                )
        if not rates:
            raise ConfigError(f"entry {entry.id}, {cell.name}: no position was verified")
        if len(rates) < entry.num_draft_tokens:
            notes.append(
                f"positions {len(rates) + 1} to {entry.num_draft_tokens} were never verified: this is for "
                f"{len(rates)} draft tokens"
            )
        if entry.shape == "tree":
            notes.append(
                "of draft trees: the length counts levels, at the cost of a tree, which the engine may not have"
            )
        return cls(tuple(round(rate, 6) for rate in rates), tuple(notes))

    @property
    def length(self) -> float:
        """Tokens per step with the target's own one, from 1 to num_draft_tokens + 1."""
        return round(1 + sum(self.rates), 4)

    @property
    def num_draft_tokens(self) -> int:
        return len(self.rates)


def rates_of_steps(cell: ProfileCell) -> list[float]:
    """Returns r of each position where a draft that ended before it counts as rejected there. Steps that the end of the
    text cut are followed up to the cut."""
    both = [whole + cut for whole, cut in zip(cell.histogram, cell.histogram_cut, strict=True)]
    rates, product = [], 1.0
    for place in range(1, len(both)):
        accepted = sum(both[place:])
        reached = accepted + cell.histogram[place - 1]
        product *= accepted / reached if reached else 0.0
        rates.append(product)
    return rates


def vllm(forced: Forced, form: Form) -> str:
    """Returns keys for vLLM's --speculative-config, to which method and model must be added."""
    value = {"synthetic_acceptance_rates": list(forced.rates)}
    keys = value if form == "rates" else {"synthetic_acceptance_length": forced.length}
    first = {"num_speculative_tokens": forced.num_draft_tokens, "rejection_sample_method": "synthetic"}
    return json.dumps({**first, **keys})


def sglang(forced: Forced, form: Form) -> str:
    """Returns environment variables. With the default method of older versions the mean would not be exact, and with
    the default token every step emits the same one."""
    values = {"LEN": f"{forced.length:g}", "METHOD": "match-expected", "TOKEN_MODE": "real-draft-token"}
    lines = (f"SGLANG_SIMULATE_ACC_{name}={value}" for name, value in values.items())
    return "\n".join((f"# for {forced.num_draft_tokens} draft tokens per step", *lines))


def tensorrt_llm(forced: Forced, form: Form) -> str:
    """Returns an environment variable. Raises ConfigError for a length of 1, since 0 turns forcing off."""
    accepted = round(forced.length - 1, 4)
    if not accepted:
        raise ConfigError("TensorRT-LLM: cannot force 0 accepted tokens, which turns forcing off: measure it without")
    setting = f"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS={accepted:g}"
    return f"# for {forced.num_draft_tokens} draft tokens per step\n{setting}"


def llama_cpp(forced: Forced, form: Form) -> str:
    """Returns options of llama-server."""
    most = f"--spec-draft-n-max {forced.num_draft_tokens}"
    if form == "rates":
        return f"{most} --spec-synth-rates {','.join(f'{rate:g}' for rate in forced.rates)}"
    return f"{most} --spec-synth-len {forced.length:g}"


ENGINES: Mapping[str, tuple[Callable[[Forced, Form], str], tuple[Form, ...]]] = {
    "vllm": (vllm, FORMS), "sglang": (sglang, ("length",)), "tensorrt-llm": (tensorrt_llm, ("length",)),
    "llama.cpp": (llama_cpp, FORMS),
}  # fmt: skip
INFERENCEX = "inferencex"
NAMES = (*ENGINES, INFERENCEX)


def export(
    profile: Profile, engine: str, *, entry: str | None = None, cell: str | None = None, form: str | None = None,
    short_drafts: str = "skip", lengths: Sequence[int] = (),
) -> tuple[str, tuple[str, ...]]:  # fmt: skip
    """Returns the text for an engine, and notes for the user.

    `entry`: id or method; not needed if the profile has one. `cell`: BY=VALUE, by default the total. `form`: rates or
    length, by default the first that the engine takes. `lengths`: inferencex only: further draft lengths, computed from
    rates. Raises ConfigError for unknown names, and for what the engine does not take.
    """
    check_options(engine, form, short_drafts, lengths)
    if engine == INFERENCEX:
        return inferencex(profile.entries_of(entry), cell, lengths)
    write, forms = ENGINES[engine]
    chosen: Form = forms[0] if form is None else "rates" if form == "rates" else "length"
    found = profile.entry(entry)
    forced = Forced.of(found, found.cell(cell), short_drafts, chosen)
    return write(forced, chosen), forced.notes


def check_options(engine: str, form: str | None, short_drafts: str, lengths: Sequence[int]) -> None:
    """Raises ConfigError for unknown words, and for what the engine does not take."""
    known = {"--export": (engine, NAMES), "--form": (form, FORMS), "--short-drafts": (short_drafts, SHORT_DRAFTS)}
    for option, (word, words) in known.items():
        if word is not None and word not in words:
            raise ConfigError(f"{option} {word}: {nearest(word, words)}")
    if engine == INFERENCEX and form == "rates":
        raise ConfigError("--form rates: InferenceX takes lengths only: leave the option out")
    if engine == INFERENCEX and short_drafts != "skip":
        raise ConfigError(f"--short-drafts {short_drafts}: InferenceX takes measured lengths: leave the option out")
    if engine != INFERENCEX and lengths:
        raise ConfigError(f"--lengths: is for --export {INFERENCEX}: {engine} takes one draft length: leave it out")
    if engine in ENGINES and form not in (None, *(forms := ENGINES[engine][1])):
        raise ConfigError(f"--form {form}: {engine} takes no {form}: give --form {forms[0]}, or leave the option out")


def inferencex(
    entries: Sequence[ProfileEntry], cell: str | None, lengths: Sequence[int]
) -> tuple[str, tuple[str, ...]]:
    """Returns golden acceptance lengths: model → thinking_on or thinking_off → draft length → tokens per step.

    A measured length is the pooled one. `lengths`: draft lengths that were not measured; their length is 1 + Σ r over
    the positions of the next longer measured one, and marked as computed. Raises ConfigError if two entries have one
    place, and for a length beyond the measured ones.
    """
    chosen: dict[str, dict[str, dict[int, ProfileEntry]]] = {}
    for entry in entries:
        place = chosen.setdefault(entry.target.name, {}).setdefault(f"thinking_{entry.conditions.thinking}", {})
        other = place.setdefault(entry.num_draft_tokens, entry)
        if other is not entry:
            raise ConfigError(
                f"entries {other.id} and {entry.id} are both {entry.num_draft_tokens} draft tokens on "
                f"{entry.target.name}: name one of them with --entry"
            )
    lines, notes = [], []
    for entry in entries:
        found = entry.cell(cell)
        pooled = found.mean_acceptance_length.pooled
        interval = "" if pooled.low is None else f", 95 % interval {pooled.low:.2f} to {pooled.high:.2f}"
        tasks = ", ".join(dict.fromkeys(each.task.partition("@")[0] for each in entry.conditions.prompts))
        lines.append(
            f"# {entry.id} ({found.name}): {tasks}, {found.prompts} prompts, {found.steps} steps, temperature "
            f"{entry.conditions.temperature:g}, drafter {entry.drafter.name if entry.drafter else 'none'}{interval}"
        )
    for target, modes in chosen.items():
        lines.append(f"{json.dumps(target)}:")
        for mode, measured in modes.items():
            lines.append(f"  {mode}:")
            for number in sorted({*measured, *lengths}):
                if number in measured:
                    pooled = measured[number].cell(cell).mean_acceptance_length.pooled
                    lines.append(f"    {number}: {pooled.value:.2f}")
                    continue
                source = min((each for each in measured if each > number), default=None)
                rates = measured[source].cell(cell).unconditional if source is not None else []
                if source is None or len(rates) < number or measured[source].shape == "tree":
                    raise ConfigError(
                        f"--lengths {number}: cannot be computed: {target}, {mode} has measured chains of "
                        f"{', '.join(map(str, sorted(measured)))} draft tokens: give a smaller number, or measure it"
                    )
                lines.append(f"    {number}: {1 + sum(rates[:number]):.2f}  # computed from the rates of {source}")
                notes.append(f"{target}, {mode}, {number} draft tokens: computed, not measured")
    return "\n".join(lines), tuple(notes)
