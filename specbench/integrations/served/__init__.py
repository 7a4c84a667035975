"""Methods that servers run: the client, the engines, and the decoder that sends prompts to a server."""
