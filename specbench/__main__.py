"""`python -m specbench` is the command line."""

from specbench.cli import main

main()
