"""Scripts beside the package: they write the measured pages and the reference of the documentation, and time the code.

Each is a module with `--help`, such as `python -m tools.coverage --help`. They run from a checkout.
"""
