"""What methods require of recorded or compiled models: the shapes of passes, and the capacity for prompts and
answers."""

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from specbench.core.errors import ConfigError
from specbench.core.progress import Say, say_nothing
from specbench.decoding.build import pauses
from specbench.decoding.decoder import Decoder, drafting_decoders
from specbench.decoding.drafters import padded_lengths
from specbench.models.causal_lm import CausalLM
from specbench.models.scoring import PACKED, VERBS, PassShape
from specbench.records.records import Record
from specbench.running.models import LoadedModels, parts, uses_bridge
from specbench.running.plan import SubsetRun, Trial
from specbench.running.prompts import PromptRenderer, Texts, fitting_turn, translated_ids
from specbench.running.warm_up import MIN_NEW_TOKENS, longest_conversation, unanswered_conversations, warm_up_ids
from specbench.specs.method import MethodSpec, inner_name, proposes_trees

# Margins for answers in another vocabulary, which may need more tokens per target token than prompts, short ones most.
SPARE, SPARE_TOKENS = 1.5, 16


@dataclass
class CompileRequirements:
    """The requirements of methods on one model.

    `lengths`: the lengths of its passes in tokens. `shapes`: the shapes of its passes over trees and of those that
    return hidden states. `has_own_tokens`: it drafts in another vocabulary than the target's. `packs`: it scores
    several continuations per pass. `num_nodes`: the nodes of a draft tree that it holds behind its text. `decodes`: it
    decodes alone. `limit`: the maximum number of tokens in its context; None if there is no limit.
    """

    model: CausalLM
    target: CausalLM
    limit: int | None
    lengths: set[int] = field(default_factory=lambda: {1})
    shapes: set[PassShape] = field(default_factory=set)
    has_own_tokens: bool = False
    packs: bool = False
    num_nodes: int = 0
    decodes: bool = False

    def room(self, ids: list[int], num_new: int) -> int:
        """Returns the number of tokens that the model must hold for a prompt `ids` and an answer of `num_new` tokens,
        both in the target's vocabulary."""
        num_read = len(ids)
        if self.has_own_tokens:
            num_read = len(translated_ids(ids, self.target, self.model))
            num_new = math.ceil(num_new * SPARE * max(1, num_read / max(len(ids), 1))) + SPARE_TOKENS
        return min(num_read + num_new, self.limit or num_read + num_new)

    def room_for(self, texts: Texts, num_new: int, renderer: PromptRenderer) -> int:
        """Returns the number of tokens that the model must hold for a conversation. A model that decodes alone also
        needs room for the conversation in its own encoding."""
        most = self.room(renderer.render(self.target, texts).ids, num_new)
        own = len(renderer.render(self.model, texts).packed_ids) + num_new if self.decodes else 0
        return max(most, min(own, self.limit or own))


def chain_lengths(method: MethodSpec) -> set[int]:
    """Returns the lengths of the target's passes over a draft and the token before it. Shorter ones are padded, which
    drafts of a varying length would pay in most steps."""
    most = method.num_draft_tokens
    return {most + 1} if method.draft_length is None else set(padded_lengths(most))


def compile_requirements(
    models: LoadedModels, methods: Sequence[MethodSpec], decoders: Iterable[Decoder] = ()
) -> list[CompileRequirements]:
    """Returns the requirements of methods on every model. `decoders`: the methods' decoders; their drafters may propose
    trees or read hidden states."""
    target = models.target
    limit = models.context_limit(methods)
    by_model = {id(model): CompileRequirements(model, target, limit) for model in (target, *models.drafters.values())}
    for part in parts(methods):
        drafter = models.drafters.get(part.name)
        if part.decodes_with != "target":
            if drafter is not None:
                by_model[id(drafter)].decodes = True
            continue
        verified = part.num_draft_tokens + 1
        if not proposes_trees(part):
            by_model[id(target)].lengths |= chain_lengths(part)
        if drafter is None:
            continue
        need = by_model[id(drafter)]
        need.lengths.add(2)  # if all draft tokens were accepted, it reads the last of them and the bonus token
        if uses_bridge(part):
            need.has_own_tokens = True
            need.limit = drafter.context_limit
            need.lengths.add(verified)
        if pauses(part):
            need.limit = drafter.context_limit
        if (inner := models.drafters.get(inner_name(part))) is not None:
            by_model[id(inner)].lengths.add(2)
        if part.bridge.type == "string":  # scores several continuations per pass
            need.packs = True
            need.lengths |= set(PACKED)
    # Passes over trees, and those that return hidden states.
    for decoder in drafting_decoders(decoders):
        drafting = decoder.drafter
        num_tokens = decoder.method.num_draft_tokens
        trees = drafting.tree_lengths(num_tokens)
        hidden = drafting.hidden_layers
        shapes = {PassShape(length, "tree", hidden) for length in trees}
        if hidden:
            lengths = set() if trees else chain_lengths(decoder.method)
            shapes |= {PassShape(length, "chain", hidden) for length in {1, *lengths}}
        by_model[id(decoder.model)].shapes |= shapes
        draft_model = None if drafting.model is None else drafting.model.underlying
        if id(draft_model) in by_model:
            need = by_model[id(draft_model)]
            levels = drafting.level_lengths(num_tokens)
            need.shapes |= {PassShape(length, "tree") for length in levels}
            need.lengths |= set(drafting.chain_lengths(num_tokens))
            need.num_nodes = max(need.num_nodes, sum(levels))
    return list(by_model.values())


FILE = "compilations.jsonl"  # in a run's folder: one line per subset and model with new passes


@dataclass(frozen=True)
class Compilation:
    """The compilation or recording of a model's passes for a subset. No measured speed includes its seconds."""

    task: str
    subset: str
    model: str
    capacity: int
    num_passes: int
    seconds: float
    engine: str = "compiled"


def num_compilations() -> int:
    """Returns the number of graphs that torch has compiled plus the number of CUDA graphs recorded in this process."""
    from specbench.models.recording import num_recordings

    if "torch._dynamo" not in sys.modules:
        return num_recordings()
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"]) + num_recordings()


def check_nothing_compiled(since: int, trial: Trial) -> None:
    """Raises ConfigError if a pass was compiled or recorded while a trial was measured, which is then not kept."""
    if number := num_compilations() - since:
        where = f"{trial.run.task.name}/{trial.run.subset} example {trial.example.id}"
        raise ConfigError(
            f"{where}: {number} passes were compiled or recorded while it was measured, so its time includes more than "
            "decoding, and the trial is not kept: take --engine eager, or a smaller generation.max_new_tokens"
        )


def allocate_and_capture(run: SubsetRun, progress: Say = say_nothing) -> Iterator[Compilation]:
    """Allocates the buffers and compiles or records the passes of every model for the longest conversation of a
    subset. Buffers and passes of earlier subsets are kept and reused. `progress` receives lines."""

    def room(need: CompileRequirements) -> int:
        key = id(need.model)
        if key in run.most_tokens:
            return run.most_tokens[key]
        num_new = run.task.generation.max_new_tokens
        conversations = unanswered_conversations(run)
        most = max(need.room_for(texts, (len(texts) // 2 + 1) * num_new, run.renderer) for texts in conversations)
        if need.has_own_tokens:  # the text of the warm-up may have more tokens
            num_tokens = longest_conversation(run, need.target)
            ids = warm_up_ids(need.target, num_tokens, MIN_NEW_TOKENS)
            most = max(most, need.room(ids, num_tokens - len(ids)))
        run.most_tokens[key] = most
        return most

    methods = [decoder.method for decoder in run.decoders]
    yield from _allocate_and_capture(
        run.models, methods, run.decoders, room, progress, (run.task.name, run.subset), True
    )


def allocate_and_capture_for_trial(
    trial: Trial, earlier: Sequence[Record], progress: Say = say_nothing
) -> Iterator[Compilation]:
    """Compiles or records missing passes for a trial before it is measured. They are rarely missing: an earlier answer
    may have more tokens when its text is encoded again than when it was generated. `earlier`: the records of the
    earlier turns."""
    run = trial.run
    if run.models.target.static is None:
        return
    methods = [decoder.method for decoder in run.decoders]
    histories = ([record.methods[method.name].answer for record in earlier] for method in methods)
    read = {fitting_turn(run.renderer, trial.example, trial.turn, answers) for answers in histories}
    num_new = run.task.generation.max_new_tokens

    def room(need: CompileRequirements) -> int:
        return max(need.room_for(texts, num_new, run.renderer) for texts in read)

    yield from _allocate_and_capture(run.models, methods, run.decoders, room, progress, (run.task.name, run.subset))


def _allocate_and_capture(
    models: LoadedModels, methods: Sequence[MethodSpec], decoders: Sequence[Decoder],
    room: Callable[[CompileRequirements], int], progress: Say, place: tuple[str, str], exactly: bool = False,
) -> Iterator[Compilation]:  # fmt: skip
    for need in compile_requirements(models, methods, decoders):
        sequence = need.model.static
        if sequence is None:
            if need.model.needs_room:
                need.model.sequence.make_room(room(need) + need.num_nodes)
            continue
        number, seconds = sequence.reserve(
            room(need) + need.num_nodes, sorted(need.lengths), need.packs, shapes=need.shapes, exactly=exactly,
            progress=progress,
        )  # fmt: skip
        for decoder in drafting_decoders(decoders):
            if decoder.drafter.model is need.model:
                num_drafts, more = decoder.drafter.reserve(decoder.method.num_draft_tokens)
                number, seconds = number + num_drafts, seconds + more
        if number:
            yield Compilation(*place, need.model.name, sequence.capacity, number, seconds, sequence.engine)


def allocate_and_capture_for(
    models: LoadedModels, methods: Sequence[MethodSpec], num_tokens: int, progress: Say,
    prompts: Sequence[list[int]] = ([],), decoders: Sequence[Decoder] = (),
) -> None:  # fmt: skip
    """Compiles or records the passes that methods need, with room for `num_tokens` tokens of the target after any of
    the `prompts`, and the drafts of `decoders`."""

    def room(need: CompileRequirements) -> int:
        return max(need.room(ids, num_tokens) for ids in prompts)

    list(_allocate_and_capture(models, methods, decoders, room, progress, ("", ""), True))


def log_compilation(folder: Path, compilation: Compilation) -> str:
    """Appends a compilation to the file in the run's folder. Returns a line that describes it."""
    with (folder / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(compilation)) + "\n")
    return (
        f"{compilation.task}/{compilation.subset}: {VERBS[compilation.engine]} {compilation.num_passes} passes of "
        f"{compilation.model} for {compilation.capacity} tokens in {compilation.seconds:.0f} s"
    )
