"""An endpoint of FastAPI that does nothing, with which the service is compared.

    python -m bench.bare_service '{"http": "httptools", "loop": "uvloop"}'

The argument has further settings of uvicorn. The program prints its port. With ``"empty": true``
in the argument there is no framework: a socket sends a fixed response to any data, which measures
the limit of the load generator.
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
    """Respond to each received chunk, because the load generator sends a request per chunk."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(ANSWER)


async def _empty(listening: socket.socket) -> None:
    server = await asyncio.get_running_loop().create_server(Empty, sock=listening)
    await server.serve_forever()


def main() -> None:
    options: dict[str, Any] = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    # Without IPPROTO_TCP, asyncio does not disable Nagle's algorithm for accepted connections.
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
