"""`specbench lm-eval`."""

import typer

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}  # the rest is parsed by lm-eval


def lm_eval(context: typer.Context) -> None:
    """Run lm-eval with a method; its table also shows acceptance and tokens/s.

    --model_args pretrained=TARGET,drafter=DRAFTER,method=NAME,baseline=true --tasks NAMES; baseline=true adds the
    speed-up over AR. All other options are lm-eval's: `specbench lm-eval run --tasks x --limit 5 --output_path DIR`.
    """
    from specbench.integrations.lm_eval.evaluation import main

    main(context.args)
