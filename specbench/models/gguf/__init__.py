"""Models of GGUF files: their files and headers, their tokenizer, and llama.cpp's passes."""
