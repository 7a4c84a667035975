"""Records: the typed record of a generation, its file, and the folder of a run."""
