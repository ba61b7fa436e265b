"""A transport that sends the head of an answer together with its body.

uvicorn writes them one after the other, and each write is a call to the system and a packet to the
client. A head that tells no length is that of a stream, whose first bytes may be long in coming: it
is sent at once.

Once the connection is closing there is nobody to write to, and it is no failure of ours: what is
written is dropped, as asyncio's own transports do. uvloop's raise once theirs is closed.
"""

from __future__ import annotations

import asyncio
from typing import Any

_HEAD, _LENGTH = b"HTTP/1.", b"\r\ncontent-length: "


class JoiningTransport:
    """What uvicorn writes to; all but writing is the wrapped transport's."""

    __slots__ = ("_held", "_transport", "is_closing")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._held = b""
        self.is_closing = transport.is_closing  # asked several times for each request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send this and what was held before it, or hold it: the head of an answer with a length.

        The protocol calls ``flush`` when an answer is complete, so nothing is held for longer.
        """
        if self.is_closing():
            self._held = b""
        elif self._held:
            held, self._held = self._held, b""
            self._transport.writelines((held, data))
        elif data.startswith(_HEAD) and _LENGTH in data:
            self._held = data
        else:
            self._transport.write(data)

    def flush(self) -> None:
        """Send what is held: the answer has no body."""
        held, self._held = self._held, b""
        if held and not self.is_closing():
            self._transport.write(held)

    def close(self) -> None:
        """Send what is held, and close."""
        self.flush()
        self._transport.close()
