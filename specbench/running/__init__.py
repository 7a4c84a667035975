"""One run: composes the methods for a model pair and measures them block by block into a folder of records."""
