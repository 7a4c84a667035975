"""The commands of the command line, one to a file: each parses, calls one function, and prints."""
