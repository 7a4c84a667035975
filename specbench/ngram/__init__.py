"""n-gram language models over token ids: counted from a corpus, kept in a folder, mapped into memory when used."""
