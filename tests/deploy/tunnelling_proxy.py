"""A proxy that gives tunnels to who asks for one, as those of companies and universities do."""

from __future__ import annotations

import asyncio
import threading


class TunnellingProxy(threading.Thread):
    """Listens at `port` of this machine; what it was asked for is in `asked`."""

    def __init__(self, answer: str = "200 OK"):
        super().__init__(daemon=True)
        self._answer, self._ready = answer, threading.Event()
        self.asked: list[list[str]] = []
        self.start()
        self._ready.wait()

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._tunnel, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await server.serve_forever()

    async def _tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        self.asked.append(request)
        writer.write(f"HTTP/1.1 {self._answer}\r\n\r\n".encode())
        if self._answer.startswith("200"):
            host, _, port = request[0].split()[1].rpartition(":")
            there_reader, there_writer = await asyncio.open_connection(host, int(port))

            async def one_way(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
                while data := await source.read(16_384):
                    to.write(data)
                    await to.drain()
                to.close()

            ways = one_way(reader, there_writer), one_way(there_reader, writer)
            await asyncio.gather(*ways, return_exceptions=True)
        writer.close()
