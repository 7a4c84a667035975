"""Methods that servers run: the client, the engines, and the decoder that asks a server."""
