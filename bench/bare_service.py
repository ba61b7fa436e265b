"""One endpoint of FastAPI that does nothing: what the service is held against.

    python -m bench.bare_service '{"http": "httptools", "loop": "uvloop"}'

The argument is what uvicorn is to be configured with, beside what is needed here. Prints its port.
With ``empty`` in it there is no framework at all: a socket that answers whatever comes, which tells
how much the load generator can ask for.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI

ANSWER = b"HTTP/1.1 202 Accepted\r\ncontent-length: 14\r\n\r\n" + b'{"receipt":""}'


def create_app() -> FastAPI:
    app = FastAPI()

    @app.post("/check-ins", status_code=202)
    async def check_in() -> dict[str, str]:
        return {"receipt": "00000000000000000000000000000000"}

    return app


class Empty(asyncio.Protocol):
    """Answers each piece that arrives: each is one whole request of the load generator."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(ANSWER)


async def _empty(listening: socket.socket) -> None:
    server = await asyncio.get_running_loop().create_server(Empty, sock=listening)
    await server.serve_forever()


def main() -> None:
    options: dict[str, Any] = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    # Named as TCP, or asyncio does not switch off Nagle's delay on what it accepts from it.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(2048)
    print(listening.getsockname()[1], flush=True)
    if options.pop("empty", False):
        from uvloop import new_event_loop

        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_empty(listening))
        return
    settings = {"log_level": "warning", "access_log": False, **options}
    config = uvicorn.Config(create_app(), **settings)
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
