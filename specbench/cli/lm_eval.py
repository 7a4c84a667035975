"""`specbench lm-eval`."""

import typer

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}  # the rest of the line is lm-eval's


def lm_eval(context: typer.Context) -> None:
    """Run lm-eval's tasks under a method: its command line, with acceptance and tokens/s in its table.

    --model_args pretrained=TARGET,drafter=DRAFTER,method=NAME,baseline=true --tasks NAMES; baseline=true adds the
    speed-up over AR. Every other option is lm-eval's: `specbench lm-eval run --tasks x --limit 5 --output_path DIR`.
    """
    from specbench.integrations.lm_eval.evaluation import main

    main(context.args)
