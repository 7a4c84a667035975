"""The conformance kit: whether another project's verifier keeps the target's distribution, and which mistake it has."""
