"""What a method or a task is, in words and as JSON, read from its file and from the code behind it."""
