"""What boards and suites share: cells that are one `specbench run` each, with a folder of its own."""
