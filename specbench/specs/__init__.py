"""Frozen models of the contents of YAML files and of the command line."""
