"""Serving engines: what each takes in a request and tells in its answers."""
