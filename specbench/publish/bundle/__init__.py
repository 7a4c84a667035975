"""Bundles: runs in one archive that others can verify, sign and compare with their own."""
