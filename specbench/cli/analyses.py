"""Commands that analyse models, methods and runs, from `specbench advise` to `specbench vocab`."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.arguments import (
    PAIR,
    AsJson,
    Plot,
    Report,
    RowSubsets,
    SamplePrompt,
    changed_options,
    command_line,
    flag,
    names_in,
    one_of,
    path_option,
    print_report,
    print_result,
    serving_of,
    split,
    takes_run_options,
    task_or_sample,
)
from specbench.core.console import say, stderr, stdout
from specbench.core.environment import require
from specbench.core.errors import ConfigError, nearest
from specbench.core.progress import status_line
from specbench.specs.run_options import RunOptions

RUNS = "Folders of runs, as RUN or RUN:METHOD; by default all methods that draft."
FEWEST_TEXTS = 100  # that `languages` ranks: then a share of 50 % has an interval of ± 10 points

PAIR_HELP = {
    "target": "Target: hub id, folder, or embedded:NAME.", "drafter": "Drafter: hub id, folder, or embedded:NAME.",
}  # fmt: skip


@takes_run_options(
    only=("subsets", "data", "seed", "dtype", "device", "threads", "trust_remote_code"),
    data="Folder or file of the runs' rows, if it has been moved.",
)
def fairness(
    runs: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help=RUNS)] = None,
    drafter: Annotated[
        list[str] | None, typer.Option(help="Another drafter, not measured by a run; may be repeated.")
    ] = None,
    before: Annotated[str | None, typer.Option(help="RUN or RUN:METHOD that --after is compared with.")] = None,
    after: Annotated[str | None, typer.Option(help="RUN or RUN:METHOD that is compared with --before.")] = None,
    reference: Annotated[
        str, typer.Option(help="Texts that are scored: the target's continuation, or the texts of the data.")
    ] = "continuation",
    samples: Annotated[
        int, typer.Option(help="Texts sampled from each drafter to rank languages; 0: none; the paper: 100000.")
    ] = 1000,
    prompt: SamplePrompt = "",
    task: Annotated[str | None, typer.Option(help="Tasks of the runs, separated by commas; by default all.")] = None,
    *,
    options: RunOptions,
    leaderboard: Annotated[
        Path | None, path_option(help="Leaderboard JSON whose rows of these runs get the numbers.")
    ] = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Show which languages a drafter serves worse, why, and how another drafter compares (arXiv:2510.02128).

    Measured, from the records: α, τ, speed-up, α · BLEU.

    Teacher-forced, on the same texts for all drafters: divergence, KL, TV, fitness, bounds, unfairness, spread.
    """
    from specbench.results.runs import run_path
    from specbench.running.request import check_all, check_model, option_checks

    check_all([
        *(partial(run_path, text) for text in (before, after, *(runs or ())) if text is not None),
        *(partial(check_model, name) for name in drafter or ()), *option_checks(options),
    ])  # fmt: skip
    from specbench.analysis.fairness import fairness as analysis  # these import torch
    from specbench.analysis.fairness.tables import draw_fairness, tables
    from specbench.report.display import check_plot

    if plot is not None:
        check_plot(plot)
    if leaderboard is not None:
        analysis.check_rows(leaderboard)
    with status_line("reading the runs") as say:
        report = analysis.fairness_report(
            runs or (), options, say, before=before, after=after, drafters=drafter or (),
            reference=reference, samples=samples, prompt=prompt, tasks=split(task or ""),  # type: ignore[arg-type]
        )  # fmt: skip
    print_result(report, as_json, lambda: tables(report))
    if plot is not None:
        draw_fairness(report, plot)
        stderr.print(f"picture: {plot}", soft_wrap=True)
    if leaderboard is not None:
        stderr.print(f"{leaderboard}: {analysis.add_fairness(leaderboard, report)}", soft_wrap=True)


def advise(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Runs or leaderboard files, as PATH or PATH:METHOD.")
    ],
    goal: Annotated[
        str,
        typer.Option(
            help="latency (tokens/s of one user), throughput (total tokens/s, also under load), goodput (answers per "
            "second of a load within --slo), energy (tokens per joule) or cost (dollars per million tokens).",
            autocompletion=one_of("specbench.analysis.advice.advise:GOALS"),
        ),
    ] = "latency",
    task: Annotated[str | None, typer.Option(help="Task, if the rows are of several.")] = None,
    subset: Annotated[str | None, typer.Option(help="Subset; by default the `all` rows.")] = None,
    price_per_hour: Annotated[float | None, typer.Option(min=0, help="Dollars per hour of the machine.")] = None,
    slo: Annotated[
        str | None,
        typer.Option(metavar="NAME=SECONDS,…", help="Limits of goodput: ttft, tpot and e2e, as ttft=0.5,tpot=0.05."),
    ] = None,
    max_loss: Annotated[
        float | None,
        typer.Option(min=0, help="Leave out ways whose score is lower than the reference's by more than this share."),
    ] = None,
    memory: Annotated[
        Path | None, path_option(help="File of the memory that all ways have, as `specbench memory` reads it.")
    ] = None,
    context: Annotated[int | None, typer.Option(min=1, help="Context of the loads, if they are of several.")] = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Rank what was measured for a goal: methods, draft lengths, precisions and engines, plain decoding among them.

    The runs are of the same prompts on one machine; AR of the first one is the reference for quality. Shorter draft
    lengths are replayed from the records, and are marked so.

    With --memory, each way under load stands at the requests at once that this memory holds: AR at more of them than
    a method with a drafter.

    --plot draws score and memory against the goal, and writes a CSV file of the same name with what is drawn.
    """
    from specbench.analysis.advice import advise as analysis
    from specbench.analysis.advice.memory import SharedMemory
    from specbench.analysis.advice.tables import report_parts
    from specbench.publish.paper.advice import drawing_of_advice
    from specbench.publish.paper.render import WIDTHS, check_figure, format_of, write_figure

    if plot is not None:
        format_of(plot, None, "--plot")
        check_figure(plot, "--plot")
    with status_line("reading the runs"):
        advice = analysis.advise(
            runs, goal, task=task, subset=subset, price_per_hour=price_per_hour,  # type: ignore[arg-type]
            limits=None if slo is None else limits_of(slo, analysis.LIMITS), max_loss=max_loss,
            memory=None if memory is None else SharedMemory.read(memory), context=context,
        )  # fmt: skip
    drawing = None if plot is None else drawing_of_advice(advice)
    print_result(advice, as_json, lambda: report_parts(advice))
    if plot is not None and drawing is not None:
        data = write_figure(drawing, plot, format_of(plot, None, "--plot"), WIDTHS["text"], name="--plot")
        for line in (f"picture: {plot}, {data}", *drawing.caption):
            stderr.print(line, soft_wrap=True)


def memory(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML file of the memory and the models.")],
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN]...", help="Runs of servers under load, or leaderboard files.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Task, if the rows are of several.")] = None,
    subset: Annotated[str | None, typer.Option(help="Subset; by default the `all` rows.")] = None,
    slo: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=SECONDS,…",
            help="Compare answers per second within these limits (ttft, tpot, e2e), in place of tokens per second.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tell how many requests a memory holds at once without and with a drafter, and compare both there.

    A drafter's weights and its keys and values take memory in which AR would answer more requests at once. With RUN, AR
    at its number of requests stands beside each method at its own: measured, or computed between measured levels.
    """
    from specbench.analysis.advice.advise import LIMITS, goodput_of, measured_rows
    from specbench.analysis.advice.memory import SharedMemory, memory_report
    from specbench.analysis.advice.tables import memory_parts

    limits = None if slo is None else limits_of(slo, LIMITS)
    if limits is not None and not runs:
        raise ConfigError("--slo: applies to runs under load: give a RUN")
    shared = SharedMemory.read(file)
    with status_line("reading the runs"):
        found = measured_rows(runs or [], task, subset)
        by_row = {id(each.row): each for each in found}
        value_of = None if limits is None else lambda row: goodput_of(by_row[id(row)], limits)
        report = memory_report(shared, [each.row for each in found], value_of, limits)
    print_result(report, as_json, lambda: memory_parts(report))


def limits_of(text: str, known: Sequence[str]) -> dict[str, float]:
    """Returns the seconds of --slo by name. Raises ConfigError for another name, and for no positive number."""
    limits = {}
    for part in split(text):
        name, _, seconds = part.partition("=")
        if name not in known:
            raise ConfigError(f"--slo {part}: write limits in seconds, as ttft=0.5,tpot=0.05: {nearest(name, known)}")
        try:
            limits[name] = float(seconds)
        except ValueError:
            limits[name] = 0.0
        if not 0 < limits[name] < float("inf"):
            raise ConfigError(f"--slo {part}: give a number of seconds above 0")
    if not limits:
        raise ConfigError("--slo is empty: give limits in seconds, as ttft=0.5,tpot=0.05")
    return limits


OF_MODELS = (
    "repeats",
    "warm_up",
    "subsets_per_task",
    "allow_code_execution",
)  # options of a run that mean nothing here


@takes_run_options(
    without=OF_MODELS,
    target="With --change: the target before.",
    drafter="With --change: the drafter before.",
    limit="Prompts of each subset: a number, or with --change a share.",
)
def drift(
    before: Annotated[str | None, typer.Option(help="Run before the change, as RUN or RUN:METHOD.")] = None,
    after: Annotated[str | None, typer.Option(help="Run after it, of the same task.")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTION=VALUE",
            help="Without runs: an option that has another value after, such as quantize=int4, target=MODEL, "
            "drafter=MODEL, chat=never or set=generation.temperature=1; may be repeated.",
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Without runs: the task whose references are read. With runs: tasks to compare.")
    ] = None,
    *,
    options: RunOptions,
    output: Report = None,
    as_json: AsJson = False,
) -> None:
    """Tell what a fine-tune, a merge, a quantization, a template or another temperature does to acceptance.

    With two runs: α and τ along each target's own recorded answers, in the steps that the method would take, beside
    what decoding counted; and Σ min(p, q) of both sides on the same texts. The runs have the same task and two targets,
    or two drafters, or other conditions.

    With --change, before anything is measured: Σ min(p, q) of both sides on the references of a task. Nothing is
    decoded.
    """
    from specbench.core.files import check_output
    from specbench.running.request import Request, check_all, check_request, option_checks

    if output is not None:
        check_output("--output", output)
    if (before is None) != (after is None):
        given, missing = ("--before", "--after") if after is None else ("--after", "--before")
        raise ConfigError(f"{given}: needs {missing} as well")
    if (before is None) == (not change):
        raise ConfigError(
            "give two runs with --before and --after, or models with --target, --drafter, --task and --change"
        )
    if before is not None and after is not None:
        from specbench.results.runs import run_path

        for name in ("target", "drafter"):
            if getattr(options, name) is not None:
                raise ConfigError(
                    f"--{name}: has no effect with --before and --after, whose runs name it: leave it out"
                )
        check_all([partial(run_path, before), partial(run_path, after), *option_checks(options)])
        from specbench.analysis.drift.drift import drift_of_runs  # imports torch

        with status_line("reading the runs") as say:
            report = drift_of_runs(before, after, options, split(task or ""), say)
    else:
        tasks, options = task_or_sample(task, options)
        first = Request(tasks, ["sd"], options, command_line())
        second = replace(first, options=changed_options(options, change or ()))
        for request in (first, second):
            check_request(request)
        from specbench.analysis.drift.drift import drift_of_models  # imports torch

        with status_line("loading the models") as say:
            report = drift_of_models(first, second, stderr, say)
    from specbench.analysis.drift.tables import tables

    print_report(report, as_json, lambda: tables(report), output)


@takes_run_options(
    only=("drafter", "drafter_revision", "seed", "dtype", "device", "trust_remote_code"),
    defaults={"drafter": "embedded:drafter-bpe"},
    drafter="Model: hub id, folder, or embedded:NAME.",
)
def languages(
    samples: Annotated[
        int, typer.Option(min=FEWEST_TEXTS, help="Texts to sample; arXiv:2510.02128 takes 100000.")
    ] = 1000,
    prompt: SamplePrompt = "",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens of a text.")] = 64,
    temperature: Annotated[float, typer.Option(help="Temperature of the sampling, above 0.")] = 1.0,
    extra_languages: Annotated[
        str | None, typer.Option(help="Codes of further languages, separated by commas.")
    ] = None,
    *,
    options: RunOptions,
    as_json: AsJson = False,
) -> None:
    """Rank the languages of texts that a model samples from an empty prompt (arXiv:2510.02128).

    The ranking shows which languages the model knows best.

    lingua identifies the languages. The paper uses NLTK's classifier, which may give other shares.
    """
    from specbench.specs.components import identifiable_code

    require("lingua", "specbench languages")
    if not 0 < temperature < float("inf"):
        raise ConfigError(f"--temperature {temperature:g}: must be above 0")
    extra = split(extra_languages or "")
    for code in extra:
        if identifiable_code(code) is None:
            problem = "lingua cannot identify this language: give ISO 639 codes such as la,eo"
            raise ConfigError(f"--extra-languages {code}: {problem}")
    from specbench.running.request import check_all, option_checks

    check_all(option_checks(replace(options, engine="eager")))
    from specbench.analysis.fairness.representation import representation, representation_table  # these import torch
    from specbench.models.loading import load_model

    assert options.drafter is not None
    with status_line(f"sampling {samples} texts from {options.drafter}"):
        model = load_model(
            options.drafter, revision=options.drafter_revision, dtype=options.dtype, device=options.device,
            trust_remote_code=options.trust_remote_code,
        )  # fmt: skip
        found = representation(
            model, samples, max_new_tokens=max_new_tokens, temperature=temperature, seed=options.seed,
            prompt=prompt, languages=extra,
        )  # fmt: skip
    print_result(found, as_json, lambda: [representation_table(found)])


@takes_run_options(
    only=(
        *PAIR,
        "tokenizer",
        "drafter_tokenizer",
        "seed",
        "dtype",
        "device",
        "quantize",
        "engine",
        "gpu_layers",
        "cache_dtype",
        "pass_width",
        "threads",
        "trust_remote_code",
    ),
    defaults={"target": "embedded:target", "drafter": "embedded:drafter"},
    seed="Seed of the random texts.",
    **PAIR_HELP,
)
def roofline(
    *,
    options: RunOptions,
    context: Annotated[
        int, typer.Option(min=8, help="Number of cached tokens at which passes of every length are timed.")
    ] = 256,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; each times every pass of both models.")] = 9,
    text: Annotated[
        Path | None, path_option(help="Text file whose tokens the passes read; by default they are random.")
    ] = None,
    plot: Plot = None,
    output: Report = None,
    as_json: AsJson = False,
) -> None:
    """Compare a model pair with the hardware's limits: pass times, draft cost c, best draft lengths.

    Forward passes over 1 to 96 tokens (compiled: fewer) alternate with the decode loop. Copies, sums and products of
    matrices are timed too.

    Bounds: bytes of weights and cache that a pass must read ÷ memory bandwidth, that of copies or of sums, whichever is
    higher; operations of a pass ÷ rate of matrix products.

    For a target with mixed experts, the experts that a pass reads stand beside its cost: those of uniform routing, and
    in eager passes the routers' own choices, of random tokens or of --text.
    """
    from specbench.core import bounded
    from specbench.core.environment import EMBEDDED, set_threads
    from specbench.core.files import check_output
    from specbench.running.request import check_all, option_checks

    if output is not None:
        check_output("--output", output)
    check_all(option_checks(options))
    from specbench.analysis.roofline.report import draw_roofline, tables
    from specbench.analysis.roofline.roofline import measure_pair  # imports torch
    from specbench.report.display import check_plot
    from specbench.running.plan import load_lines

    given = None if text is None else bounded.read_text(text, "give a text file")
    if plot is not None:
        check_plot(plot)
        check_output("--plot", plot)
    set_threads(options.threads, (options.target or "").startswith(EMBEDDED))
    for line in load_lines(options.device):
        say(stderr, line)
    with status_line("measuring") as progress:
        report = measure_pair(options, context, repeats, progress, given)
    report.text = None if text is None else text.name
    print_report(report, as_json, lambda: tables(report), output)
    if plot is not None:
        draw_roofline(report, plot)
        console = stderr if as_json else stdout  # with --json, stdout is only JSON
        console.print(f"picture: {plot}", soft_wrap=True)


def predict(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="RUN, RUN:METHOD, or FILE:NUMBER of a row.")],
    target_pass: Annotated[
        float, typer.Option(help="Milliseconds of a target pass over one token on the other machine.")
    ],
    draft_pass: Annotated[float | None, typer.Option(help="Milliseconds of a draft pass on it.")] = None,
    verification_cost: Annotated[
        float, typer.Option(help="Cost of the longest verifying pass on it, in target passes.")
    ] = 1.0,
    subset: RowSubsets = None,
    as_json: AsJson = False,
) -> None:
    """Predict speed-ups on another machine from recorded steps and the machine's pass times.

    Each recorded pass counts as the time that a pass of its length takes on that machine.

    Shorter draft lengths are predicted too if the recorded verdicts determine their steps; lengths that vary, if a run
    with `draft_length: {policy: confidence, threshold: 0}` recorded the drafter's confidences.
    """
    from specbench.analysis.roofline import predict as analysis

    for option, value in (("--target-pass", target_pass), ("--verification-cost", verification_cost)):
        if not 0 < value < float("inf"):
            raise ConfigError(f"{option} {value:g}: give a finite number above 0")
    if draft_pass is not None and not 0 <= draft_pass < float("inf"):
        raise ConfigError(f"--draft-pass {draft_pass:g}: give a finite number from 0")
    machine = analysis.Machine(target_pass, draft_pass, verification_cost)
    with status_line("reading the records"):
        report = analysis.predict(runs, split(subset or ""), machine)
    print_result(report, as_json, lambda: [analysis.table(report)])


def explain(
    claim: Annotated[
        str | None, typer.Argument(metavar="[CLAIM]", help="A claim: a name that --list shows, or a YAML file.")
    ] = None,
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="RUN, RUN:METHOD, or FILE:NUMBER of a row; none: only the claim."),
    ] = None,
    task: Annotated[str | None, typer.Option(help="Tasks of the runs, separated by commas; by default all.")] = None,
    subset: RowSubsets = None,
    list_: Annotated[bool, flag("--list", help="List the claims of the package, with what they imply.")] = False,
    as_json: AsJson = False,
) -> None:
    """Explain why a measured speed-up differs from a published one: how much is acceptance, how much step cost.

    A step emits τ tokens and takes as long as R tokens of AR, so that S = τ ÷ R on both sides.

    The ratio of the speed-ups is split exactly into factors of τ and of R, and of the parts of R that the claim tells.

    τ is first brought to one way of counting. Intervals are those of the measurement, and resample prompts.

    A claim is implausible if no step that costs at least about a token of AR could give its speed-up at its τ.
    """
    from specbench.analysis.claims.claim import load_claim, public_claims, read_claim

    if list_:
        if claim is not None:
            raise ConfigError(f"--list: lists all claims and takes no CLAIM: remove --list or '{claim}'")
        readings = [read_claim(each) for each in public_claims().values()]
        from specbench.analysis.claims.tables import claims_table

        print_result([each.model_dump() for each in readings], as_json, lambda: [claims_table(readings)])
        return
    if claim is None:
        raise ConfigError("CLAIM is missing: name one that `specbench explain --list` shows, or a YAML file")
    told = load_claim(claim)
    from specbench.analysis.claims.explain import explain as analysis
    from specbench.analysis.claims.tables import explanation_parts, reading_lines

    if not runs:
        for option, text in (("--task", task), ("--subset", subset)):
            if text is not None:
                raise ConfigError(f"{option} {text}: has no effect without a RUN: add one, or remove the option")
        reading = read_claim(told)
        print_result(reading, as_json, lambda: ["\n".join(reading_lines(reading))])
        return
    with status_line("reading the records"):
        found = analysis(told, runs, split(task or ""), split(subset or ""))
    print_result([each.model_dump() for each in found], as_json, lambda: explanation_parts(found))


@takes_run_options(
    only=(*PAIR, "subsets", "limit", "data", "seed", "dtype", "device", "trust_remote_code"),
    defaults={"target": "embedded:target", "drafter": "embedded:drafter-bpe"},
    limit="Prompts per subset; by default 50 over all subsets.",
    seed="Seed of the drafts and continuations of --acceptance.",
    dtype="For --acceptance: auto, float32, bfloat16 or float16.",
    device="For --acceptance: auto, cuda, mps or cpu.",
    **PAIR_HELP,
)
def vocab(
    *,
    options: RunOptions,
    task: Annotated[
        str | None, typer.Option(help="Task whose prompts are the texts; by default the bundled prompts of mgsm.")
    ] = None,
    acceptance: Annotated[
        bool, flag("--acceptance", help="Load both models and compute each method's expected acceptance.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare the vocabularies of a target and a drafter: overlap, injectivity, decompositions, fitting methods."""
    from specbench.running.request import check_all, option_checks

    check_all(option_checks(replace(options, engine="eager"), needs_weights=acceptance))
    from specbench.analysis.vocab.vocab import report_parts, vocab_report  # imports torch

    with status_line(f"comparing the vocabularies of {options.target} and {options.drafter}"):
        report = vocab_report(options, task, acceptance, stderr)
    print_result(report, as_json, lambda: report_parts(report))


@takes_run_options(
    without=("subsets_per_task", "repeats", "warm_up", "allow_code_execution", "sampling"),
    limit="Examples per subset; by default as many as give 8 prompts in all.",
)
def audit(
    method: Annotated[
        str | None,
        typer.Option(
            help="Method names or YAML files, separated by commas; or all.", autocompletion=names_in("methods")
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="Task name or YAML file of the prompts; by default the bundled sample of mgsm.",
            autocompletion=names_in("tasks"),
        ),
    ] = None,
    servers: Annotated[
        Path | None,
        path_option(help="YAML file of servers; by default all but ar are audited, or the ones in --method."),
    ] = None,
    *,
    options: RunOptions,
    draws: Annotated[int, typer.Option(help="Samples of each method for the distribution test; 0: no test.")] = 1200,
    temperature: Annotated[float, typer.Option(help="Temperature of the samples.")] = 1.0,
    batch_width: Annotated[
        bool,
        flag(
            "--batch-width",
            help="Also report how the target's logits depend on the number of tokens that a pass reads; without "
            "--method, report only that.",
        ),
    ] = False,
    output: Report = None,
    leaderboard: Annotated[
        Path | None, path_option(help="Leaderboard JSON; its rows of these methods and models get the verdict.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Test whether methods are lossless on a model pair. Exit code 1 if a method that is declared lossless is not.

    Test 1: greedy outputs are compared with AR's on the prompts of --task, --subset and --limit.

    Test 2: --draws short samples of each method are tested against the target's exact probabilities. More samples find
    smaller errors. With --servers they are tested against samples of the server ar or, with --target, against that
    target in this process.

    Before any verdict the target itself is tested: its logits may depend on the number of tokens that a pass reads.
    --batch-width prints this test.
    """
    from specbench.core.files import check_output
    from specbench.running.request import Request, check_request

    tasks, options = task_or_sample(task, options, servers)
    if len(tasks) != 1:
        raise ConfigError(f"--task {task}: an audit uses the prompts of one task: give one")
    methods = split(method or "") or (["ar"] if batch_width and servers is None else [])
    request = Request(tasks, methods, options, command_line(), servers=servers)
    if output is not None:
        check_output("--output", output)
    check_request(request)
    from specbench.analysis.audit.audit import run_audit  # imports torch
    from specbench.analysis.audit.report import report_parts
    from specbench.core.console import counted
    from specbench.results.leaderboard import check_writable, load, set_verdicts
    from specbench.results.leaderboard_files import relative

    if leaderboard is not None:  # an unusable file is reported before the audit starts
        load(leaderboard)
        check_writable(leaderboard)
    with serving_of(servers) as load_servers, status_line("loading") as say:
        report = run_audit(request, draws, temperature, say, stderr, load_servers, shows_width=batch_width)
    print_report(report, as_json, lambda: report_parts(report), output)
    if leaderboard is not None:
        place = None if output is None else relative(output, leaderboard)
        num_rows = set_verdicts(leaderboard, partial(report.verdict_of, place=place))
        stderr.print(f"{leaderboard}: verdict written to {counted(num_rows, 'row')}", soft_wrap=True)
        if place is None:
            stderr.print(
                "without --output the report is not saved: `leaderboard validate` will list the verdict as stated",
                soft_wrap=True,
            )
    if not report.as_declared:
        raise typer.Exit(1)


MIN_DRAWS = 100  # drafts per table, below which no mistake is found
MAX_DRAWS = 10**6


def conformance(
    verifier: Annotated[str, typer.Argument(metavar="VERIFIER", help="MODULE:FUNCTION or FILE.py:FUNCTION.")],
    drafts: Annotated[
        str,
        typer.Option(
            help="Kinds of drafts that it takes, separated by commas: chain, paths, tree (siblings drawn "
            "independently), tree:without_replacement, tree:fixed (the most probable siblings)."
        ),
    ] = "chain",
    adapter: Annotated[
        str,
        typer.Option(
            help="How it is called: numpy or torch, as verify(p, q, drafts, rng); or by the signature of "
            "transformers, vllm or sglang."
        ),
    ] = "numpy",
    draws: Annotated[int, typer.Option(min=MIN_DRAWS, max=MAX_DRAWS, help="Drafts of each table.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the drafts and of the generator that it gets.")] = 0,
    device: Annotated[str, typer.Option(help="Device of the tensors: cpu, cuda or cuda:N.")] = "cpu",
    output: Report = None,
    as_json: AsJson = False,
) -> None:
    """Test whether a verifier of another project keeps the target's distribution, and name its likely mistake.

    It is called on small tables of p and q that expose mistakes: zeros, ties, one-hot rows, tiny probabilities,
    truncation, other temperatures, an end token. The law that it must emit is known exactly.

    Exit code 0: it passed; 1: it failed, or --draws are too few to tell. An exact verifier fails with a probability of
    at most 1e-4.
    """
    from specbench.core.errors import nearest
    from specbench.core.files import check_output

    if output is not None:
        check_output("--output", output)
    from specbench.analysis.conformance.adapters import ADAPTERS  # imports torch
    from specbench.analysis.conformance.kit import report_parts, run_conformance
    from specbench.analysis.conformance.tables import KINDS
    from specbench.integrations.external import load_entry
    from specbench.models.loading import choose_device

    if adapter not in ADAPTERS:
        raise ConfigError(f"--adapter {adapter}: {nearest(adapter, ADAPTERS)}")
    words = split(drafts)
    if not words:
        raise ConfigError(f"--drafts '{drafts}': name at least one kind: {', '.join(KINDS)}")
    for kind in words:
        if kind not in KINDS:
            raise ConfigError(f"--drafts {kind}: {nearest(kind, KINDS)}")
        if kind not in ADAPTERS[adapter].kinds:
            takes = ", ".join(ADAPTERS[adapter].kinds)
            raise ConfigError(f"--drafts {kind}: the signature of {adapter} takes only: {takes}")
    if ":" not in verifier:
        raise ConfigError(f"VERIFIER '{verifier}': names no function: give MODULE:FUNCTION or FILE.py:FUNCTION")
    place = str(choose_device(device))
    function = load_entry(verifier).call
    called = ADAPTERS[adapter](function, verifier, seed, place)
    kinds = [kind for kind in KINDS if kind in words]
    with status_line("drawing") as say:
        report = run_conformance(called, kinds, draws, seed, adapter, say)
    print_report(report, as_json, lambda: report_parts(report), output)
    if report.verdict != "pass":
        raise typer.Exit(1)
