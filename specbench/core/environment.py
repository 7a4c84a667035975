"""The environment of this process: the distribution and its extras, the built-in folders, and the CPU threads."""

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from specbench.core.errors import ConfigError

PACKAGE = Path(__file__).resolve().parents[1]
EMBEDDED = "embedded:"  # name prefix of the models in the package
OBJECT = "object:"  # name prefix of models and components that are Python objects of this process
DISTRIBUTION = "specbench-lm"  # on PyPI, "specbench" is another project
EXTRAS = {  # by import name
    "accelerate": "train", "peft": "train", "openai": "judge", "lm_eval": "lm-eval", "lingua": "language",
    "MeCab": "ja", "matplotlib": "plots", "ray": "ray", "wandb": "wandb", "mlflow": "mlflow",
    "tensorboard": "tensorboard", "bitsandbytes": "quant", "xllamacpp": "llama-cpp", "gguf": "gguf",
    "llama_cpp": "gguf",
}  # fmt: skip


def is_installed(package: str) -> bool:
    """Returns whether Python can import a package. A folder of its name without an `__init__.py` does not count."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


def require(package: str, user: str) -> None:
    """Raises ConfigError with the install command if an optional package, which `user` needs, is missing."""
    if not is_installed(package):
        raise ConfigError(f"{user}: {missing(package)}")


def missing(package: str) -> str:
    """Returns the end of an error message that says how to install an optional package."""
    return f"needs {package}: pip install '{DISTRIBUTION}[{EXTRAS[package]}]'"


@cache
def builtin_dir(kind: str) -> Path:
    """Returns the folder of built-in `tasks`, `methods` or `leaderboards`, from the checkout or else from the wheel."""
    checkout = PACKAGE.parent
    pyproject = checkout / "pyproject.toml"
    if pyproject.is_file() and f'name = "{DISTRIBUTION}"' in pyproject.read_text(encoding="utf-8"):
        return checkout / kind
    return PACKAGE / "builtin" / kind


_num_sharing = 1


def set_threads(num_threads: int | None, embedded: bool) -> None:
    """Sets torch's number of CPU threads. `embedded`: whether the target is an embedded model. The default is then 1,
    since more threads only add noise to such a small model. Raises ConfigError for a number below 1 or above the number
    of CPUs."""
    num_cpus = os.cpu_count() or 1
    if num_threads is not None and not 1 <= num_threads <= num_cpus:
        raise ConfigError(f"--threads {num_threads}: this machine has {num_cpus} CPUs: give 1 to {num_cpus}")
    if num_threads is not None or embedded:
        import torch

        torch.set_num_threads(num_threads or 1)


def share_machine(num_workers: int) -> None:
    """Sets the number of processes that measure on the CPUs of this machine at the same time, including this one."""
    global _num_sharing
    _num_sharing = num_workers


def num_sharing() -> int:
    """Returns the number of processes that measure on the CPUs of this machine at the same time."""
    return _num_sharing


def called(device: str, num_workers: int) -> str:
    """Returns a device name for rows that includes the number of workers that share the device. Workers slow each other
    down, so such rows are compared only with rows of as many workers."""
    return f"{device}, one of {num_workers} workers" if num_workers > 1 else device
