"""One run: methods composed on a model pair, measured block by block into a folder of records."""
