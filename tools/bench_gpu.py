"""Measures the engines on a GPU, part by part, and prints every figure as soon as it is there.

    python -m tools.bench_gpu                      # all parts, with the shapes of Qwen2.5-7B and 0.5B
    python -m tools.bench_gpu --parts passes,formula --limit-seconds 240
    python -m tools.bench_gpu --shapes tiny --device cpu

Weights are random: a pass costs what it costs with any. Every part runs in a process of its own, which ends after its
limit of seconds; what was printed until then stays. A copy from device memory to device memory gives the bandwidth
that passes are compared with, bytes read and bytes written counted.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, cast, get_args

import torch

QWEN: dict[str, Any] = {"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1e6}
SHAPES: dict[str, dict[str, Any]] = {
    "7b": {
        **QWEN, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
    },
    "0.5b": {
        **QWEN, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
        "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
    },
    "tiny": {
        **QWEN, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 300, "tie_word_embeddings": True,
    },
}  # fmt: skip
PAIRS = {"qwen": ("7b", "0.5b"), "tiny": ("tiny", "tiny")}
VOCABULARY = {"qwen": 151643, "tiny": 290}
CONTEXT, NUM_TOKENS, NUM_DRAFT_TOKENS = 256, 64, 5
TARGET_LENGTHS, DRAFTER_LENGTHS = (1, NUM_DRAFT_TOKENS + 1, 16), (1, 2, NUM_DRAFT_TOKENS + 1)
RATES = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
STARTED = time.time()


def say(line: str) -> None:
    print(f"[{time.time() - STARTED:6.1f} s] {line}", flush=True)


class Numbers:
    """A tokenizer of random models: tokens without texts."""

    eos_token_id = None

    def __init__(self, size: int) -> None:
        self._size = size

    def get_vocab(self) -> dict[str, int]:
        return {str(number): number for number in range(self._size)}


def random_model(shape: str, size: int, device: str) -> Any:
    """A model of random weights: bfloat16 on a GPU, float32 on a CPU."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    from specbench.models.causal_lm import CausalLM

    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    torch.manual_seed(0)
    with torch.device(device):
        network = AutoModelForCausalLM.from_config(Qwen2Config(**SHAPES[shape]), dtype=dtype).eval()
    network.generation_config.eos_token_id = network.config.eos_token_id = None
    return CausalLM(network, Numbers(size), f"random-{shape}", None)


def bytes_per_token(model: Any) -> int:
    """The bytes of the weights that a pass over one token reads."""
    is_tied = model.model.config.tie_word_embeddings
    weights = model.model.named_parameters()
    return sum(w.numel() * w.element_size() for name, w in weights if is_tied or "embed_tokens" not in name)


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds_of(run: Callable[[], Any], number: int = 20) -> float:
    """The median seconds of a call, after three that are not counted."""
    found = []
    for each in range(number + 3):
        synchronize()
        start = time.perf_counter()
        run()
        synchronize()
        if each >= 3:
            found.append(time.perf_counter() - start)
    return median(found)


def copy_rate(device: str) -> float:
    """Bytes read and written per second by a copy."""
    size = 2**31 if device != "cpu" else 2**27
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / seconds_of(lambda: target.copy_(source), 10)


def ids_of(model: Any, number: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, model.vocab_size, (number,), generator=generator).tolist()


def with_engine(model: Any, engine: str) -> Any:
    """The same network read by another engine."""
    from specbench.models.causal_lm import CausalLM
    from specbench.models.loading import make_passes
    from specbench.specs.components import StaticEngine

    made = CausalLM(model.model, model.tokenizer, model.name, None)
    if engine in get_args(StaticEngine):
        make_passes(made, cast(StaticEngine, engine))
        if made.why_eager:
            say(f"{made.name}: {engine} cannot be made: {made.why_eager}")
    return made


def decode_ids(target: Any, drafter: Any, ids: list[int], num_tokens: int, num_draft_tokens: int, rule: Any) -> Any:
    from specbench.decoding.generation_state import StopRules
    from specbench.decoding.loop import decode
    from specbench.decoding.sampling import Sampling

    return decode(
        target, drafter, rule, ids, num_draft_tokens=num_draft_tokens, sampling=Sampling(0.0),
        stop=StopRules(num_tokens), generator=torch.Generator(device=target.device).manual_seed(1),
    )  # fmt: skip


def ar_seconds(model: Any, ids: list[int]) -> float:
    """Seconds per token of autoregressive decoding in our loop."""
    from specbench.decoding.drafters.none import NoDrafter
    from specbench.decoding.verification import rejection

    found = [decode_ids(model, NoDrafter(), ids, NUM_TOKENS, 0, rejection).decode_seconds for _ in range(4)]
    return float(median(found[1:])) / (NUM_TOKENS - 1)


def transformers_seconds(model: Any, ids: list[int], **options: Any) -> tuple[float, float]:
    """Seconds per token of transformers' `generate`, and those of the first call."""
    given = torch.tensor([ids], device=model.device)
    mask = torch.ones_like(given)

    def generate(number: int) -> float:
        synchronize()
        start = time.perf_counter()
        model.model.generate(
            given, attention_mask=mask, max_new_tokens=number, min_new_tokens=number, do_sample=False, pad_token_id=0,
            **options,
        )  # fmt: skip
        synchronize()
        return time.perf_counter() - start

    first = generate(NUM_TOKENS)
    generate(NUM_TOKENS)
    return (median(generate(NUM_TOKENS) for _ in range(3)) - median(generate(2) for _ in range(3))) / (
        NUM_TOKENS - 2
    ), first


def pass_seconds(model: Any, ids: list[int], length: int) -> float:
    """Seconds on the device of a pass over `length` tokens that ends a context of CONTEXT tokens."""
    model.score(ids[:CONTEXT], 1)
    model.passes.clear()
    for _ in range(23):
        model.sequence.rollback(CONTEXT - length)
        model.score(ids[:CONTEXT], length)
    model.passes.clock.now()
    return float(median(seconds for _, seconds in model.passes.read()[3:]))


def show(name: str, model: Any, seconds: float, rate: float, text: str = "") -> None:
    share = bytes_per_token(model) / rate / seconds
    say(f"{model.name} · {name}: {seconds * 1e3:.3f} ms per token, {share:.3f} of the copy's bandwidth{text}")


def passes(args: argparse.Namespace) -> None:
    """The table of engines: per token, per pass, and what it takes to make the passes."""
    rate = copy_rate(args.device)
    device = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    say(f"{device}: a copy moves {rate / 1e12:.3f} TB/s")
    for shape in dict.fromkeys(PAIRS[args.shapes]):
        model = random_model(shape, VOCABULARY[args.shapes], args.device)
        ids = ids_of(model, CONTEXT)
        say(f"{model.name}: {bytes_per_token(model) / 1e9:.2f} GB, bound {bytes_per_token(model) / rate * 1e3:.3f} ms")
        for engine in args.engines:
            if engine == "graphs" and args.device == "cpu":
                continue
            if engine.startswith("transformers"):
                options = {"cache_implementation": "static"} if engine.endswith("static") else {}
                seconds, first = transformers_seconds(model, ids, **options)
                show(engine, model, seconds, rate, f", first call {first:.1f} s")
                continue
            engine_passes(with_engine(model, engine), ids, rate, shape == PAIRS[args.shapes][1])


def engine_passes(model: Any, ids: list[int], rate: float, drafts: bool) -> None:
    """The lines of one engine of ours."""
    from specbench.decoding.sampling import Sampling

    made, lengths = "", DRAFTER_LENGTHS if drafts else TARGET_LENGTHS
    if model.static is not None:
        number, seconds = model.static.reserve(CONTEXT + NUM_TOKENS, lengths)
        made = f", {number} passes made in {seconds:.1f} s"
    show(model.engine, model, ar_seconds(model, ids), rate, made)
    base = pass_seconds(model, ids, 1)
    for length in lengths:
        seconds = pass_seconds(model, ids, length)
        say(f"{model.name} · {model.engine}: pass of {length}: {seconds * 1e3:.3f} ms, {seconds / base:.3f} of one")
    for sampling in (Sampling(0.0), Sampling(1.0, top_p=0.9)) if drafts else ():
        name = "greedy" if sampling.greedy else "sampled"
        number, made_in = model.reserve_draft(NUM_DRAFT_TOKENS, sampling)
        seconds = draft_seconds(model, ids, sampling) / NUM_DRAFT_TOKENS
        share = bytes_per_token(model) / rate / seconds
        say(f"{model.name} · {model.engine}: drafting, {name}: {seconds * 1e3:.3f} ms a token, {share:.3f} of the "
            f"copy's bandwidth; {number} graphs in {made_in:.1f} s")  # fmt: skip


def draft_seconds(model: Any, ids: list[int], sampling: Any) -> float:
    """Seconds of one draft of NUM_DRAFT_TOKENS tokens."""
    from specbench.decoding.drafters.model import ModelDrafter

    drafter = ModelDrafter(model, sampling)
    drafter.prefill(ids[:-1])
    generator = torch.Generator(device=model.device).manual_seed(0)

    def run() -> None:
        drafter._last = None
        model.sequence.rollback(CONTEXT - 1)
        with torch.inference_mode():
            drafter.propose(ids, NUM_DRAFT_TOKENS, generator)

    return seconds_of(run)


def formula(args: argparse.Namespace) -> None:
    """Measured speed-ups of prescribed acceptance beside the expected ones, in a loop that alternates with AR."""
    from specbench.decoding.drafters.none import NoDrafter
    from specbench.decoding.drafters.synthetic import SyntheticDrafter
    from specbench.decoding.sampling import Sampling
    from specbench.decoding.verification import rejection

    target, drafter = (random_model(shape, VOCABULARY[args.shapes], args.device) for shape in PAIRS[args.shapes])
    for engine in [each for each in args.engines if not each.startswith("transformers")]:
        if engine == "graphs" and args.device == "cpu":
            continue
        models = [with_engine(model, engine) for model in (target, drafter)]
        start = time.perf_counter()
        for model, lengths in zip(models, ((1, NUM_DRAFT_TOKENS + 1), (1, 2)), strict=True):
            if model.static is not None:  # buffers as in the part `passes`, so that torch's cache on disk is read
                model.static.reserve(CONTEXT + NUM_TOKENS, lengths)
        models[1].reserve_draft(NUM_DRAFT_TOKENS, Sampling(0.0))
        say(f"{engine}: both models are ready in {time.perf_counter() - start:.1f} s")
        prompts = [ids_of(target, 96, seed) for seed in range(4)]
        for alpha in RATES:
            synthetic = SyntheticDrafter(models[0], models[1], alpha, Sampling(0.0))
            pairs = []
            for number, ids in enumerate(prompts):
                made: dict[str, Any] = {}
                for name in ("ar", "sd") if number % 2 else ("sd", "ar"):
                    if name == "ar":
                        made[name] = decode_ids(models[0], NoDrafter(), ids, 96, 0, rejection)
                        continue
                    speculate = partial(decode_ids, models[0], synthetic, ids, 96, NUM_DRAFT_TOKENS, rejection)
                    synthetic.rehearse(speculate)
                    made[name] = speculate()
                pairs.append(made)
            say(f"{engine}: " + formula_line(alpha, pairs[1:]))


def formula_line(alpha: float, pairs: list[dict[str, Any]]) -> str:
    steps = [step for pair in pairs for step in pair["sd"].steps]
    found_alpha = sum(step.num_accepted for step in steps) / sum(step.num_judged for step in steps)
    single = median(seconds for pair in pairs for _, seconds in pair["ar"].target_passes)
    full = [s for pair in pairs for length, s in pair["sd"].target_passes if length == NUM_DRAFT_TOKENS + 1]
    cost = median(seconds for pair in pairs for _, seconds in pair["sd"].draft_passes) / single
    verifying = median(full) / single
    speed_up = sum(pair["ar"].decode_seconds for pair in pairs) / sum(pair["sd"].decode_seconds for pair in pairs)
    tokens = (1 - alpha ** (NUM_DRAFT_TOKENS + 1)) / (1 - alpha)
    plain = tokens / (NUM_DRAFT_TOKENS * cost + 1)
    with_v = tokens / (NUM_DRAFT_TOKENS * cost + verifying)
    return (
        f"α {alpha} (found {found_alpha:.3f}): speed-up {speed_up:.3f}, ÷ f {speed_up / plain:.3f}, ÷ f with v "
        f"{speed_up / with_v:.3f}; c {cost:.3f}, v {verifying:.3f}"
    )


def own_methods() -> list[str]:
    """The methods whose passes are ours, which every engine runs."""
    from specbench.specs.catalogue import load_method, method_names

    return [name for name in method_names() if load_method(name).decoder is None]


def specbench(args: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "specbench", *args], capture_output=True, text=True, check=False)


def methods(args: argparse.Namespace) -> None:
    """The embedded pair with every method, by each engine: speed-ups over AR of the same engine."""
    for engine in [each for each in args.engines if not each.startswith("transformers")]:
        if engine == "graphs" and args.device == "cpu":
            continue
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            said = specbench([
                "run", "--task", "mgsm", "--subset", "en", "--limit", str(args.prompts), "--device", args.device,
                "--method", ",".join(args.methods or own_methods()), "--engine", engine, "--output", folder,
                "--set", "generation.max_new_tokens=96",
            ])  # fmt: skip
            say(f"{engine}: exit code {said.returncode} after {time.perf_counter() - start:.0f} s")
            board = Path(folder) / "leaderboard.json"
            if said.returncode or not board.exists():
                say(said.stderr[-600:])
                continue
            for row in json.loads(board.read_text())["rows"]:
                found = {name: row["metrics"].get(name) for name in ("tokens_per_second", "speedup", "acceptance_rate")}
                say(f"{engine} · {row['method'].partition('@')[0]}: {found}, engine {row['engine']}, {row['verdict']}")


def verdicts(args: argparse.Namespace) -> None:
    """Whether methods write AR's greedy outputs in bfloat16, near-ties told apart."""
    for engine in [each for each in args.engines if not each.startswith("transformers")]:
        if engine == "graphs" and args.device == "cpu":
            continue
        said = specbench([
            "audit", "--task", "mgsm", "--subset", "en", "--limit", str(args.prompts), "--device", args.device,
            "--dtype", "bfloat16", "--method", ",".join(args.methods or ["sd", "pld", "slem", "tli"]), "--draws", "0",
            "--engine", engine, "--set", "generation.max_new_tokens=64",
        ])  # fmt: skip
        say(f"{engine}: exit code {said.returncode}")
        for line in (said.stdout or said.stderr[-600:]).splitlines():
            say(f"{engine} · {line}")


def series(args: argparse.Namespace) -> None:
    """AR's seconds per token, answer by answer, in fresh processes."""
    for engine in [each for each in args.engines if not each.startswith("transformers")]:
        if engine == "graphs" and args.device == "cpu":
            continue
        for number in range(args.processes):
            with tempfile.TemporaryDirectory() as folder:
                said = specbench([
                    "run", "--task", "mgsm", "--subset", "en", "--limit", "16", "--device", args.device, "--method",
                    "ar", "--engine", engine, "--output", folder, "--set", "generation.max_new_tokens=64",
                ])  # fmt: skip
                records = Path(folder) / "records.jsonl"
                if said.returncode or not records.exists():
                    say(said.stderr[-600:])
                    continue
                answers = [json.loads(line)["methods"]["ar"] for line in records.read_text().splitlines()]
            per_token = [1e3 * a["decode_seconds"] / max(1, len(a["token_ids"]) - 1) for a in answers]
            say(f"{engine}, process {number + 1}: ms per token " + " ".join(f"{value:.2f}" for value in per_token))


PARTS = {"passes": passes, "formula": formula, "methods": methods, "verdicts": verdicts, "series": series}
ENGINES = ("transformers", "transformers-static", "eager", "graphs", "compiled")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--engines", default=",".join(ENGINES), help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--shapes", default="qwen", choices=list(PAIRS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--limit-seconds", type=float, default=300, help="of each part")
    parser.add_argument("--methods", type=lambda text: text.split(","), help="of the parts methods and verdicts")
    parser.add_argument("--prompts", type=int, default=4, help="of the parts methods and verdicts")
    parser.add_argument("--processes", type=int, default=3, help="fresh ones, of the part series")
    parser.add_argument("--here", action="store_true", help="one part in this process, without a limit")
    args = parser.parse_args()
    args.engines = args.engines.split(",")
    for given, known in ((args.parts.split(","), PARTS), (args.engines, ENGINES)):
        if wrong := [name for name in given if name not in known]:
            parser.error(f"'{wrong[0]}': the choices are {', '.join(known)}")
    return args


def main() -> int:
    args = parsed()
    if args.here:
        with torch.inference_mode():
            PARTS[args.parts](args)
        return 0
    worst = 0
    for part in args.parts.split(","):
        print(f"## {part}", flush=True)
        rest = [word for word in sys.argv[1:]]
        command = [sys.executable, __file__, *rest, "--parts", part, "--here"]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        try:
            code = subprocess.run(command, timeout=args.limit_seconds, env=environment, check=False).returncode
        except subprocess.TimeoutExpired:
            say(f"{part}: ended after its limit of {args.limit_seconds:.0f} s")
            code = 1
        worst = max(worst, code)
    return worst


if __name__ == "__main__":
    sys.exit(main())
