"""Carries loopback connections of this machine into a network namespace.

`forward.py PORTFILE HOLDER ADDRESS PORT` listens on a free port of 127.0.0.1, writes it to PORTFILE, enters the network
namespace of the process HOLDER and connects from there. A socket stays in the namespace in which it was made.
Standard library alone; runs until killed.
"""

import asyncio
import contextlib
import ctypes
import os
import socket
import sys
from pathlib import Path

CLONE_NEWNET = 0x40000000
CONNECT_S = 10.0
CHUNK_BYTES = 64 * 1024


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the reader ends, then tell the other side so."""
    with contextlib.suppress(OSError):
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()


def enter_network(holder: str) -> None:
    """Make sockets from now on in the network namespace of the process `holder`."""
    with Path(f"/proc/{holder}/ns/net").open() as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")


async def main(port_file: str, holder: str, address: str, port: str) -> None:
    """Listen here, connect there."""

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.wait_for(asyncio.open_connection(address, int(port)), CONNECT_S)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(carry(reader, there[1]), carry(there[0], writer))
        for side in (writer, there[1]):
            side.close()

    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    enter_network(holder)
    server = await asyncio.start_server(connection, sock=listening)
    partial = Path(f"{port_file}.partial")
    partial.write_text(str(listening.getsockname()[1]))
    partial.rename(port_file)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
