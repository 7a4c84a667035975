"""Methods composed for an audit, and the wrong one that every audit must catch."""

from collections.abc import Sequence
from dataclasses import replace

from specbench.audit.draws import Generates, accept_everything
from specbench.audit.methods import Subject
from specbench.audit.verdict import Verdict, VerdictName, declaration
from specbench.decoding.drafters.model import ModelDrafter
from specbench.decoding.sampling import Sampling
from specbench.errors import ConfigError
from specbench.external.entry import load, takes_sampling
from specbench.models.causal_lm import CausalLM
from specbench.models.pair import ModelPair
from specbench.running.compose import compose
from specbench.running.models import Models, parts
from specbench.specs import MethodSpec

GREEDY = Sampling(0.0)
HOTTER = 1.5
EAGER = "ar (eager)"


def make_subjects(
    methods: Sequence[MethodSpec], models: Models, sampling: Sampling, strict: bool
) -> tuple[list[Subject], list[Verdict]]:
    """The methods that the models fit, and verdicts on the others. Raises ConfigError for one of these if `strict`."""
    subjects, others = [], []
    for method in methods:
        if method.decodes_with == "drafter" and not speaks_as(models.drafters[method.name], models.target):
            reason = "its tokens are the drafter's, which are not the target's: nothing to compare"
            others.append(without_evidence("lossy by design", method, reason))
            continue
        try:
            subjects.append(make_subject(method, models.pair(method), sampling))
        except ConfigError as error:
            if strict:
                raise
            others.append(without_evidence("not run", method, str(error)))
    return subjects, others


def make_subject(method: MethodSpec, pair: ModelPair, sampling: Sampling) -> Subject:
    """A method composed for greedy decoding and for draws; ConfigError where it fits neither."""
    subject = Subject(method.name, declaration(method), method.most_draft_tokens, greedy=None, drawing=None)
    try:
        subject.greedy = compose(method, pair, GREEDY)
    except ConfigError as error:
        subject.refuse("greedy", error)
        subject.drawing = compose(method, pair, sampling)
        return subject
    if method.decoder is not None and not takes_sampling(load(method.decoder.entry)):
        subject.note = "nothing drawn: its code takes no 'sampling', so it decodes greedily only"
        return subject
    try:
        subject.drawing = compose(method, pair, sampling)
    except ConfigError as error:
        subject.refuse("draws", error)
    return subject


def eager_subject(baseline: MethodSpec, target: CausalLM) -> Subject:
    """AR of a compiled target as the eager engine reads it: whether both engines write the same. What they differ by is
    no part of the noise, or it would forgive itself."""
    eager = CausalLM(target.model, target.tokenizer, target.name, target.revision)
    made = compose(baseline, ModelPair(eager), GREEDY)
    return Subject(EAGER, True, 0, greedy=made, drawing=None, note="AR of --engine eager beside that of this engine")


def without_evidence(verdict: VerdictName, method: MethodSpec, reason: str) -> Verdict:
    """The verdict on a method that nothing was tried with."""
    return Verdict(method=method.name, verdict=verdict, declared_lossless=declaration(method), reason=reason)


def same_vocabulary_drafter(methods: Sequence[MethodSpec], models: Models) -> tuple[MethodSpec, CausalLM] | None:
    """The first draft model that writes the target's own tokens, with its method."""
    for method in parts(methods):
        drafter = models.drafters.get(method.name)
        drafts = method.num_draft_tokens > 0 and method.same_vocabulary
        if drafter is not None and drafts and speaks_as(drafter, models.target):
            return method, drafter
    return None


def speaks_as(drafter: CausalLM, target: CausalLM) -> bool:
    """Whether two models give the same ids to the same tokens."""
    return drafter.vocabulary == target.vocabulary and drafter.vocab_size == target.vocab_size


def make_control(methods: Sequence[MethodSpec], models: Models, sampling: Sampling) -> tuple[str, Generates]:
    """A wrong method: drafts that are never rejected; without drafts in the target's tokens, AR that is too hot."""
    autoregressive = compose(methods[0], models.pair(methods[0]), sampling)
    found = same_vocabulary_drafter(methods, models)
    if found is None:
        hotter = replace(sampling, temperature=HOTTER * sampling.temperature)
        return f"AR at {HOTTER} times the temperature", replace(autoregressive, sampling=hotter)
    method, drafter = found
    wrong = replace(
        autoregressive, method=method, drafter=ModelDrafter(drafter, sampling), rule=accept_everything
    )  # fmt: skip
    return "every draft accepted", wrong
