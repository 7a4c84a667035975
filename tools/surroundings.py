"""The environment variables that specbench and its libraries read, and the exit codes, for the reference pages."""

from specbench.core.completions import KEY_VARIABLE
from specbench.core.console import CLOSED_PIPE
from specbench.core.errors import INTERRUPTED, TERMINATED
from specbench.tasks.judge.requests import URL_VARIABLE

# tests/tools/test_reference.py holds the first part to the variables that the code reads.
OWN = {
    "WANDB_PROJECT": "Project of Weights & Biases that `--log wandb` sends a run to; specbench if absent.",
    KEY_VARIABLE: "Key of the judge's server (`--judge`) and of a training's server (`finetune.server.base_url`). Any "
    "text will do for a server that asks for none.",
    URL_VARIABLE: "Address of the judge's server where `--judge-base-url` is not given.",
    "XDG_CACHE_HOME": "Folder of caches, in which the judge's replies have a folder specbench/judge; `~/.cache` where "
    "it is not set.",
    "PYTHONPATH": "Passed on to the processes of a suite, after the folder of specbench itself.",
    "GIT_DIR": "Where it is set, or a folder above is a repository, lm-eval asks git for the commit.",
    "RAY_USAGE_STATS_ENABLED": "Set to 0 before ray is imported, unless you set it: ray then reports nothing.",
    "THP_MEM_ALLOC_ENABLE": "Set to 1 before the start, torch asks Linux for huge pages, which rows name.",
    "OPENBLAS_NUM_THREADS": "Set to 1 in the process that runs a model's program.",
}
OF_LIBRARIES = {
    "HF_HUB_OFFLINE": "Set to 1, nothing is downloaded: models and data come from the hub's cache.",
    "HF_HOME, HF_HUB_CACHE": "Folder of the hub's cache. Continuations of a target that a training keeps are in its "
    "folder `specbench`.",
    "HF_TOKEN": "Token for gated models and data sets on the hub.",
    "CUDA_VISIBLE_DEVICES": "GPUs that torch sees.",
    "COLUMNS": "Width of tables in a terminal; 100 columns where the output is a file or a pipe.",
}
VARIABLES = OWN | OF_LIBRARIES

EXIT_CODES = {
    0: "The command did what was asked. `check`: nothing regressed. `audit`: no method that calls itself lossless "
    "diverged.",
    1: "The command ended and found something: `check` a regression, `audit` a divergence, `fetch --check` a data "
    "set that is not as its task expects; a subset of `suite` or a run "
    "of `board run` failed.",
    2: "A mistake in the command line, a file or the surroundings, told in one line on stderr. `check`: the two sides "
    "cannot be compared. `validate` and `leaderboard validate`: a file is wrong.",
    INTERRUPTED: "Interrupted by the keyboard. The same command goes on where it was.",
    TERMINATED: "Ended by SIGTERM, in the same way.",
    CLOSED_PIPE: "The program that read the output closed the pipe.",
}
