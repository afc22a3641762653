"""Published volumes: one folder and one listening socket for each pod.

A publish needs nothing but this machine. Each volume has a record on disk, so that a restarted
kvtier-node binds the sockets again at their old places and ends volumes it did not publish itself.
What pods write into their folders is swept out. Links that a pod plants are never followed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec
from kvtier_crds import names

from kvtier_agent.link import PodIdentity
from kvtier_agent.node.folders import clear_folder, folder, make_folder, put_aside, remove_folder

log = logging.getLogger(__name__)

LISTEN_BACKLOG: Final = 128
"""Connections of one pod that wait while the store is away."""
SWEEP_STEPS: Final = 20_000
"""Foreign entries removed from one volume in one sweep, so that a pod cannot hold up the others."""
_OUR_SOCKETS: Final = frozenset({names.AGENT_SOCKET_NAME, names.CLIENT_SOCKET_NAME})


class VolumeRefused(Exception):
    """The request cannot be served as it is; the message says what to change."""


class VolumeRecord(msgspec.Struct, frozen=True):
    """What is kept of a volume on disk."""

    volume_id: str
    target_path: str
    pod: PodIdentity


@dataclass(frozen=True)
class Published:
    """A volume whose socket listens."""

    record: VolumeRecord
    listener: socket.socket
    inode: int
    """Of the socket's name, to see whether it still stands."""


class Volumes:
    """The volumes of this node. Not thread-safe, except for `sweep`."""

    def __init__(self, *, records: Path, kubelet_dir: Path, sidecar_uid: int) -> None:
        """`records` is the folder of volume records; made when missing."""
        self._records = records
        self._kubelet_dir = kubelet_dir
        self._sidecar_uid = sidecar_uid
        self._published: dict[str, Published] = {}
        self.on_published: Callable[[Published], None] = lambda _published: None
        self.on_gone: Callable[[str], None] = lambda _volume_id: None
        records.mkdir(mode=0o700, parents=True, exist_ok=True)

    def published(self) -> Iterable[Published]:
        """All volumes, in the order of their publishing."""
        return tuple(self._published.values())

    def restore(self) -> None:
        """Bind the sockets of all recorded volumes again; forget those whose folder is gone."""
        for path in sorted(self._records.glob("*.json")):
            try:
                record = msgspec.json.decode(path.read_bytes(), type=VolumeRecord)
                self._bind(record)
            except FileNotFoundError:
                path.unlink(missing_ok=True)
            except (OSError, msgspec.MsgspecError, VolumeRefused) as error:
                log.error("volume record %s cannot be used: %s; its pod must be started anew", path, error)

    def publish(self, record: VolumeRecord) -> None:
        """The volume's folder and listening socket exist. May be repeated.

        Raises VolumeRefused for a target outside the kubelet's pods, OSError when the node fails.
        """
        known = self._published.get(record.volume_id)
        if known is not None and known.record != record:
            raise VolumeRefused(f"volume {record.volume_id} is published with other attributes; unpublish it first")
        target = self._below_pods(record.target_path)
        with folder(target.parent, root=self._kubelet_dir) as parent:
            make_folder(parent, target.name, uid=self._sidecar_uid, mode=0o755)
        self._save(record)
        if known is None or not self._stands(known):
            self._bind(record)

    def withdraw(self, volume_id: str) -> None:
        """Close the volume's socket. `erase` follows."""
        known = self._published.pop(volume_id, None)
        if known is not None:
            self.on_gone(volume_id)
            known.listener.close()

    def erase(self, volume_id: str, target_path: str) -> None:
        """The volume's folder and its record are gone. May be repeated; may take long.

        Raises VolumeRefused for a target outside the kubelet's pods, OSError when something resists.
        """
        target = self._below_pods(target_path)
        try:
            with folder(target.parent, root=self._kubelet_dir) as parent:
                remove_folder(parent, target.name)
        except FileNotFoundError:
            pass
        self._record_path(volume_id).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove from every volume what is neither of its two sockets. Any thread."""
        for published in self.published():
            target = self._below_pods(published.record.target_path)
            try:
                with folder(target, root=self._kubelet_dir) as pod_folder:
                    removed = clear_folder(pod_folder, keep=partial(_is_ours, pod_folder), limit=SWEEP_STEPS)
            except FileNotFoundError:
                continue
            except OSError as error:
                log.warning("pod %s: its volume cannot be swept: %s", _pod(published.record), error)
                continue
            if removed:
                log.warning("pod %s: swept %d foreign entries from its volume", _pod(published.record), removed)

    def _bind(self, record: VolumeRecord) -> None:
        target = self._below_pods(record.target_path)
        with folder(target, root=self._kubelet_dir) as pod_folder:
            listener, inode = bind_listener(pod_folder, self._sidecar_uid)
        self.withdraw(record.volume_id)
        published = Published(record, listener, inode)
        self._published[record.volume_id] = published
        self.on_published(published)

    def _stands(self, published: Published) -> bool:
        with folder(self._below_pods(published.record.target_path), root=self._kubelet_dir) as pod_folder:
            try:
                seen = os.stat(names.AGENT_SOCKET_NAME, dir_fd=pod_folder, follow_symlinks=False)
            except FileNotFoundError:
                return False
            return stat.S_ISSOCK(seen.st_mode) and seen.st_ino == published.inode

    def _below_pods(self, target_path: str) -> PurePosixPath:
        """The target relative to the kubelet's folder."""
        target = PurePosixPath(target_path)
        pods = PurePosixPath(self._kubelet_dir, "pods")
        if ".." in target.parts or pods not in target.parents:
            raise VolumeRefused(
                f"target path {target_path!r} is not below {pods}; set kvtier-node's kubelet folder to the kubelet's"
            )
        return target.relative_to(self._kubelet_dir)

    def _save(self, record: VolumeRecord) -> None:
        path = self._record_path(record.volume_id)
        new = path.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_bytes(msgspec.json.encode(record))
        new.rename(path)

    def _record_path(self, volume_id: str) -> Path:
        return self._records / f"{hashlib.sha256(volume_id.encode()).hexdigest()}.json"


def bind_listener(pod_folder: int, uid: int) -> tuple[socket.socket, int]:
    """A socket that listens at agent.sock in this folder, and its inode; only user `uid` can connect.

    Bound through the folder's descriptor, since a kubelet's paths exceed a socket address.
    """
    name = names.AGENT_SOCKET_NAME
    put_aside(pod_folder, name)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        os.fchmod(listener.fileno(), 0o600)  # bind gives the name this mode, so no other user ever has it
        listener.bind(f"/proc/self/fd/{pod_folder}/{name}")
        os.chown(name, uid, uid, dir_fd=pod_folder, follow_symlinks=False)
        listener.listen(LISTEN_BACKLOG)
        return listener, os.stat(name, dir_fd=pod_folder, follow_symlinks=False).st_ino
    except BaseException:
        listener.close()
        raise


def _is_ours(pod_folder: int, name: str) -> bool:
    """Whether it is one of the two sockets. Asked as each name is seen, since a sidecar may bind just then."""
    try:
        return name in _OUR_SOCKETS and stat.S_ISSOCK(os.stat(name, dir_fd=pod_folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _pod(record: VolumeRecord) -> str:
    return f"{record.pod.namespace}/{record.pod.name}"
