"""A proxy between devices and a server that cuts every connection after so many bytes."""

from __future__ import annotations

import asyncio
import threading


class CuttingProxy(threading.Thread):
    """Listens at `port` of this machine, and passes on to another one."""

    def __init__(self, target: int, cut_after: int):
        super().__init__(daemon=True)
        self._target, self._cut_after = target, cut_after
        self._ready = threading.Event()
        self.cuts = 0
        self.passed = 0  # bytes, in both directions
        self.start()
        self._ready.wait()

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await server.serve_forever()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = self._cut_after
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)

        async def one_way(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
            nonlocal left
            while data := await source.read(16_384):
                to.write(data[: max(left, 0)])
                left -= len(data)
                self.passed += len(data)
                await to.drain()
                if left <= 0:
                    self.cuts += 1
                    break

        ways = {asyncio.create_task(one_way(reader, there_writer)), asyncio.create_task(one_way(there_reader, writer))}
        _, others = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()
        for one in (writer, there_writer):
            one.transport.abort()
