"""The ways in which a CPU computes with the weights of one checkpoint, and its peers, beside the machine's bandwidth.

`python -m tools.engines.cpu MODEL --gguf FILE` (a folder or a hub id of a bfloat16 checkpoint, and a GGUF file of the
same model) prints a line for each way:

    transformers    transformers' passes with torch's own products, and the tokens of its own `generate`
    eager           what `--engine eager` does in bfloat16 on a CPU: packed products
    compiled        `--engine compiled`
    int8, int4      `--quantize int8` and `--quantize int4`; int8 compiled, int4 compiled: with `--engine compiled`
    llama.cpp       `--engine llama.cpp` with the GGUF file
    llama.cpp bare  the same calls of llama.cpp without the engine
    openvino        OpenVINO GenAI with the GGUF file, if it is installed
    onnxruntime     ONNX Runtime GenAI with 4-bit weights, made from the checkpoint by its own builder, if it and the
                    packages onnx, onnx-ir and onnxruntime are installed
    frozen          whole passes compiled with torch's freezing, which no engine does; only with `--ways ...,frozen`

As many ways as fit into memory are loaded at once and take turns; the others follow in further groups. In each turn a
way is timed beside copies and sums of 1 GB, or of what a token reads if that is less, so that all ways of a group meet
the same load of the machine. The order of the ways alternates. Of each quantity the line has the median over turns:

    ready     seconds from the files until the passes can be timed; of compiled ones with an empty cache of the compiler
              and, behind a stroke, with what that left there, each in a process of its own
    GB read   the weights, keys and values that a token reads
    token     milliseconds of a token in the decode loop, autoregressive and greedy; of frozen passes, of the pass
    ÷ eager   the token ÷ that of eager passes in bfloat16 in the same turn
    pass      milliseconds of a pass over one token
    GB/s      GB read ÷ token
    machine   the GB/s of a copy or a sum, whichever is faster, in the same turn
    moved     the GB that the machine moves in the time of a token, by that rate
    share     GB read ÷ moved: the share of the bound that is reached
    v(n)      a pass over n tokens ÷ one over a single token
    KL, flips over the tokens of a text, each read in a pass of its own, of the next token's distribution against
              transformers': the mean Kullback–Leibler divergence, and the share of positions whose most probable token
              differs

With --write, docs/measured/cpu.json keeps what is measured, group by group, and docs/measured/cpu.md is made of it.
The same command goes on with what is missing. `--again` measures the ways anew and keeps what they took before;
`--page-only` measures nothing.
"""

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import torch
from pydantic import TypeAdapter
from transformers import AutoTokenizer

from specbench.analysis.roofline.roofline import NUM_TOKENS, RateBenchmark
from specbench.core.errors import ConfigError
from specbench.core.files import write_atomically
from specbench.core.table import markdown_table
from specbench.models.causal_lm import CausalLM
from specbench.models.devices import free_memory
from specbench.models.loading import load_model
from specbench.models.machine import LLAMA_CPP, environment
from specbench.models.meters import HOST
from specbench.models.packed import product_rates
from tools.commands import ROOT
from tools.engines.cpu_page import page
from tools.engines.cpu_records import HEAD, Earlier, InPass, Line, Product, Records, Settings
from tools.engines.cpu_ways import FAMILIES, WAYS, Family, Given, Side, plain_model
from tools.engines.gguf import CONTEXT, LENGTHS, TEXT, seconds_of

PLACE = ROOT / "docs" / "measured"
MOST_BYTES = 1_000_000_000  # that the machine moves beside a way
NUM_TEXT_TOKENS = 200
TURNS = 7
NUM_SINGLE = 3  # passes over one token in a turn, of which the mean counts
PROFILED = 5  # passes
OTHERS = 2e9  # bytes that must stay free: distributions, buffers, other programs
CACHE = "TORCHINDUCTOR_CACHE_DIR"
# What multiplies with weights in a pass of torch.
KERNELS = (
    "mkldnn::_linear_pointwise", "aten::_weight_int8pack_mm", "aten::_weight_int4pack_mm_for_cpu",
    "quantized::linear_with_input_q_dq_qweight_dq_output_fp32", "aten::mm", "aten::addmm",
)  # fmt: skip
Say = Callable[[str], None]


def checkpoint_bytes(name: str) -> int:
    """Returns the bytes of a checkpoint in bfloat16."""
    network = load_model(name, device="cpu", weights=False).model
    num_parameters: int = sum(parameter.numel() for parameter in network.parameters())
    return 2 * num_parameters


def groups(given: Given, ways: Sequence[str], free: float) -> Iterator[list[tuple[Family, list[str]]]]:
    """Yields the families of the ways that are in memory together, with these ways. A family that alone does not fit
    into `free` bytes is a group of its own."""
    of_checkpoint = checkpoint_bytes(given.name)
    of_gguf = Path(given.gguf).stat().st_size if given.gguf and Path(given.gguf).is_file() else 0

    def most(families: Sequence[tuple[Family, list[str]]]) -> float:
        """Returns the bytes that families need at most, while the last of them is loaded or before."""
        held, needed = 0.0, 0.0
        for family, _ in in_loading_order(families):
            held += family.checkpoint * of_checkpoint + family.gguf * of_gguf
            needed = max(needed, held + family.while_loading * of_checkpoint)
        return needed

    group: list[tuple[Family, list[str]]] = []
    for family in FAMILIES:
        if not (asked := [way for way in family.ways if way in ways]):
            continue
        if group and most([*group, (family, asked)]) > free - OTHERS:
            yield group
            group = []
        group.append((family, asked))
    if group:
        yield group


def in_loading_order(families: Sequence[tuple[Family, list[str]]]) -> list[tuple[Family, list[str]]]:
    """Returns first those that need much memory only while they are loaded."""
    return sorted(families, key=lambda each: -each[0].while_loading)


@torch.inference_mode()
def log_probs(model: CausalLM, ids: list[int]) -> torch.Tensor:
    """Returns the log-probabilities after each token of a text, [num_tokens, vocab_size], of passes over one token."""
    model.reset()
    rows = [model.score(ids[: place + 1], 1).logits[0].float().log_softmax(-1) for place in range(len(ids))]
    model.reset()
    return torch.stack(rows)


@torch.inference_mode()
def in_pass(side: Side) -> InPass:
    """Counts and times the products with weights in passes over one token, as torch's profiler sees them."""
    side.begin()
    calls, seconds = 0, []
    for _ in range(PROFILED):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            side.passes[1]()
        found = [event for event in profile.key_averages() if event.key in KERNELS]
        calls = sum(event.count for event in found)
        seconds.append(sum(event.cpu_time_total for event in found) / 1e6)
    return InPass(calls, median(seconds))


@dataclass
class Group:
    """Ways that take turns with each other. `left_out`: why others could not be run."""

    sides: dict[str, Side] = field(default_factory=dict)
    lines: dict[str, Line] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def load(self, given: Given, families: Sequence[tuple[Family, list[str]]], say: Say) -> None:
        for family, ways in in_loading_order(families):
            say(f"loading {', '.join(ways)}")
            try:
                for way, side in family.sides(given, ways):
                    self.sides[way] = side
            except ConfigError as error:
                reason = " ".join(str(error).replace(given.name, Path(given.name).name).split())
                self.left_out |= {way: reason for way in ways if way not in self.sides}
        loaded, self.sides = self.sides, {}
        self.sides |= {way: loaded[way] for _, ways in families for way in ways if way in loaded}
        for way, side in self.sides.items():
            self.lines[way] = new_line(way, side, [each for each in self.sides if each != way])

    def take_turns(self, num_turns: int, say: Say) -> None:
        if not self.sides:
            return
        known = [int(side.num_bytes) for side in self.sides.values() if side.num_bytes is not None]
        benchmark = RateBenchmark(torch.device("cpu"), torch.bfloat16, min([MOST_BYTES, *known]))
        for turn in range(-1, num_turns):  # the first one does not count
            for way in list(self.sides)[:: -1 if turn % 2 else 1]:
                say(f"{way}: turn {turn + 1} of {num_turns}")
                take_turn(self.lines[way], self.sides[way], benchmark, counts=turn >= 0)

    def examine(self, ids: list[int], expected: torch.Tensor, say: Say) -> None:
        """Compares distributions with the expected ones, and times products alone and within a pass."""
        for way, line in self.lines.items():
            model = self.sides[way].model
            if model is None:
                continue
            say(f"{way}: distributions and products")
            found = log_probs(model, ids)
            shared = min(found.shape[-1], expected.shape[-1])  # GGUF files may leave out padding
            right, found = expected[:, :shared], found[:, :shared]
            line.divergence = float((right.exp() * (right - found)).sum(-1).mean())
            line.flips = float((right.argmax(-1) != found.argmax(-1)).double().mean())
            if model.engine != "llama.cpp":
                line.products = [
                    Product(each.kind, each.number, each.in_features, each.out_features, each.num_bytes,
                            each.bytes_per_second)
                    for each in product_rates(model.model)
                ]  # fmt: skip
                line.in_pass = in_pass(self.sides[way])


def new_line(way: str, side: Side, others: list[str]) -> Line:
    packages = (LLAMA_CPP,) if way.startswith("llama.cpp") else ()
    known = environment("cpu", "bfloat16", "sdpa", packages=packages)
    versions = {name: known["versions"][name] for name in ("torch", "transformers", *packages)}
    return Line(known["commit"], known["device"], versions, 0.0, others, side.ready, side.num_bytes)


def take_turn(line: Line, side: Side, benchmark: RateBenchmark, *, counts: bool) -> None:
    side.begin()
    seconds = {}
    for length, call in side.passes.items():
        number = NUM_SINGLE if length == 1 else 1
        seconds[length] = sum(seconds_of(call) for _ in range(number)) / number
    rate = benchmark.rates().bytes_per_second
    token = seconds[1] if side.token is None else side.token()
    if counts:
        for length, value in seconds.items():
            line.passes.setdefault(length, []).append(value)
        line.rates.append(rate)
        line.token.append(token)


def ready_seconds(given: Given, way: str, threads: int) -> tuple[float, float]:
    """Returns the seconds until a way's passes are ready in a new process, with an empty cache of the compiler, and
    with what that process left there. This process then finds the same."""
    folder = tempfile.mkdtemp(prefix="compiled-")
    os.environ[CACHE] = folder
    words = [sys.executable, "-m", "tools.engines.cpu", given.name, "--ready", way, "--threads", str(threads)]
    cold, warm = (
        float(subprocess.run(words, cwd=ROOT, env=os.environ, stdout=subprocess.PIPE, text=True, check=True).stdout)
        for _ in range(2)
    )
    return cold, warm


def print_ready(given: Given, way: str) -> None:
    """Prints the seconds until a way's passes are ready."""
    [family] = [each for each in FAMILIES if way in each.ways]
    [(_, side)] = family.sides(given, [way])
    print(side.ready)


def measure(
    given: Given, ways: Sequence[str], num_turns: int, threads: int, say: Say, free: float | None = None,
    times_ready: bool = True,
) -> Iterator[Group]:  # fmt: skip
    """Yields the finished groups. `free`: the bytes that their ways may hold; None: those of the machine.
    `times_ready`: whether compiled passes are made ready in processes of their own before."""
    expected: torch.Tensor | None = None
    for families in groups(given, ways, free or free_memory() or 0.0):
        compiled = [way for _, group_ways in families for way in group_ways if "compiled" in way]
        seconds = {}
        for way in compiled if times_ready else ():
            say(f"{way}: ready, cold and warm")
            seconds[way] = ready_seconds(given, way, threads)
        if expected is None:
            say("transformers' distributions")
            expected = log_probs(plain_model(given.name), given.ids)
        group = Group()
        group.load(given, families, say)
        group.take_turns(num_turns, say)
        group.examine(given.ids, expected, say)
        for way, line in group.lines.items():
            line.load = os.getloadavg()[0]
            if way in seconds:
                line.ready, line.ready_warm = seconds[way]
        group.sides.clear()
        gc.collect()
        yield group


def add(records: Records, model: str, gguf: str | None, group: Group) -> None:
    """Adds the lines of a group to the records of a model; a line that is measured again keeps what it took before."""
    known = records.models.setdefault(model, {})
    for way, line in group.lines.items():
        if (old := known.get(way)) is not None:
            line.before = [*old.before, Earlier(old.commit, median(old.token), median(old.rates))]
        known[way] = line
    reasons = records.left_out.setdefault(model, {})
    for way in group.lines:
        reasons.pop(way, None)
    reasons |= group.left_out
    if gguf is not None:
        records.gguf[model] = gguf


def read(file: Path, settings: Settings) -> Records:
    """Returns the records, or empty ones. Raises ConfigError if they were measured with other settings."""
    if not file.is_file():
        return Records(settings)
    found = TypeAdapter(Records).validate_json(file.read_bytes())
    if found.settings != settings:
        raise ConfigError(
            f"{file.name} was measured with {found.settings}, and this would be {settings}: give the same, or another "
            "--place"
        )
    return found


def write(records: Records, place: Path) -> None:
    write_atomically(place / "cpu.json", TypeAdapter(Records).dump_json(records, indent=1) + b"\n")
    write_atomically(place / "cpu.md", "".join(page(records)))


def main() -> None:
    """Measures the ways and prints the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.engines.cpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="folders or hub ids")
    parser.add_argument(
        "--gguf", nargs="*", default=[], metavar="FILE", help="GGUF files of the models, in their order"
    )
    parser.add_argument("--ways", default=",".join(WAYS), help="separated by commas")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--write", action="store_true", help="write cpu.json and cpu.md, and go on with what is missing"
    )
    parser.add_argument("--again", action="store_true", help="with --write: measure finished ways again")
    parser.add_argument("--no-ready", action="store_true", help="time how compiled passes are made ready here only")
    parser.add_argument("--page-only", action="store_true", help="write cpu.md of cpu.json")
    parser.add_argument("--place", type=Path, default=PLACE, help="folder of the page and the JSON")
    parser.add_argument("--ready", metavar="WAY", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.page_only:
        records = TypeAdapter(Records).validate_json((given.place / "cpu.json").read_bytes())
        write_atomically(given.place / "cpu.md", "".join(page(records)))
        return
    if not given.models:
        parser.error("give a model")
    ways = given.ways.split(",")
    known = [way for family in FAMILIES for way in family.ways]
    for way in ways:
        if way not in known:
            parser.error(f"no way is named {way!r}: there are {', '.join(known)}")
    if len(given.gguf) > len(given.models):
        parser.error("more GGUF files than models")
    torch.set_num_threads(given.threads)
    if given.threads == 1:
        HOST.leave_out_waits()
    settings = Settings(given.threads, given.turns, CONTEXT, NUM_TOKENS, NUM_TEXT_TOKENS, list(LENGTHS))
    try:
        records = read(given.place / "cpu.json", settings) if given.write else Records(settings)
    except ConfigError as error:
        parser.error(str(error))
    say = partial(print, file=sys.stderr, flush=True)
    for place, name in enumerate(given.models):
        tokenizer = AutoTokenizer.from_pretrained(name)
        ids: list[int] = tokenizer(TEXT.read_text(encoding="utf-8"))["input_ids"][:NUM_TEXT_TOKENS]
        model = Given(name, given.gguf[place] if place < len(given.gguf) else None, ids)
        short, gguf = Path(name).name, model.gguf and Path(model.gguf).name
        if given.ready:
            print_ready(model, given.ready)
            return
        finished = records.models.get(short, {})
        missing = [way for way in ways if given.again or way not in finished]
        began = time.perf_counter()
        with torch.no_grad():
            for group in measure(model, missing, given.turns, given.threads, say, times_ready=not given.no_ready):
                add(records, short, gguf, group)
                if given.write:
                    write(records, given.place)
        lines = records.models.get(short, {})
        print(f"\n{short}, {time.perf_counter() - began:.0f} s\n")
        print(markdown_table(HEAD, [line.cells(way, lines) for way, line in lines.items()]))
        print("\n".join(f"not run: {way}: {text}" for way, text in records.left_out.get(short, {}).items()), flush=True)


if __name__ == "__main__":
    main()
