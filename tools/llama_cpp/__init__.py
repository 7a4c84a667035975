"""The embedded models on llama.cpp: servers to try, and the measured page about them."""
