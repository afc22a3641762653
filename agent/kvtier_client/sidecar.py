"""kvtier-sidecar: the pod's own socket, which hands each client a connection to the agent.

It answers whether the node's agent is there or not, so that an engine never waits for one, and no block
bytes pass through it: once the descriptor is handed over, client and agent are alone. What it does for a
client is one hello, one connect, one frame. The protocol's page: docs/protocol.md, "Handover".
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .failures import Deadline, Failure
from .protocol.frames import FrameDecoder, FrameError, encode_frame
from .protocol.messages import Handover, Hello, RefusalCode, Refused, ToAgent
from .sockets import address_of, connect

POD_DIR_VARIABLE: Final = "KVTIER_POD_DIR"
DEFAULT_POD_DIR: Final = "/run/kvtier"
SIDECAR_SOCKET: Final = "kvtier.sock"
AGENT_SOCKET: Final = "agent.sock"
MAX_CLIENTS: Final = 32
"""Clients in the middle of a hello; more wait in the backlog."""
BACKLOG: Final = 128
HELLO_BYTES: Final = 4096
HELLO_DEADLINE_S: Final = 1.0
ANSWER_DEADLINE_S: Final = 1.0
PROBE_DEADLINE_S: Final = 1.0
ACCEPT_PAUSE_S: Final = 0.1
"""After accept failed, such as for lack of descriptors."""

log = logging.getLogger("kvtier.sidecar")


class AgentUnavailable(Exception):
    """The agent's socket takes no connection now; the message says why."""


class CannotListen(Exception):
    """The sidecar's socket cannot be made; the message says what to change."""


class Sidecar:
    """Serves one listening socket. Lives in one asyncio loop."""

    def __init__(self, listener: socket.socket, agent: Path) -> None:
        """`listener` is bound, listening and non-blocking; `agent` is the path of the agent's socket."""
        self._listener = listener
        self._agent = agent
        self._slots = asyncio.Semaphore(MAX_CLIENTS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._agent_was_there: bool | None = None

    async def serve(self) -> None:
        """Accept clients until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._slots.acquire()
            try:
                client, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                self._slots.release()
                log.warning("accepting a client failed: %s", error.strerror)
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            task = loop.create_task(self._serve_client(client))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve_client(self, client: socket.socket) -> None:
        try:
            with client:
                client.setblocking(False)
                answer = await self._answer_to_hello(client)
                if answer is not None:
                    await asyncio.wait_for(
                        asyncio.get_running_loop().sock_sendall(client, encode_frame(answer)), ANSWER_DEADLINE_S
                    )
        except (OSError, TimeoutError) as error:
            log.debug("a client left in the middle of its hello: %s", error)
        finally:
            self._slots.release()

    async def _answer_to_hello(self, client: socket.socket) -> Refused | None:
        """Hand the agent over, or say why not. None: nothing is left to say."""
        try:
            if not await asyncio.wait_for(_read_hello(client), HELLO_DEADLINE_S):
                return None
        except FrameError as error:
            return Refused(RefusalCode.MALFORMED, str(error))
        try:
            agent = connect_to_agent(self._agent)
        except AgentUnavailable as error:
            self._note_agent(False, str(error))
            return Refused(RefusalCode.UNAVAILABLE, str(error))
        with agent:
            # The client has sent a hello and got nothing yet, so its receive buffer takes this at once.
            socket.send_fds(client, [encode_frame(Handover())], [agent.fileno()])
        self._note_agent(True, "the agent takes connections")
        return None

    def _note_agent(self, there: bool, text: str) -> None:
        if there != self._agent_was_there:
            self._agent_was_there = there
            log.log(logging.INFO if there else logging.WARNING, "%s", text)


async def _read_hello(client: socket.socket) -> bool:
    """Read the client's hello; False when it leaves before it says a thing.

    Raises FrameError when something else comes, or more than a hello.
    """
    decoder: FrameDecoder[ToAgent] = FrameDecoder(ToAgent)
    received = 0
    while received < HELLO_BYTES:
        data = await asyncio.get_running_loop().sock_recv(client, HELLO_BYTES - received)
        if not data:
            return False
        received += len(data)
        for message in decoder.feed(data):
            if not isinstance(message, Hello):
                raise FrameError(f"expected a hello first, got {type(message).__name__}")
            return True
    raise FrameError(f"the hello exceeds {HELLO_BYTES} bytes")


def connect_to_agent(path: Path) -> socket.socket:
    """A connection that waits in the agent's backlog. Returns at once.

    Raises AgentUnavailable.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        with address_of(path) as address:
            sock.connect(address)
    except BlockingIOError as error:
        sock.close()
        raise AgentUnavailable("the agent's backlog is full; it does not accept connections at present") from error
    except OSError as error:
        sock.close()
        raise AgentUnavailable(f"no agent listens at {path}: {error.strerror}; is kvtier-node up?") from error
    # The flag belongs to the open socket, and so would be the client's surprise.
    sock.setblocking(True)
    return sock


def listen_at(path: Path) -> socket.socket:
    """A non-blocking listening socket that any user of the pod may connect to, in place of a stale one.

    Raises CannotListen.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o111)  # mode 0666 from the first moment: the engine runs under another user ID
    try:
        remove_stale_socket(path)
        with address_of(path) as address:
            listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise CannotListen(f"cannot listen at {path}: {error.strerror}; does the pod mount kvtier's volume?") from error
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


def remove_stale_socket(path: Path) -> None:
    """Remove what a killed predecessor left.

    Raises CannotListen when something else than a socket lies there, OSError when it cannot be removed.
    """
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise CannotListen(f"{path} is not a socket; remove it")
    path.unlink()


def probe(path: Path) -> int:
    """0 if the sidecar's socket takes a connection, agent or not; else 1, and the reason on stderr."""
    try:
        connect(path, Deadline(PROBE_DEADLINE_S)).close()
    except Failure as failure:
        print(f"kvtier-sidecar: {failure}", file=sys.stderr)
        return 1
    return 0


async def serve(pod_dir: Path) -> None:
    """Serve the pod until SIGTERM or SIGINT.

    Raises CannotListen.
    """
    path = pod_dir / SIDECAR_SOCKET
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with listen_at(path) as listener:
        serving = asyncio.ensure_future(Sidecar(listener, pod_dir / AGENT_SOCKET).serve())
        stopping = asyncio.ensure_future(stop.wait())
        log.info("listening at %s", path)
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        path.unlink(missing_ok=True)
        if serving.done():
            serving.result()


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script."""
    parser = argparse.ArgumentParser(
        prog="kvtier-sidecar",
        description=f"Offers {SIDECAR_SOCKET} in ${POD_DIR_VARIABLE} (default {DEFAULT_POD_DIR}) and hands "
        f"each client a connection to {AGENT_SOCKET} beside it.",
    )
    parser.add_argument("--probe", action="store_true", help="exit 0 if the socket takes a connection, agent or not")
    options = parser.parse_args(arguments)
    pod_dir = Path(os.environ.get(POD_DIR_VARIABLE) or DEFAULT_POD_DIR)
    if options.probe:
        return probe(pod_dir / SIDECAR_SOCKET)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        asyncio.run(serve(pod_dir))
    except CannotListen as error:
        log.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
