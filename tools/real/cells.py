"""The cells of the page: one run of specbench each, the most valuable first."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from specbench.results.row import MIN_ORDERS
from tools.commands import ROOT

from .models import GEMMA, QWEN, QWEN_DRAFTER, QWEN_DRAFTER_GGUF, QWEN_GGUF, SMOLLM, RealModel

LLAMA_CPP, INT8 = "llama.cpp", "int8"
WARM_UP = 90  # seconds of a cell; a tenth of the expected measurement, the default, expects answers of the full length


@dataclass(frozen=True)
class Data:
    """`task`: its name, or one of MADE_TASKS. `folder`: its rows below the folder of --data; empty: the bundled sample.
    `is_made`: whether the work folder makes the rows from those of --data (`workplace.MADE_ROWS`). `limit`: prompts of
    each subset. `tokens`: new tokens at most. `num_subsets`: of them, where `subsets` names none. `settings`: words of
    the command that shape the prompt, and `prompt` what the page says of them. `source`: where the rows come from, if
    the task's name does not say it."""

    task: str
    folder: str
    limit: int
    tokens: int
    subsets: tuple[str, ...] = ()
    num_subsets: int = 1
    settings: tuple[str, ...] = ()
    prompt: str = ""
    source: str = ""
    is_made: bool = False

    @property
    def num_prompts(self) -> int:
        return self.limit * (len(self.subsets) or self.num_subsets)


# Without a template the model completes the function and no more; behind worked answers it reasons as briefly as these
# and writes <|endoftext|>, which the folder's generation_config does not name as an end, as the hub's does, and a
# conversation of its own, which begins with "Human:". With its template it writes 300 tokens and more.
NO_TEMPLATE = ("--chat", "never")
HUMANEVAL = Data("humaneval", "humaneval", 30, 256, ("default",), 1, NO_TEMPLATE, "without a chat template")
GSM8K = Data("gsm8k", "gsm8k", 30, 200, (), 1,
             (*NO_TEMPLATE, "--set", "fewshot.num_shots=4", "--set",
              'generation.stop=["Q:", "Human:", "<|endoftext|>"]'),
             "behind 4 worked answers, without a chat template")  # fmt: skip
SPEC_BENCH = Data("spec_bench", "spec_bench", 5, 128, num_subsets=6)
LANGUAGES = ("en", "de", "es", "ja", "bn", "sw")
MGSM = Data("mgsm", "mgsm", 6, 128, LANGUAGES)
MGSM_SHORT = Data("mgsm", "mgsm", 5, 32, LANGUAGES)
MGSM_FAIR = Data("mgsm", "mgsm", 8, 128, LANGUAGES)
WMT = Data("wmt", "wmt22", 30, 64, ("de-en",), source="WMT22")
TATOEBA = Data("tatoeba", "tatoeba", 10, 64, ("en-de", "ja-en", "en-ja"), source="sentences of Tatoeba")
# Prompts and methods that single claims of the papers need.
CSQA = Data("csqa", "commonsense_qa", 40, 64, ("default",), 1, NO_TEMPLATE,
            "behind 5 answers with reasons, without a chat template")  # fmt: skip
MMLU = Data("mmlu", "mmlu", 40, 16, ("anatomy",), 1, NO_TEMPLATE, "behind 5 answers, without a chat template")
MCOT = Data("mcot", "mcot", 8, 128, ("en", "de", "ja", "sw"))
MGSM_SAMPLED = Data("mgsm", "mgsm", 5, 64, LANGUAGES)
LOW_RESOURCE = Data("low_resource_mt", "low_resource", 20, 64, ("chr", "que", "yor"))
MT_BENCH = Data("spec_bench", "mt-bench-first-turns", 16, 96, ("mt_bench",), is_made=True,
                source="MT-bench's first turns, a prompt of each of its eight categories in turn")  # fmt: skip
TRACE = Data("agent_trace", "", 20, 192, (), 1, NO_TEMPLATE, "without a chat template", "the bundled sample")
# Rows behind the measured ones, on which draft lengths are chosen.
HUMANEVAL_BEHIND = replace(HUMANEVAL, folder="humaneval-behind", limit=12, is_made=True, source="behind the first 30")
WMT_BEHIND = replace(WMT, folder="wmt22-behind", limit=20, is_made=True, source="WMT22, behind the first 30")


@dataclass(frozen=True)
class Cell:
    """One run. `methods`: those of the package, those of METHODS below, or CALIBRATED ones.
    `minutes`: an estimate on two idle threads. `drafter`: None if no method has a draft model. `settings`: words of
    --set. `repeats`: measurements of each prompt. `after`: cells whose records the run reads.
    `fairness`: whether `specbench fairness` follows. `needs_trained`: whether it waits for --trained."""

    name: str
    group: str
    data: Data
    methods: tuple[str, ...]
    minutes: int
    target: RealModel = QWEN
    drafter: RealModel | None = QWEN_DRAFTER
    precision: str = ""  # INT8, LLAMA_CPP; or bfloat16
    settings: tuple[str, ...] = ()
    repeats: int = 1
    after: tuple[str, ...] = ()
    fairness: bool = False
    needs_trained: bool = False


def fuzzy(divergence: str, threshold: float) -> dict[str, Any]:
    """A method file of fuzzy speculative decoding, with greedy drafts as `fsd` has them."""
    return {
        "name": fuzzy_name(divergence, threshold), "version": 1, "paper": "arXiv:2502.20704",
        "title": f"Fuzzy speculative decoding, {divergence} below {threshold:g}",
        "drafter": {"type": "model", "temperature": 0}, "num_draft_tokens": 5,
        "verification": {"rule": "fuzzy", "divergence": divergence, "threshold": threshold},
    }  # fmt: skip


def fuzzy_name(divergence: str, threshold: float) -> str:
    return f"fsd-{divergence.replace('_', '-')}-{threshold:g}"


FIXED_LENGTHS = (1, 2, 3, 4, 6, 8)
MOST_DRAFTED = 12  # of a draft whose length varies
# Methods whose draft length is chosen from the records of the cells CALIBRATION, by policy: see `lengths.calibrated`.
CALIBRATED = {f"sd-{policy}-chosen": policy for policy in ("confidence", "adaedl", "svip", "heuristic", "costs")}
CALIBRATION = ("drafting-humaneval-calibration", "drafting-wmt-calibration")

ORDERS = ("-order-1", "-order-3", "-order-5")  # of n-gram models beside the bigrams

# Shipped methods with another drafter (the keys that are replaced), by the name of the file in the work folder.
CHANGED: dict[str, tuple[str, dict[str, Any]]] = {
    "ngram-general": ("ngram", {"drafter": {"type": "ngram", "path": "stores/general-ngram"}}),
    "rest-general": ("rest", {"drafter": {"type": "retrieval", "num_nodes": 64, "max_match": 16,
                                  "path": "stores/general-retrieval"}}),
    "sd-untrained": ("sd", {"drafter": {"type": "model", "checkpoint": QWEN_DRAFTER.path}}),
    **{f"ngram-low-resource{order}":
       ("ngram", {"drafter": {"type": "ngram", "path": f"stores/low-resource-ngram{order}"}, "num_draft_tokens": 4})
       for order in ("", *ORDERS)},
    "random-accept-0.8": ("random-accept", {"verification": {"rule": "random_accept", "probability": 0.8}}),
    "random-accept-0.9": ("random-accept", {"verification": {"rule": "random_accept", "probability": 0.9}}),
    **{f"sd-{length}": ("sd", {"num_draft_tokens": length}) for length in FIXED_LENGTHS},
    # A draft that never ends by itself, whose records tell what every length would have done.
    "sd-recorded": ("sd", {"draft_length": {"policy": "confidence", "threshold": 0.0},
                           "num_draft_tokens": MOST_DRAFTED}),
    "slem-1": ("slem", {"num_draft_tokens": 1}),  # beside slrs, which drafts one token a step
    "scdf-trained": ("scdf", {"drafter": {"type": "model", "checkpoint": "trained"}}),
    "self-quantized-int4": ("self-quantized", {"drafter": {"type": "self_quantized", "quantize": "int4"}}),
    "self-quantized-gguf": ("self-quantized", {"drafter": {"type": "self_quantized", "quantize": None,
                                                           "checkpoint": QWEN_GGUF.path}}),
}  # fmt: skip
# What tables call a method whose name does not say that its corpus is of the measured tasks: see `workplace.general`.
LABELS = {"ngram-general": "ngram, in-domain corpus", "rest-general": "rest, in-domain corpus"}
# The task `wmt` reads Tatoeba's files, too, but these short sentences are not what papers measured under that name.
MADE_TASKS = {"tatoeba": ("wmt", "Machine translation (Tatoeba)", TATOEBA)}
SWEPT = {"js": (0.1, 0.5, 0.65), "reverse_kl": (0.1, 0.3, 0.7, 2.0), "tv": (0.1, 0.3, 0.5, 0.8)}


def made_methods() -> dict[str, dict[str, Any]]:
    """Returns the content of the method files of the work folder, by name."""
    found = {}
    for name, (shipped, replaced) in CHANGED.items():
        text = (ROOT / "methods" / f"{shipped}.yaml").read_text(encoding="utf-8")
        spec = {**yaml.safe_load(text), **replaced, "name": name}
        spec.pop("sweep", None)
        found[name] = spec
    for divergence, thresholds in SWEPT.items():
        found |= {fuzzy_name(divergence, value): fuzzy(divergence, value) for value in thresholds}
    return found


def made_tasks() -> dict[str, dict[str, Any]]:
    """Returns the content of the task files of the work folder, by name: shipped tasks with rows of other origin, which
    only --data gives."""
    found = {}
    for name, (shipped, title, data) in MADE_TASKS.items():
        spec = yaml.safe_load((ROOT / "tasks" / f"{shipped}.yaml").read_text(encoding="utf-8"))
        subsets = {subset: spec["subsets"][subset] for subset in data.subsets}
        for subset in subsets.values():
            del subset["dataset"]
        del spec["sample"], spec["paper"]
        found[name] = {**spec, "name": name, "version": 1, "title": title, "subsets": subsets}
    return found


LEVELS = ("fsd-low", "fsd-med", "fsd-high")
CHAINS = ("sd", *LEVELS, "pld", "ngram-general")
TREES = ("rest-general", "sd-tree", "lookahead", "token-recycling")
OTHER_VOCABULARY = ("slem", "tli")
PLAIN = ("sd", "pld")
T1 = ("generation.temperature=1",)
NO_STOP = "generation.stop=[]"
MEMORIES = ("suffix", "sam", "ngram-mod")
LENGTHS = (*(f"sd-{length}" for length in FIXED_LENGTHS), *CALIBRATED)
SELF = ("self-quantized", "self-quantized-int4", "self-skip", "self-skip-swift", "self-window", "jacobi", "cascade")
DRAFTING = "drafting"
CLAIM = "claim"  # cells that test single claims


def curve(divergence: str) -> tuple[str, ...]:
    return tuple(fuzzy_name(divergence, value) for value in SWEPT[divergence])


def gguf(name: str, data: Data, minutes: int) -> Cell:
    return Cell(name, "precision", data, PLAIN, minutes, QWEN_GGUF, QWEN_DRAFTER_GGUF, LLAMA_CPP)


def foreign(
    name: str, data: Data, methods: tuple[str, ...], minutes: int, sampling: tuple[str, ...] = ()
) -> tuple[Cell, Cell]:
    """SmolLM2 with Gemma as its drafter, and back. A translation ends at a line break, with which Gemma begins: it is
    measured without that stop."""
    end = "-t1" if sampling else ""
    unstopped = sampling if data.task == "mgsm" else (*sampling, NO_STOP)
    return (
        Cell(f"smollm2-gemma-{name}{end}", "vocabulary", data, methods, minutes, SMOLLM, GEMMA, settings=sampling),
        Cell(f"gemma-smollm2-{name}{end}", "vocabulary", data, methods, minutes, GEMMA, SMOLLM, settings=unstopped),
    )


def drafting(
    task: str,
    data: Data,
    minutes: tuple[int, int, int, int, int],
    num_in_orders: int = 8,
    num_others: int | None = None,
) -> tuple[Cell, ...]:
    """The drafters with a memory: cold, warm from AR's answers of the cold cell, and in random orders; draft lengths;
    the target as its own drafter. `num_in_orders`, `num_others`: prompts of the orders, and of the last two."""
    name, cold = f"{DRAFTING}-{task}", f"{DRAFTING}-{task}-cold"
    few, others = replace(data, limit=num_in_orders), replace(data, limit=num_others or data.limit)
    memories = MEMORIES if task == "trace" else MEMORIES[:2]  # ngram-mod drafts long copies only
    return (
        Cell(cold, DRAFTING, data, ("pld", *MEMORIES), minutes[0], drafter=None),
        Cell(f"{name}-warm", DRAFTING, data, memories, minutes[1], drafter=None, after=(cold,),
             settings=(f"drafter.memory=cells/{cold}",)),
        Cell(f"{name}-orders", DRAFTING, few, memories, minutes[2], drafter=None, repeats=MIN_ORDERS,
             settings=("drafter.memory=run",)),
        Cell(f"{name}-lengths", DRAFTING, others, LENGTHS, minutes[3], after=CALIBRATION),
        Cell(f"{name}-self", DRAFTING, others, SELF, minutes[4]),
    )  # fmt: skip


def recorded(name: str, data: Data) -> Cell:
    """A cell from which draft lengths are chosen; fixed lengths beside the recording give v(n)."""
    return Cell(name, DRAFTING, data, ("sd-recorded", "sd-1", "sd-3", "sd-6"), 7)


FOREIGN_MGSM = foreign("mgsm", MGSM, ("slem", "tli", "union", "slrs"), 17)
FOREIGN_MGSM_T1 = foreign("mgsm", replace(MGSM, limit=5), ("slem", "tli", "union"), 20, T1)
# At a temperature slrs reads dozens of draft contexts for a token, and more than the 4096 that it may if a token can be
# spelled with any tokens.
FOREIGN_STRINGS_T1 = foreign("strings", MGSM_SHORT, ("slem-1", "slrs"), 4, (*T1, "generation.top_k=20"))
FOREIGN_WMT = foreign("wmt", WMT, ("slem", "tli", "union"), 7)
FOREIGN_TATOEBA = foreign("tatoeba", TATOEBA, ("slem", "tli", "union"), 9)

# Minutes include the verdicts, for which answers that differ from AR's are decoded again.
CELLS = (
    Cell("gsm8k-chains", "main", GSM8K, CHAINS, 22),
    Cell("humaneval-chains", "main", HUMANEVAL, CHAINS, 10),
    Cell("spec-bench-chains", "main", SPEC_BENCH, ("sd", "pld", "ngram-general"), 17),
    gguf("gsm8k-q4", GSM8K, 8),
    Cell("gsm8k-int8", "precision", GSM8K, PLAIN, 9, precision=INT8),
    *FOREIGN_MGSM,
    Cell("gsm8k-trees", "main", GSM8K, TREES, 28),
    Cell("gsm8k-curve-reverse-kl", "curve", GSM8K, curve("reverse_kl"), 14),
    Cell("gsm8k-vocabulary", "main", GSM8K, OTHER_VOCABULARY, 12, drafter=SMOLLM),
    Cell("wmt-chains", "main", WMT, ("sd", "pld", "lookahead"), 6),
    Cell("tatoeba-chains", "main", TATOEBA, ("sd", "pld", "lookahead"), 5),
    Cell("mgsm-fairness", "fairness", MGSM_FAIR, ("sd",), 18, settings=T1, fairness=True),
    Cell("low-resource", "ngram", LOW_RESOURCE, ("sd-4", "ngram-low-resource"), 13),
    Cell("gsm8k-curve-js", "curve", GSM8K, curve("js"), 12),
    Cell("gsm8k-random", "curve", GSM8K, ("fsd-low", "random-accept-0.8", "random-accept-0.9"), 12),
    Cell("humaneval-trees", "main", HUMANEVAL, TREES, 13),
    *FOREIGN_MGSM_T1,
    *FOREIGN_WMT,
    *FOREIGN_TATOEBA,
    *FOREIGN_STRINGS_T1,
    gguf("humaneval-q4", HUMANEVAL, 5),
    Cell("humaneval-int8", "precision", HUMANEVAL, PLAIN, 5, precision=INT8),
    gguf("spec-bench-q4", SPEC_BENCH, 10),
    Cell("spec-bench-int8", "precision", SPEC_BENCH, PLAIN, 11, precision=INT8),
    Cell("spec-bench-trees", "main", SPEC_BENCH, TREES, 26),
    Cell("spec-bench-levels", "main", SPEC_BENCH, ("sd", *LEVELS), 17),
    Cell("humaneval-vocabulary", "main", HUMANEVAL, OTHER_VOCABULARY, 6, drafter=SMOLLM),
    Cell("spec-bench-vocabulary", "main", SPEC_BENCH, OTHER_VOCABULARY, 12, drafter=SMOLLM),
    Cell("gsm8k-curve-tv", "curve", GSM8K, curve("tv"), 14),
    Cell("mgsm-scdf", "fairness", MGSM_FAIR, ("sd-untrained", "scdf-trained"), 33, settings=T1, fairness=True,
         needs_trained=True),
    Cell("csqa-levels", CLAIM, CSQA, ("sd", *LEVELS, "random-allocation", "draft-only"), 12),
    Cell("mmlu-levels", CLAIM, MMLU, ("sd", *LEVELS), 6),
    Cell("gsm8k-allocation", CLAIM, GSM8K, ("fsd-low", "fsd-high", "random-allocation", "draft-only"), 14),
    Cell("gsm8k-sampled", CLAIM, GSM8K, ("sd", *LEVELS), 15, settings=T1),
    Cell("low-resource-orders", CLAIM, LOW_RESOURCE,
         tuple(f"ngram-low-resource{order}" for order in ("", *ORDERS)), 12),
    *(Cell(f"mgsm-t{value:g}", CLAIM, MGSM_SAMPLED, ("sd",), 5, settings=(f"generation.temperature={value:g}",))
      for value in (0.5, 1.0, 1.5, 2.0)),
    Cell("mcot-sampled", CLAIM, MCOT, ("sd",), 9, settings=T1),
    Cell("wmt-sampled", CLAIM, WMT, ("sd", "lookahead"), 8, settings=T1),
    *(recorded(name, data) for name, data in zip(CALIBRATION, (HUMANEVAL_BEHIND, WMT_BEHIND), strict=True)),
    *drafting("humaneval", HUMANEVAL, (12, 8, 12, 16, 17), 10, 20),
    Cell("drafting-humaneval-gguf", DRAFTING, replace(HUMANEVAL, limit=20), ("self-quantized-gguf",), 6, drafter=None),
    Cell("drafting-wmt-lengths", DRAFTING, WMT, LENGTHS, 15, after=CALIBRATION),
    *drafting("trace", TRACE, (15, 12, 21, 18, 16), num_others=8),
    *drafting("gsm8k", replace(GSM8K, limit=12), (10, 7, 13, 18, 19)),
    *drafting("mt-bench", MT_BENCH, (14, 9, 14, 18, 19), num_others=12),
)  # fmt: skip


def run_words(cell: Cell, data: str | None, threads: int) -> list[str]:
    """Returns the words of the cell's `specbench run` in the work folder. `data`: the folder of the rows there, or
    None for the bundled sample."""
    made = made_methods()
    methods = [f"methods/{name}.yaml" if name in made or name in CALIBRATED else name for name in cell.methods]
    task = f"tasks/{cell.data.task}.yaml" if cell.data.task in MADE_TASKS else cell.data.task
    words = ["run", "--task", task, "--method", ",".join(methods)]
    if cell.data.subsets:
        words += ["--subset", ",".join(cell.data.subsets)]
    words += ["--target", cell.target.path]
    # A run whose methods all name a drafter refuses another one.
    if cell.drafter is not None and not all(
        "checkpoint" in made.get(name, {}).get("drafter", {}) for name in cell.methods
    ):
        words += ["--drafter", cell.drafter.path]
    words += {LLAMA_CPP: ["--engine", "llama.cpp"], INT8: ["--quantize", "int8", "--dtype", "bfloat16"]}.get(
        cell.precision, ["--dtype", "bfloat16"]
    )
    folder = f"rows/{cell.data.folder}" if cell.data.is_made else f"{data}/{cell.data.folder}"
    words += ["--data", "sample" if data is None or not cell.data.folder else folder, "--limit", str(cell.data.limit)]
    words += ["--repeats", str(cell.repeats)] if cell.repeats > 1 else []
    for setting in (f"generation.max_new_tokens={cell.data.tokens}", *cell.settings):
        words += ["--set", setting]
    words += cell.data.settings
    if cell.data.task == "humaneval":
        words += ["--allow-code-execution"]
    return [*words, "--threads", str(threads), "--warm-up", str(WARM_UP), "--output", f"cells/{cell.name}"]


def fairness_words(cell: Cell, threads: int) -> list[str]:
    run = f"cells/{cell.name}"
    first, *others = cell.methods
    runs = [word for other in others for word in ("--before", f"{run}:{first}", "--after", f"{run}:{other}")] or [run]
    return ["fairness", *runs, "--samples", "0", "--threads", str(threads), "--json"]


def chosen(names: Sequence[str]) -> list[Cell]:
    """Returns the cells of these names, in the order of CELLS; all without names. Exits for an unknown name."""
    if unknown := set(names) - {cell.name for cell in CELLS}:
        known = ", ".join(cell.name for cell in CELLS)
        raise SystemExit(f"--only {', '.join(sorted(unknown))}: no such cell; there are {known}")
    return [cell for cell in CELLS if not names or cell.name in names]
