"""Parses server-sent events: from bytes, as they are read, to the data of each event."""

import re

LINE_END = re.compile(rb"\r\n|\n|\r(?!$)")  # a final \r may be the first half of \r\n


class EventReader:
    """Collects bytes and returns the data of complete events. The event [DONE] sets `is_done`."""

    def __init__(self) -> None:
        self.is_done = False
        self._rest = b""
        self._data: list[str] = []

    def feed(self, content: bytes) -> list[str]:
        """Returns the data of the events that these bytes complete, without [DONE], comments and other fields."""
        *lines, self._rest = LINE_END.split(self._rest + content)
        found: list[str] = []
        for line in lines:
            field, _, value = line.decode("utf-8", "replace").partition(":")
            if field in ("data", "error"):  # llama.cpp sends `error: {…}`
                self._data.append(value.removeprefix(" "))
            elif not line and self._data:
                text = "\n".join(self._data)
                self._data = []
                if text.strip() == "[DONE]":
                    self.is_done = True
                else:
                    found.append(text)
        return found
