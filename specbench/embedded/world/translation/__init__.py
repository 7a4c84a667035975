"""Sentences of a small parallel grammar in eight languages, and the translation tasks of them."""
