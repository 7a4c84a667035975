"""The HTTP client below OpenAI's: a reply has a bound, nothing is decompressed, and redirects are not followed."""

import ssl
from functools import cache
from typing import Any

import httpx2

KEPT_HEADERS = (b"location", b"retry-after")  # others, such as a charset, would say how the body is to be decoded


class Unbounded(Exception):
    """A reply was refused before its end was read. `status`: its HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class BoundedClient(httpx2.AsyncClient):
    """Reads at most `max_bytes` of a body. Returns a redirect unfollowed, so that no prompt goes to another server."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(timeout=None, verify=_tls(), follow_redirects=False)
        self._max_bytes = max_bytes

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Returns the response with its whole body. Raises Unbounded, and what httpx2 raises."""
        request.headers["Accept-Encoding"] = "identity"
        options |= {"stream": True, "follow_redirects": False}
        response = await super().send(request, **options)
        try:
            body = await self._read(response)
        finally:
            await response.aclose()
        headers = [(name, value) for name, value in response.headers.raw if name.lower() in KEPT_HEADERS]
        return httpx2.Response(response.status_code, headers=headers, content=body, request=request)

    async def _read(self, response: httpx2.Response) -> bytes:
        status, body = response.status_code, bytearray()
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise Unbounded("what came is compressed, which was not asked for", status)
        async for part in response.aiter_raw():
            body += part
            if len(body) > self._max_bytes:
                raise Unbounded(f"more than {self._max_bytes:,} bytes came", status)
        return bytes(body)


@cache
def _tls() -> ssl.SSLContext:
    """Whose certificates are trusted. It takes longer to make than a request."""
    return httpx2.create_ssl_context()
