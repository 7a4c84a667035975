"""The name of the distribution on package indexes, and the extra that installs each optional package."""

from importlib.util import find_spec

from specbench.core.errors import ConfigError

DISTRIBUTION = "specbench-lm"  # on PyPI, "specbench" is another project
EXTRAS = {  # by import name
    "accelerate": "train",
    "peft": "train",
    "openai": "judge",
    "lm_eval": "lm-eval",
    "lingua": "language",
    "MeCab": "ja",
    "matplotlib": "plots",
    "ray": "ray",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "tensorboard": "tensorboard",
    "bitsandbytes": "quant",
    "xllamacpp": "llama-cpp",
    "gguf": "llama-cpp",
}


def is_installed(package: str) -> bool:
    """Returns whether Python can import a package. A folder of its name without an `__init__.py` does not count."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


def require(package: str, user: str) -> None:
    """Raises ConfigError with the install command if an optional package is missing. `user`: the option, key or command
    that needs it."""
    if not is_installed(package):
        raise ConfigError(f"{user}: {missing(package)}")


def missing(package: str) -> str:
    """Returns the end of an error message that says how to install an optional package."""
    return f"needs {package}: pip install '{DISTRIBUTION}[{EXTRAS[package]}]'"
