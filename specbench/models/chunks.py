"""The lengths of compiled passes that do not depend on a method."""

CHUNKS = (16, 64, 256)  # tokens of a prompt that one pass reads; the last pass is filled up
PACKED = (16, 64)  # tokens of several continuations that one pass reads
