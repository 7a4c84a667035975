"""The page docs/measured/cpu.md, made of the records in cpu.json."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median

from specbench.core.table import markdown_table
from tools.engines.cpu_records import HEAD, Line, Records, quotient, token_ratio
from tools.real.models import MODELS

Lines = Mapping[str, Line]
PRECISIONS = {  # the ways of each; those of other programs, and llama.cpp's own calls
    "16 bits": (("eager", "compiled"), ("transformers",)),
    "8 bits": (("int8", "int8 compiled"), ()),
    "4 bits": (("int4", "int4 compiled", "llama.cpp"), ("llama.cpp bare", "openvino", "onnxruntime")),
}
TARGET, DRAFTER = "qwen-coder-1.5b", "qwen-coder-0.5b"  # the pair for which the goals were set
IN_16_BITS = {TARGET: 0.85, DRAFTER: 0.80}  # shares of the bound
IN_FEW_BITS = 0.75
MOST_GROWTH = 1.1  # of a pass over six tokens
OF_LLAMA_CPP = 0.97
READY, READY_COLD, READY_WARM = 10.0, 120.0, 30.0  # seconds, of both models

TEXT = """# Ways to compute on a CPU

`{command}` writes this page and `cpu.json`, which has the figures of each turn. {threads}; versions and commits are at
the end. A busy machine is slower than these ways are. [Large models on a CPU](../notes/cpu.md) says what each way does.

{results}
## How to read the tables

- transformers: its passes in bfloat16 with torch's own products, and the tokens of its own `generate`.
- eager, compiled: `--engine` in bfloat16. int8, int4: `--quantize`, with `--engine eager` or `compiled`. **The output
  layer of int4 has 8 bits**, and the embeddings of both have 16. llama.cpp: `--engine llama.cpp` with the GGUF file
  beside the checkpoint; bare: the same calls of llama.cpp alone, on the same context. openvino: OpenVINO GenAI with
  this file. onnxruntime: ONNX Runtime GenAI with 4-bit weights that its builder makes of the checkpoint, which *ready*
  includes.
- token: ms of a token, autoregressive and greedy, after {context} cached ones. pass: ms of a pass over one token.
  ÷ eager: the token ÷ that of eager passes in the same turns; without turns in common there is none. v(n): a pass over
  n tokens ÷ one over a single token. All are medians over {turns} turns, in which the ways of a group alternate. A
  group has as many ways as fit into memory.
- GB read: weights, keys and values that a token reads. GB/s: these ÷ the token. machine: GB/s of copying or summing
  1 GB (or the least that a token of the group reads), whichever is faster, in the same turn. moved: the GB that the
  machine moves by this rate in the time of a token. share: GB read ÷ moved, of the bound.
- Memory is shared with other machines and gives more at some minutes than at others. *moved* and *share* allow for that
  **only where memory sets the pace**: bfloat16, and mostly int8. 4-bit products are bound by arithmetic, and take as
  long when memory gives more. Compare those by *÷ eager*.
- ready: seconds from the files until the passes can be timed. Of compiled passes two: with an empty cache of the
  compiler / with what that left there, each in a process of its own.
- KL, flips: of the next token against transformers', on {text} tokens of this project's README, each read in a pass of
  its own, as a token is decoded: mean Kullback–Leibler divergence, and the share of other most probable tokens.
- The products of one token, each shape alone. (plain): torch's own product in bfloat16, which reorders the weights in
  every call. (packed): bfloat16 as oneDNN's kernel reads it. (int8), (int4): weights of few bits. A kernel that torch
  silently computes in another way would have a fraction of the others' rate. The layers of a compiled way are those of
  the eager one. *Within a pass* has for both what torch's profiler saw: the calls of kernels that multiply with
  weights, of as many as there are products, and what else takes time. Nothing of this is known of the others:
  llama.cpp, OpenVINO and ONNX Runtime name no kernels.
{weights}"""


def page(records: Records) -> Iterator[str]:
    settings = records.settings
    results = "".join(f"{text}\n" for model, lines in records.models.items() for text in result(model, lines))
    yield TEXT.format(
        command=command(records), threads=f"{settings.threads} thread{'s' if settings.threads > 1 else ''}",
        context=settings.context, turns=settings.turns, text=settings.num_text_tokens, results=results,
        weights=weights_of(records),
    )  # fmt: skip
    for model, lines in records.models.items():
        yield f"\n## {model}\n\n" + markdown_table(HEAD, [line.cells(way, lines) for way, line in lines.items()]) + "\n"
        if left_out := records.left_out.get(model):
            yield "\nNot run:\n\n" + "".join(f"- {way}: {reason}\n" for way, reason in left_out.items())
        if within := [cells for way, line in lines.items() if (cells := within_pass(way, line))]:
            yield "\nWithin a pass over one token:\n\n" + markdown_table(WITHIN, within) + "\n"
        if again := [cells for way, line in lines.items() for cells in compared(way, line)]:
            yield "\nMeasured before:\n\n" + markdown_table(BEFORE, again) + "\n"
        rates = [text for way, line in lines.items() for text in products(way, line)]
        yield "\nThe products of one token:\n\n```\n" + "\n".join(rates) + "\n```\n"
    yield "\n" + "".join(f"- {text}\n" for text in conditions(records))


def command(records: Records) -> str:
    files = [name for model in records.models if (name := records.gguf.get(model))]
    gguf = f" --gguf {' '.join(files)}" if files else ""
    return f"python -m tools.engines.cpu {' '.join(records.models)}{gguf} --write"


def weights_of(records: Records) -> str:
    """Returns the line on weights that are not the hub's."""
    sources = {model.folder: model.source for model in MODELS}
    known = [f"`{name}` is {sources[name]}" for name in records.models if name in sources]
    return f"- Weights: {'; '.join(known)}. So no figure here is of quality.\n" if known else ""


def result(model: str, lines: Lines) -> Iterator[str]:
    """Yields the lines of what came out for a model."""
    yield f"**{Path(model).name}**, ms of a token (share of the bound):\n"
    for precision, ways in PRECISIONS.items():
        found = sorted((median(lines[way].token), way) for kind in ways for way in kind if way in lines)
        if found:
            yield (
                f"- {precision}: " + ", ".join(f"{way} {1e3 * t:.1f}{told_share(lines[way])}" for t, way in found) + "."
            )
    yield ""
    goals = list(goals_of(model, lines))
    if goals:
        yield markdown_table(("goal", "wanted", "found", ""), [goal for goal, _ in goals])
        yield ""
        missed = [reason for _, reason in goals if reason]
        yield from (f"- {reason}" for reason in dict.fromkeys(missed))
        yield from [""] if missed else []


def told_share(line: Line) -> str:
    return "" if line.share is None else f" ({line.share:.2f})"


Goal = tuple[list[str], str]  # the cells of a table, and why it is missed, if it is


def goal(what: str, wanted: str, found: str, is_met: bool, why: str = "") -> Goal:
    return [what, wanted, found, "met" if is_met else "missed"], "" if is_met else why


def goals_of(model: str, lines: Lines) -> Iterator[Goal]:
    """Yields the goals that were set for the pair of public models."""
    if model not in IN_16_BITS:
        return
    wanted = [(way, IN_16_BITS[model]) for way in ("eager", "compiled")]
    wanted += [(way, IN_FEW_BITS) for way in ("int8", "int8 compiled", "int4", "int4 compiled")]
    for way, least in wanted:
        if way in lines and (share := lines[way].share) is not None:
            yield goal(
                f"{way}: share of the bound",
                f"≥ {least:.2f}",
                f"{share:.2f}",
                share >= least,
                why_less(way, lines[way]),
            )
    for way in ("eager", "compiled"):
        if way in lines and (growth := lines[way].growth(6)) is not None:
            yield goal(f"{way}: v(6)", f"≤ {MOST_GROWTH}", f"{growth:.2f}", growth <= MOST_GROWTH, WIDE.format(way=way))
    if (ratio := token_ratio("llama.cpp bare", "llama.cpp", lines)) is not None:
        passes = quotient(lines["llama.cpp bare"].passes[1], lines["llama.cpp"].passes[1])
        for what, found in (("token", ratio), ("pass", passes)):
            yield goal(
                f"llama.cpp: its bare calls ÷ the engine, {what}", f"≥ {OF_LLAMA_CPP}", f"{found:.3f}",
                found >= OF_LLAMA_CPP, "llama.cpp: what the engine does beside the calls takes that share.",
            )  # fmt: skip
    for way, limit, slow in (("eager", READY, SLOW), ("compiled", READY_COLD, SLOW_COLD)):
        if way in lines:
            yield goal(
                f"{way}: ready", f"≤ {limit:.0f} s", f"{lines[way].ready:.1f} s", lines[way].ready <= limit, slow
            )
    if "compiled" in lines and (warm := lines["compiled"].ready_warm) is not None:
        yield goal("compiled: ready, warm", f"≤ {READY_WARM:.0f} s", f"{warm:.1f} s", warm <= READY_WARM, SLOW_COLD)
    for precision, (own, others) in PRECISIONS.items():
        ways = [way for way in own if way in lines]
        for other in others:
            ratios = {way: ratio for way in ways if (ratio := token_ratio(way, other, lines)) is not None}
            if other in lines and ratios and other != "llama.cpp bare":
                best = min(ratios, key=ratios.__getitem__)
                yield goal(
                    f"{precision}: {best} ÷ {other}, in turns", "≤ 1", f"{ratios[best]:.2f}", ratios[best] <= 1,
                    FASTER.format(other=other) if precision == "4 bits" else "",
                )  # fmt: skip


WIDE = (
    "{way}: a pass over six tokens multiplies six times as much. Its arithmetic does not become faster with the "
    "memory, and shows where memory gives more."
)
SLOW = "eager: ready includes reading the files, and packing each layer, which is made once."
SLOW_COLD = (
    "compiled: tracing and compiling passes over 1, 6 and 16 tokens takes the seconds beyond those of eager ones."
)
FASTER = (
    "4 bits: {other} multiplies weights of 4 bits by activations that are rounded to 8 bits in blocks, in products of "
    "bytes. torch's kernel for int4 turns each weight into bfloat16 first, which sets its pace whatever memory gives "
    "([what else was tried](../notes/cpu.md#weights-of-8-and-4-bits)), and its output layer has 8 bits."
)


def why_less(way: str, line: Line) -> str:
    """Returns what keeps a way from its bound, by its own figures."""
    rest, rate = line.beside_products, line.rate_in_pass
    if line.in_pass is None or rest is None or rate is None or line.bound is None:
        return ""
    own = line.in_pass.seconds
    single = own + rest
    return (
        f"{way}: of a pass of {1e3 * single:.1f} ms its products take {1e3 * own:.1f}, at {rate / 1e9:.1f} GB/s where "
        f"the machine moves {median(line.rates) / 1e9:.1f}, and all else {1e3 * rest:.1f} ({rest / single:.0%}). With "
        f"products at the machine's rate the share would be {line.bound / (line.bound + rest):.2f}."
    )


WITHIN = ("way", "pass, ms", "bound, ms", "products", "calls", "products, ms", "GB/s", "all else, ms")


def within_pass(way: str, line: Line) -> list[str]:
    """Returns what a pass over one token consists of; no cells if that was not seen."""
    rest, rate = line.beside_products, line.rate_in_pass
    if line.in_pass is None or rest is None or rate is None or line.bound is None:
        return []
    own = line.in_pass.seconds
    single = own + rest
    return [
        way, f"{1e3 * single:.1f}", f"{1e3 * line.bound:.1f}", str(sum(each.number for each in line.products)),
        str(line.in_pass.num_calls), f"{1e3 * own:.1f}", f"{rate / 1e9:.1f}",
        f"{1e3 * rest:.1f} ({rest / single:.0%})",
    ]  # fmt: skip


BEFORE = ("way", "commit", "token, ms", "machine", "now, ms", "machine", "now ÷ before")


def compared(way: str, line: Line) -> Iterator[list[str]]:
    """Yields the cells of each earlier measurement of a way."""
    now = median(line.token)
    for old in line.before:
        yield [
            way, (old.commit or "unknown")[:7], f"{1e3 * old.token:.1f}", f"{old.rate / 1e9:.1f}", f"{1e3 * now:.1f}",
            f"{median(line.rates) / 1e9:.1f}", f"{now / old.token:.2f}",
        ]  # fmt: skip


def products(way: str, line: Line) -> Iterator[str]:
    for each in line.products if "compiled" not in way else ():
        yield (
            f"{way}: {each.number} × {each.num_inputs} → {each.num_outputs} ({each.kind}), "
            f"{each.num_bytes / 1e6:.0f} MB: {each.bytes_per_second / 1e9:.1f} GB/s"
        )


def conditions(records: Records) -> Iterator[str]:
    """Yields what the lines of a group were measured with."""
    found: dict[tuple[str, str], list[str]] = {}
    for model, lines in records.models.items():
        for way, line in lines.items():
            versions = ", ".join(f"{name} {version}" for name, version in line.versions.items())
            key = (model, f"{line.device}, {versions}, commit {(line.commit or 'unknown')[:7]}, load {line.load:.1f}")
            found.setdefault(key, []).append(way)
    for (model, text), ways in found.items():
        yield f"{model}, {', '.join(ways)}: {text}."
