"""A server on a real socket, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import uvicorn
from tests.web.servers import served

from stepwell.web.uvicorn_server import PatientProtocol

__all__ = ["Running"]


class Running:
    """A server in a thread of its own, on a real socket."""

    def __init__(self, url: str = "memory://", *, worker: bool = True, **options: Any) -> None:
        self._options = {"url": url, "worker": worker, **options}
        self.ready, self.stop = threading.Event(), threading.Event()
        self.url, self.tokens = "", dict[str, str]()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    async def _run(self) -> None:
        async with served(**self._options) as api:
            server = uvicorn.Server(uvicorn.Config(api.app, port=0, log_config=None, lifespan="off", http=PatientProtocol))
            server.install_signal_handlers = lambda: None
            serving = asyncio.ensure_future(server.serve())
            while not server.started:  # noqa: ASYNC110 - uvicorn tells of it by nothing else
                await asyncio.sleep(0.01)
            self.tokens = api.tokens
            self.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
            self.ready.set()
            await asyncio.to_thread(self.stop.wait)
            server.should_exit = True
            await serving

    def __enter__(self) -> Running:
        self.thread.start()
        assert self.ready.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join(20)
