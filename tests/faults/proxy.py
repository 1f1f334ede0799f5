"""A TCP proxy between the service and its database that spoils the connection in the ways that networks do."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: closing sends RST


@dataclass
class Proxy:
    """Listens on loopback and passes on to a Unix socket, unless it is told otherwise.

    `latency_seconds` delays each piece, `silent` keeps connections open and passes nothing on (new ones, too), `deaf`
    refuses new ones. After the pieces of `hold` were sent in this order, what the far side says stays here.
    """

    far: Path
    port: int = 0
    latency_seconds: float = 0.0
    deaf: bool = False
    hold: tuple[bytes, ...] = ()
    held: asyncio.Event = field(default_factory=asyncio.Event)
    joined: int = 0
    _sent: dict[asyncio.StreamWriter, int] = field(default_factory=dict)  # how many pieces of `hold`
    _silent: set[asyncio.StreamWriter] = field(default_factory=set)
    _near: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: "set[asyncio.Task[None]]" = field(default_factory=set)
    _loud: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def connections(self) -> int:
        return len(self._near)

    def silence(self) -> None:
        """From now on pass nothing on, as if a cable were cut: nobody is told."""
        self._loud.clear()

    def silence_present(self) -> None:
        """Those that are joined now never hear anything again, as after a firewall forgot them; new ones are served."""
        self._silent |= self._near

    def speak(self) -> None:
        self._loud.set()

    def reset(self) -> None:
        """Break every connection by RST."""
        for writer in set(self._near):
            sock: socket.socket = writer.get_extra_info("socket")
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()

    def release(self) -> None:
        """Hold nothing back any more, and forget what was held: its connections are reset."""
        self.hold = ()
        self.held.clear()
        self._sent.clear()
        self.reset()

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.deaf:
            writer.transport.abort()
            return
        self.joined += 1
        self._near.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        far_writer = None
        try:
            await self._loud.wait()
            far_reader, far_writer = await asyncio.open_unix_connection(self.far)
            there = asyncio.create_task(self._copy(reader, far_writer, writer, near=True))
            back = asyncio.create_task(self._copy(far_reader, writer, writer, near=False))
            try:
                await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
            finally:
                there.cancel()
                back.cancel()
        except OSError:  # the database is not there: so it goes
            pass
        finally:
            for each in (writer, far_writer):
                if each is not None:
                    each.transport.abort()
            self._near.discard(writer)
            self._silent.discard(writer)
            self._sent.pop(writer, None)
            self._tasks.discard(task)

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, joint: asyncio.StreamWriter, *, near: bool
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                await self._loud.wait()
                if self.latency_seconds:
                    await asyncio.sleep(self.latency_seconds)
                if near and self._is_last_of_hold(joint, data):
                    self._silent.add(joint)  # before it is sent on: no answer can overtake
                    writer.write(data)
                    self.held.set()
                elif joint not in self._silent:
                    writer.write(data)
                await writer.drain()

    def _is_last_of_hold(self, joint: asyncio.StreamWriter, data: bytes) -> bool:
        sent = self._sent.get(joint, 0)
        while sent < len(self.hold) and self.hold[sent] in data:
            sent += 1
        self._sent[joint] = sent
        return sent == len(self.hold) > 0 and joint not in self._silent

    async def close(self) -> None:
        self.speak()
        self.latency_seconds = 0.0
        for writer in set(self._near):
            writer.transport.abort()
        await asyncio.gather(*self._tasks)


@asynccontextmanager
async def proxy(far: Path) -> AsyncIterator[Proxy]:
    """A proxy that is up, in front of the socket of a server."""
    made = Proxy(far)
    made.speak()
    server = await asyncio.start_server(made.join, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        await made.close()
        await server.wait_closed()
