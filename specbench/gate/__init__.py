"""The regression check of two runs or two versions."""
