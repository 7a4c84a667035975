"""`specbench sample` and `specbench answers`: what a model is asked, and what it answered."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench.cli.arguments import (
    AsJson,
    amount,
    command_line,
    flag,
    names_in,
    path_option,
    print_result,
    split,
    takes_run_options,
    whole_number,
)
from specbench.core.console import counted, say, stderr, stdout
from specbench.core.environment import EMBEDDED
from specbench.core.errors import ConfigError
from specbench.specs.run_options import RunOptions

if TYPE_CHECKING:
    from specbench.report.shown import ShownPrompt
    from specbench.running.request import Request

# Options of a run that change no prompt of the target. Those about loading weights have no effect either.
NO_EFFECT = (
    "limit", "drafter", "drafter_revision", "repeats", "seed", "dtype", "device", "quantize", "device_map", "engine",
    "pass_width", "threads", "warm_up", "allow_code_execution",
)  # fmt: skip


@takes_run_options(without=NO_EFFECT)
def sample(
    tasks: Annotated[
        str,
        typer.Argument(
            metavar="TASK", help="Names or YAML files of tasks, separated by commas.", autocompletion=names_in("tasks")
        ),
    ],
    *,
    options: RunOptions,
    limit: Annotated[str, typer.Option(help="Examples of each subset: a number, a share such as 0.1, or all.")] = "1",
    lm_eval_include: Annotated[
        Path | None, path_option(help="Folder with your own lm-eval tasks, for TASK lm_eval:NAME.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print prompts exactly as a target reads them: few-shot examples, chat template and special tokens.

    With their token ids, the settings that end the answer, the reference and the scorer.

    Reads the tokenizer and the configuration of --target, not its weights.
    """
    from specbench.running.request import Request, check_request

    options = replace(options, limit=None if limit == "all" else amount("--limit", limit))
    request = Request(split(tasks), ["ar"], options, command_line(), lm_eval_include=lm_eval_include)
    check_request(request)
    samples = prompt_samples(request)
    print_result([asdict(each) for each in samples], as_json, list)
    if not as_json:
        print_parts(each.lines() for each in samples)


@dataclass(frozen=True)
class PromptSample:
    """The prompt of an example's first turn, what follows, and how the answer ends and is scored.

    `given`: the text that the tokenizer read: the rendered chat template, or the task's prompt. `later_turns`: the
    user's later texts. `truncated_tokens`: the number of tokens that were removed to fit the target's context.
    """

    task: str
    subset: str
    id: str
    prompt: "ShownPrompt"
    given: str
    chat: bool
    later_turns: tuple[str, ...]
    truncated_tokens: int
    num_shots: int
    generation: dict[str, Any]
    end_tokens: dict[str, int]
    reference: Any
    scorer: dict[str, Any] | None

    def lines(self) -> Iterator[str]:
        """Yields the sample as lines for a terminal."""
        yield f"{self.task}/{self.subset} example {self.id}"
        yield from self.prompt.lines()
        how = "rendered by the chat template" if self.chat else "the task's prompt, without a chat template"
        yield f"how: {how}; few-shot examples: {self.num_shots or 'none'}"
        if self.truncated_tokens:
            yield f"shortened in the middle: {counted(self.truncated_tokens, 'token')} removed"
        yield from (f"turn {number}, after the model's own answers:\n{text}"
                    for number, text in enumerate(self.later_turns, start=2))  # fmt: skip
        ends = ", ".join(f"{token!r} ({index})" for token, index in self.end_tokens.items()) or "none"
        stops = ", ".join(map(repr, self.generation["stop"])) or "none"
        yield f"ends at: {self.generation['max_new_tokens']} new tokens; end tokens: {ends}; stop strings: {stops}"
        yield f"reference: {self.reference}"
        options = {} if self.scorer is None else {k: v for k, v in self.scorer.items() if k != "type" and v}
        settings = f" ({', '.join(f'{name} {value}' for name, value in options.items())})" if options else ""
        yield f"scorer: {'none' if self.scorer is None else self.scorer['type']}{settings}"


def prompt_samples(request: "Request") -> list[PromptSample]:
    """Returns the prompts of the examples of a request, made by the code that makes those of a run. Reads the target's
    tokenizer and configuration, not its weights. A drafter with a shorter context could shorten prompts further."""
    from specbench.models.loading import load_model  # these import torch
    from specbench.report.shown import ShownPrompt
    from specbench.running.models import load_models
    from specbench.running.plan import load_requested, make_subset_runs
    from specbench.running.prompts import uses_chat
    from specbench.running.request import request_notes, run_spec

    spec = run_spec(request)
    samples = []
    for line in request_notes(request, spec):
        say(stderr, line)
    loaded = load_requested(spec, spec.target.startswith(EMBEDDED), stderr)
    models = load_models(spec, partial(load_model, weights=False))
    target = models.target
    tokens = {index: token for token, index in target.vocabulary.items()}
    for run in make_subset_runs(spec, models, loaded):
        task = run.task
        for example in run.data.examples:
            prompt, references = run.renderer.render(target, (example.prompt,)), example.references
            samples.append(PromptSample(
                task=task.name, subset=run.subset, id=str(example.id), given=prompt.text,
                prompt=ShownPrompt.of(target.tokenizer, prompt.ids), chat=uses_chat(target, spec.chat),
                later_turns=tuple(example.turns[1:]), truncated_tokens=example.truncated_tokens,
                num_shots=run.data.fewshot.num, generation=task.generation.model_dump(mode="json"),
                end_tokens={tokens.get(index, ""): index for index in sorted(target.eos_token_ids)},
                reference=references[0] if len(references) == 1 else list(references),  # of each turn
                scorer=None if task.scorer is None else task.scorer.model_dump(mode="json"),
            ))  # fmt: skip
    return samples


def answers(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    subset: Annotated[str | None, typer.Option(help="Subsets, separated by commas; by default all.")] = None,
    example: Annotated[str | None, typer.Option(help="Ids of examples, separated by commas; by default all.")] = None,
    method: Annotated[str | None, typer.Option(help="Methods, separated by commas; by default all, with ar.")] = None,
    only_wrong: Annotated[
        bool, flag("--only-wrong", help="Only records with an answer that is scored below 1, or not scored.")
    ] = False,
    limit: Annotated[str, typer.Option(help="Records to show: a number, or all.")] = "10",
    data: Annotated[str | None, typer.Option(help="Folder or file of the rows, if the run's data moved.")] = None,
    page: Annotated[Path | None, path_option(help="HTML file to write the records into, such as answers.html.")] = None,
    trust_remote_code: Annotated[bool, flag("--trust-remote-code", help="Run a tokenizer's Python code.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the answers of a run: prompt, reference, each method's answer, its scores, and why it got them.

    Prompts are rendered again from the task, its data and the tokenizer, and checked against the run's digests.
    """
    from specbench.results.runs import finished_run
    from specbench.running.request import check_all, check_data

    most = whole_number("--limit", limit)
    if most is None and limit != "all":
        raise ConfigError(f"--limit {limit:.40}: give a number of records, or all")
    check_all([partial(finished_run, run), partial(check_data, data)])
    from specbench.report.shown import Selection, shown_run
    from specbench.running.recorded_prompts import rendered_prompts  # imports torch

    subsets, examples, methods = (tuple(split(each or "")) for each in (subset, example, method))
    chosen = Selection(subsets, examples, methods, only_wrong, most)
    rendered = partial(rendered_prompts, data=data, trust_remote_code=trust_remote_code)
    shown = shown_run(finished_run(run), chosen, rendered)
    for line in shown.problems:
        stderr.print(f"warning: {line}", soft_wrap=True)
    if page is not None:
        from specbench.publish.site.answers import write_page

        write_page(page, str(run), shown)
        stdout.print(f"{page}: {counted(len(shown.records), 'record')} of {shown.num_matching:,}", soft_wrap=True)
        return
    print_result([asdict(each) for each in shown.records], as_json, list)
    if not as_json:
        print_parts(each.lines() for each in shown.records)
        more = "" if len(shown.records) == shown.num_matching else "; --limit all shows all"
        stdout.print(f"{len(shown.records):,} of {counted(shown.num_matching, 'record')}{more}", soft_wrap=True)


def print_parts(parts: Iterable[Iterable[str]]) -> None:
    """Prints each part's lines, with an empty line after it."""
    for lines in parts:
        for line in lines:
            stdout.print(line, soft_wrap=True)
        stdout.print()
