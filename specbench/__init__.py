"""specbench: a benchmark harness for speculative decoding of language models."""


def __getattr__(name: str) -> str:
    """`__version__`, read when it is asked for: it takes longer than the start of a sandboxed program."""
    if name != "__version__":
        raise AttributeError(f"module 'specbench' has no attribute '{name}'")
    from importlib.metadata import version

    return version("specbench")
