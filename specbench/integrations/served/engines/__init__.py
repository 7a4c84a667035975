"""Serving engines: the requests that each accepts, and what its answers report."""
