"""`specbench languages`."""

from typing import Annotated

import typer

from specbench.commands import arguments
from specbench.commands.arguments import flag, split
from specbench.console import stderr, stdout
from specbench.errors import ConfigError


def languages(
    drafter: Annotated[str, typer.Option(help="Model: hub id, folder, or embedded:NAME.")] = "embedded:drafter-bpe",
    drafter_revision: arguments.DrafterRevision = None,
    samples: Annotated[int, typer.Option(help="Texts to sample; arXiv:2510.02128 takes 100000.")] = 1000,
    prompt: arguments.SamplePrompt = "",
    max_new_tokens: Annotated[int, typer.Option(help="Tokens of a text, at most.")] = 64,
    temperature: Annotated[float, typer.Option(help="Temperature of the sampling, above 0.")] = 1.0,
    also: Annotated[
        str | None, typer.Option(help="Codes of languages beside the common ones, separated by commas.")
    ] = None,
    seed: arguments.Seed = 0,
    dtype: arguments.Dtype = "auto",
    device: arguments.Device = "auto",
    as_json: Annotated[bool, flag("--json", help="Print the ranking as JSON instead of a table.")] = False,
) -> None:
    """Rank the languages of texts that a model writes on an empty prompt: which it knows best (arXiv:2510.02128).

    Languages are identified by lingua; the paper has NLTK's classifier, whose shares may differ.
    """
    from specbench.scoring.language import known

    for option, value in (("--samples", samples), ("--max-new-tokens", max_new_tokens), ("--temperature", temperature)):
        if not 0 < value < float("inf"):
            raise ConfigError(f"{option} {value:g}: must be above 0")
    for code in split(also or ""):
        if known(code) is None:
            raise ConfigError(f"--also {code}: no language that lingua can identify: give ISO 639 codes like la,eo")
    from specbench.models.loading import load_model
    from specbench.representation import representation
    from specbench.results.representation_table import representation_table

    with stderr.status(f"sampling {samples} texts from {drafter}"):
        model = load_model(drafter, revision=drafter_revision, dtype=dtype, device=device)
        found = representation(
            model, samples, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed,
            prompt=prompt, languages=split(also or ""),
        )  # fmt: skip
    if as_json:
        stdout.out(found.model_dump_json(indent=2))
    else:
        stdout.print(representation_table(found))
