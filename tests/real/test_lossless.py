"""Every lossless method writes what AR writes, and AR what transformers' `generate` writes: SmolLM2 in float32,
greedily, with drafters of its vocabulary and without a draft model."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.mmap_store import vocabulary_digest
from specbench.specs.catalogue import load_method, method_names
from specbench.training.corpus_arrays import build_datastore, build_ngrams
from tests.support.public_models import Answered, answered, check_equal, generate, outputs_of

pytestmark = pytest.mark.real

NUM_TOKENS = 28
QUESTIONS = [
    ("Name three primary colors, separated by commas.", True),  # ends by itself
    ("1, 2, 3, 4, 5, 6,", False),
    ("日本の首都は東京です。フランスの首都はパリです。イタリアの", False),  # characters of several tokens
]
VARYING = ["sd-confidence", "sd-roc", "sd-adaedl", "sd-svip", "sd-heuristic", "sd-costs"]
WITH_A_DRAFTER = ["sd", "sd-block", "sd-tree", "sd-paths", "synthetic", "cascade", "hf-sd", *VARYING]
OWN = ["self-quantized", "self-skip", "self-skip-swift", "self-window"]
WITHOUT = [
    "pld", "lookahead", "jacobi", "token-recycling", "ngram", "rest", "suffix", "sam", "ngram-mod", "hf-pld", *OWN,
]  # fmt: skip
SHORTER = {  # so that something is found in short texts
    "sam": ["drafter.min_match=1", "num_draft_tokens=4"],
    "ngram-mod": ["drafter.ngram=1", "drafter.min_tokens=1", "num_draft_tokens=4"],
    "self-quantized": ["drafter.quantize=int4"],  # 8 bits are seldom wrong
    "self-skip-swift": ["drafter.tried_on=8"],
    "self-window": ["drafter.sink=2", "drafter.window=4"],
}
ELSEWHERE = {
    "ar": "the baseline",
    "slem": "test_vocabularies.py", "tli": "test_vocabularies.py", "union": "test_vocabularies.py",
    "slrs": "test_vocabularies.py", "hf-slem": "test_vocabularies.py", "hf-tli": "test_vocabularies.py",
    "routed": "selects one of the methods here for each query",
    "medusa": "needs trained heads", "eagle": "needs a trained head", "eagle2": "needs a trained head",
    "eagle3": "needs a trained head", "eagle3-chain": "needs a trained head", "mtp": "needs a head in the checkpoint",
    "dflash": "needs a trained head", "dspark": "needs a trained head", "domino": "needs a trained head",
    "peagle": "needs a trained head",
    "scdf": "sd with a trained drafter", "distill-general": "sd with a trained drafter",
    "distill-task": "sd with a trained drafter", "pretrain-finetune": "sd with a trained drafter",
}  # fmt: skip


@pytest.fixture(scope="module")
def known(smollm: CausalLM) -> Answered:
    return answered(smollm, QUESTIONS, NUM_TOKENS)


@pytest.fixture(scope="module")
def corpus(known: Answered, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An n-gram model and a datastore of the answers, of which every fifth token is wrong."""
    folder = tmp_path_factory.mktemp("corpus")
    target = known.target
    documents = [
        [token if place % 5 else (token + 1) % target.vocab_size for place, token in enumerate(each.token_ids, start=1)]
        for each in known.answers
    ]
    digest = vocabulary_digest(target.vocabulary)
    build_ngrams(documents, 3, target.vocab_size, folder / "ngram", digest)
    build_datastore(documents, target.vocab_size, folder / "rest", digest)
    return {"ngram": str(folder / "ngram"), "rest": str(folder / "rest")}


def test_every_lossless_method_is_tried_on_public_models() -> None:
    declared = {name for name in method_names() if load_method(name).lossless}
    assert declared == {*WITH_A_DRAFTER, *WITHOUT, *ELSEWHERE}


def test_ar_writes_what_generate_writes(known: Answered, real_models: Path) -> None:
    """A network that transformers loaded itself, with the end tokens of its own generation config."""
    network = AutoModelForCausalLM.from_pretrained(real_models / "smollm2-135m", dtype=torch.float32)
    for answer in known.answers:
        assert generate(network, answer.prompt_ids, NUM_TOKENS) == answer.token_ids
    assert known.finishes == ["eos", "length", "length"] and 2 * NUM_TOKENS < known.num_tokens < 3 * NUM_TOKENS
    written = known.target.decode_text(known.answers[2].token_ids)
    assert len(known.answers[2].token_ids) > len(written.rstrip("\ufffd")) > 5  # several tokens for a character


@pytest.mark.parametrize("method", [*WITH_A_DRAFTER, *WITHOUT])
def test_a_lossless_method_writes_what_ar_writes(
    method: str, known: Answered, smollm_drafter: CausalLM, corpus: dict[str, str]
) -> None:
    """In float32 a pass changes logits by rounding alone: one near-tie at most, and only one within the noise."""
    models = ModelPair(known.target, smollm_drafter if method in WITH_A_DRAFTER else None)
    overrides = [f"drafter.path={corpus[method]}"] if method in corpus else SHORTER.get(method, [])
    assert known.tolerance < 0.02
    check_equal(outputs_of(method, models, known, overrides), known, num_near_ties=1)


def test_a_fuzzy_method_that_accepts_nothing_writes_what_sd_writes(known: Answered, smollm_drafter: CausalLM) -> None:
    """At the threshold 0 no draft token stands, and the next one is the target's."""
    models = ModelPair(known.target, smollm_drafter)
    none = outputs_of("fsd", models, known, ["verification.threshold=0"])
    assert [each.token_ids for each in none.outputs] == [each.token_ids for each in known.answers]
    assert none.num_accepted == 0 and none.num_verified == len(
        [s for o in none.outputs for s in o.steps if s.num_drafted]
    )
    all_stand = outputs_of("fsd", models, known, ["verification.threshold=.inf"])
    assert all_stand.num_accepted == all_stand.num_verified > 40
    assert len(all_stand.differences) == 3 and {each.kind for each in all_stand.differences} == {"rule"}
