"""Listeners and sessions: who may connect, and who has to leave."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from kvtier_client.protocol.messages import RefusalCode

from kvtier_agent.control import PoolGrant, SetPools
from kvtier_agent.link import PodIdentity

from .announcer import Announcer
from .closer import Closer
from .core import Pool
from .errors import Refusal
from .grants import account_of, resolve_pool
from .log import log
from .session import Session
from .store import Store

_ACCEPT_AT_ONCE: Final = 16
MAX_SESSIONS: Final = 256
"""Connections of one listener."""
MAX_SESSION_BYTES: Final = 64 << 20
"""Kept for all sessions of one listener together: what is not read, incomplete frames, requests under way."""


class Identity(NamedTuple):
    """Who stands behind a listener: a pod, or without a cluster whoever reaches the pool's socket."""

    pod: PodIdentity | None
    pool_uid: str = ""

    def key(self) -> str:
        """Whom holds belong to."""
        return f"{self.pod.namespace}/{self.pod.name}/{self.pod.uid}" if self.pod else f"socket/{self.pool_uid}"


class _Listening(NamedTuple):
    sock: socket.socket
    identity: Identity
    closer: Closer


class Server:
    """All listeners and their sessions. Event loop thread only."""

    def __init__(self) -> None:
        self.store: Store | None = None
        """Set once it has begun to recover; a pool is served as soon as it is recovered."""
        self.grants: tuple[PoolGrant, ...] | None = None
        """None: not told yet."""
        self.draining = False
        self._listeners: dict[str, _Listening] = {}
        self._sessions: dict[str, set[Session]] = {}

    def listen(self, volume_id: str, sock: socket.socket, identity: Identity) -> None:
        """Accept on `sock`, which is taken over. It replaces the volume's earlier listener; sessions stay."""
        earlier = self._listeners.get(volume_id)
        if earlier is not None:
            self._stop(earlier)
        sock.setblocking(False)
        closer = Closer() if earlier is None else earlier.closer
        self._listeners[volume_id] = _Listening(sock, identity, closer)
        self._sessions.setdefault(volume_id, set())
        asyncio.get_running_loop().add_reader(sock, self._accept, volume_id)
        log("listener.added", volume=volume_id, pod=identity.key())

    def remove(self, volume_id: str) -> None:
        """The volume ended: close its listener and its sessions."""
        listening = self._listeners.pop(volume_id, None)
        if listening is not None:
            self._stop(listening)
        for session in list(self._sessions.get(volume_id, ())):
            session.end(Refusal(RefusalCode.UNAVAILABLE, "the volume ended"))
        self._sessions.pop(volume_id, None)
        log("listener.removed", volume=volume_id)

    def set_grants(self, message: SetPools) -> None:
        """Take the grants over, and end at once every session that has none any more.

        A pod keeps what it has mapped, so what a pool stores from now on goes where no such pod can see it.
        """
        self.grants, self.draining = message.pools, message.drain
        if self.store is not None:
            self.store.retire_lost(message.pools)
        for session in list(self._all_sessions()):
            if session.pool is None:
                continue
            try:
                if self._resolve(session).uid != session.pool.uid:
                    raise Refusal(RefusalCode.NOT_GRANTED, "the pool was replaced by another of its name; reconnect")
            except Refusal as refusal:
                session.end(refusal)

    def admit(self, session: Session) -> tuple[Store, Pool]:
        """The pool that the session may use now. Raises Refusal."""
        if self.store is None:
            raise Refusal(RefusalCode.NOT_READY, "the store is recovering; try again in a moment")
        grant = self._resolve(session)
        pool = self.store.pool(grant.uid)
        if pool is None:
            raise Refusal(RefusalCode.NOT_READY, "the pool is being set up; try again in a moment")
        pod = self._listeners[session.volume_id].identity.pod
        if pod is not None:
            try:
                self.store.accounts.note(pool.uid, account_of(pod))
            except OSError as error:
                raise Refusal(RefusalCode.UNAVAILABLE, f"the arena takes no notes: {error.strerror}") from error
        return self.store, pool

    def leave(self, session: Session) -> None:
        """The session is closed; with the pod's last one its holds go."""
        pool = session.pool
        if pool is not None and (session.pod, pool) not in ((it.pod, it.pool) for it in self._open_sessions()):
            pool.holds.release_pod(session.pod)
            pool.progress.fire()

    def forget(self, session: Session) -> None:
        """Until then it counts: its requests go on to their deadline, unless it is ended."""
        self._sessions.get(session.volume_id, set()).discard(session)

    def shed(self) -> None:
        """End the largest sessions of listeners whose sessions together keep too much memory."""
        for sessions in self._sessions.values():
            total = sum(session.memory for session in sessions)
            for session in sorted(sessions, key=lambda it: it.memory, reverse=True):
                if total <= MAX_SESSION_BYTES:
                    break
                total -= session.memory
                session.end(Refusal(RefusalCode.LIMIT, "this pod's connections keep too much memory; read replies"))

    def chunk_added(self, pool_uid: str, chunk: int) -> None:
        """Tell the pool's clients of a new chunk."""
        for announcer in self._announcers(pool_uid):
            announcer.added(chunk)

    def chunk_gone(self, pool_uid: str, chunk: int) -> None:
        """Tell the pool's clients that a chunk may be unmapped."""
        for announcer in self._announcers(pool_uid):
            announcer.gone(chunk)

    def _announcers(self, pool_uid: str) -> list[Announcer]:
        """Of the pool's sessions now: to tell one may end it."""
        return [
            session.announcer
            for session in self._all_sessions()
            if session.announcer is not None and session.pool is not None and session.pool.uid == pool_uid
        ]

    def connections(self) -> Counter[str]:
        """Sessions by pool UID."""
        return Counter(session.pool.uid for session in self._open_sessions() if session.pool is not None)

    def close(self) -> None:
        """Stop accepting, and end every session."""
        for listening in self._listeners.values():
            self._stop(listening)
        self._listeners.clear()
        for session in list(self._all_sessions()):
            session.end(Refusal(RefusalCode.UNAVAILABLE, "the store is stopping"))

    def _resolve(self, session: Session) -> PoolGrant:
        if self.grants is None:
            raise Refusal(RefusalCode.NOT_READY, "the store does not know its pools yet; try again in a moment")
        if self.draining:
            raise Refusal(RefusalCode.UNAVAILABLE, "the node is being drained of its cache")
        listening = self._listeners.get(session.volume_id)
        if listening is None:
            raise Refusal(RefusalCode.UNAVAILABLE, "the volume ended")
        if listening.identity.pod is not None:
            return resolve_pool(listening.identity.pod, self.grants)
        return next(grant for grant in self.grants if grant.uid == listening.identity.pool_uid)

    def _accept(self, volume_id: str) -> None:
        listening = self._listeners[volume_id]
        for _ in range(_ACCEPT_AT_ONCE):
            if listening.closer.is_full:
                log("accept.paused", volume=volume_id, reason="too much that its clients sent waits to be closed")
                self._pause(volume_id)
                return
            try:
                sock, _ = listening.sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                log("accept.failed", volume=volume_id, error=error)
                self._pause(volume_id)
                return
            sessions = self._sessions[volume_id]
            if len(sessions) >= MAX_SESSIONS or sum(it.memory for it in sessions) > MAX_SESSION_BYTES:
                log("session.too_many", volume=volume_id, limit=MAX_SESSIONS, limit_bytes=MAX_SESSION_BYTES)
                listening.closer.hang_up(sock)
                continue
            sessions.add(Session(sock, self, volume_id, listening.identity.key(), listening.closer))

    def _pause(self, volume_id: str) -> None:
        """Out of descriptors, most likely, or too many wait: accepting again at once would only spin."""
        loop = asyncio.get_running_loop()
        listening = self._listeners[volume_id]
        loop.remove_reader(listening.sock)
        loop.call_later(1.0, self._unpause, volume_id, listening)

    def _unpause(self, volume_id: str, listening: _Listening) -> None:
        if self._listeners.get(volume_id) is listening:
            asyncio.get_running_loop().add_reader(listening.sock, self._accept, volume_id)

    def _stop(self, listening: _Listening) -> None:
        asyncio.get_running_loop().remove_reader(listening.sock)
        listening.closer.close(listening.sock.detach())  # and with it the connections that wait there

    def _open_sessions(self) -> Iterator[Session]:
        return (session for session in self._all_sessions() if session.is_open)

    def _all_sessions(self) -> Iterator[Session]:
        return (session for sessions in self._sessions.values() for session in sessions)
