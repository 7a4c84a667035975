"""Hugging Face models with specbench's own key-value caches and timed forward passes, and n-gram models."""
