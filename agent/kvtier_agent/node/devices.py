"""The nvme devices: looked at, kvtier's folder made in each directory, and all of ours removed again.

A directory that a TierClass names is never created. Which places hold something of ours is written
down, so that a device that left the class, or a reboot, leaves nothing behind.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
from kvtier_crds.models import CacheNodeSpec, HugePages
from kvtier_crds.names import DEVICE_FOLDER

from kvtier_agent.node.folders import folder, make_folder, remove_folder
from kvtier_agent.node.kubelet import read_threshold
from kvtier_agent.node.preflight import PAGE_BYTES, DeviceFacts, Facts, PathState, raw_devices
from kvtier_agent.node.raw_devices import RawDevices, RawFacts, RawState

log = logging.getLogger(__name__)

_RAW = "/dev/"
"""What a raw device's name begins with, and no directory's: both are in the register."""
_HUGE_PAGES = "/sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages"


class Devices:
    """Directories and raw devices of the node, reached below `host_root`. Blocks; one caller at a time."""

    def __init__(
        self, *, host_root: Path, kubelet_dir: Path, register: Path, store_uid: int, raw_devices: RawDevices
    ) -> None:
        """`register` is the file that lists the paths with a folder of ours, and the raw devices."""
        self._host_root = host_root
        self._kubelet_dir = kubelet_dir
        self._register = register
        self._store_uid = store_uid
        self._raw_devices = raw_devices

    def fetch_facts(self, spec: CacheNodeSpec, held: Collection[str] = ()) -> Facts:
        """The node, as far as this spec asks for it. `held`: raw devices that our store has, by name."""
        kubelet_filesystem = self._kubelet_dir.stat().st_dev
        return Facts(
            memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            huge_pages=_reserved_pages(spec.tiers.dram.huge_pages),
            devices=tuple(self._look_at(path, kubelet_filesystem) for path in _paths(spec)),
            raw_devices=tuple(
                RawFacts(raw.device or "", RawState.USABLE)
                if raw.name in held  # it may hang, and nothing about it is ours to find out
                else self._raw_devices.look_at(raw.device or "")
                for raw in raw_devices(spec)
            ),
            eviction=read_threshold(host_root=self._host_root, kubelet_dir=self._kubelet_dir),
        )

    def make_folders(self, spec: CacheNodeSpec) -> None:
        """Every directory has kvtier's folder, and the register knows all devices. Raises OSError."""
        paths = _paths(spec)
        self._write_register(self._registered() | _places(spec))
        for path in paths:
            with folder(path, root=self._host_root) as device:
                make_folder(device, DEVICE_FOLDER, uid=self._store_uid, mode=0o700)

    def unwanted(self, spec: CacheNodeSpec) -> set[str]:
        """Places with something of ours that the spec does not name any more."""
        return self._registered() - _places(spec)

    def clear(self, places: Iterable[str]) -> None:
        """Nothing of ours is left at these places. May be repeated. Raises OSError."""
        for place in places:
            if place.startswith(_RAW):
                self._raw_devices.blank(place)
            else:
                self._remove_folder(place)
            self._write_register(self._registered() - {place})

    def remove_all(self, spec: CacheNodeSpec) -> None:
        """Nothing of ours is left on any device. May be repeated. Raises OSError."""
        self.clear(sorted(self._registered() | _places(spec)))

    def _remove_folder(self, path: str) -> None:
        try:
            with folder(path, root=self._host_root) as device:
                remove_folder(device, DEVICE_FOLDER)
        except FileNotFoundError:
            pass  # the directory itself is gone, and what was in it

    def _look_at(self, path: str, kubelet_filesystem: int) -> DeviceFacts:
        try:
            with folder(path, root=self._host_root) as device:
                space = os.fstatvfs(device)
                state, detail, used = self._look_inside(device)
                if space.f_flag & os.ST_RDONLY:
                    state = PathState.READ_ONLY
                filesystem = os.fstat(device).st_dev
                return DeviceFacts(
                    path=path,
                    state=state,
                    detail=detail,
                    filesystem=filesystem,
                    size_bytes=space.f_blocks * space.f_frsize,
                    free_bytes=space.f_bavail * space.f_frsize,
                    used_bytes=used,
                    holds_kubelet=filesystem == kubelet_filesystem,
                )
        except FileNotFoundError as error:
            return DeviceFacts(path, PathState.MISSING, str(error.filename))
        except NotADirectoryError as error:
            return DeviceFacts(path, PathState.NO_FOLDER, str(error.filename))

    def _look_inside(self, device: int) -> tuple[PathState, str, int]:
        """State, what is wrong, and bytes used by kvtier's folder."""
        try:
            found = os.stat(DEVICE_FOLDER, dir_fd=device, follow_symlinks=False)
        except FileNotFoundError:
            return PathState.FOLDER, "", 0
        if not stat.S_ISDIR(found.st_mode):
            return PathState.FOREIGN, "not a directory", 0
        if found.st_uid not in (0, self._store_uid):
            return PathState.FOREIGN, f"a directory of user {found.st_uid}", 0
        return PathState.FOLDER, "", _used_bytes(device)

    def _registered(self) -> set[str]:
        try:
            return msgspec.json.decode(self._register.read_bytes(), type=set[str])
        except FileNotFoundError:
            return set()
        except msgspec.DecodeError as error:  # the machine lost power as it was written
            log.error("%s is not readable (%s): folders of devices that left the class may stay", self._register, error)
            return set()

    def _write_register(self, paths: set[str]) -> None:
        if paths == self._registered():
            return
        self._register.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        new = self._register.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(sorted(paths)))
        new.rename(self._register)


def _places(spec: CacheNodeSpec) -> set[str]:
    """All devices, as the register names them."""
    return {*_paths(spec), *(raw.device for raw in raw_devices(spec) if raw.device)}


def _paths(spec: CacheNodeSpec) -> tuple[str, ...]:
    return tuple(device.path for device in spec.tiers.nvme.devices if device.path) if spec.tiers.nvme else ()


def _reserved_pages(huge_pages: HugePages) -> int:
    if huge_pages is HugePages.NONE:
        return 0
    try:
        return int(Path(_HUGE_PAGES.format(kib=PAGE_BYTES[huge_pages] >> 10)).read_text())
    except FileNotFoundError:
        return 0  # the processor or the kernel has no pages of this size


def _used_bytes(device: int) -> int:
    """The store may remove files meanwhile."""
    used = 0
    for _, _, names, inner in os.fwalk(DEVICE_FOLDER, dir_fd=device):
        for name in names:
            with suppress(FileNotFoundError):
                used += os.stat(name, dir_fd=inner, follow_symlinks=False).st_blocks * 512
    return used
