"""The nvme devices' directories: looked at, kvtier's folder made in each, and removed again.

A directory that a TierClass names is never created. Which ones hold a folder of ours is written down,
so that a device that left the class, or a reboot, leaves nothing behind.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
from kvtier_crds.models import CacheNodeSpec, HugePages
from kvtier_crds.names import DEVICE_FOLDER

from kvtier_agent.node.folders import folder, make_folder, remove_folder
from kvtier_agent.node.preflight import PAGE_BYTES, DeviceFacts, Facts, PathState

log = logging.getLogger(__name__)

_HUGE_PAGES = "/sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages"


class Devices:
    """Directories on the node, reached below `host_root`. Blocks; one caller at a time."""

    def __init__(self, *, host_root: Path, kubelet_dir: Path, register: Path, store_uid: int) -> None:
        """`register` is the file that lists the paths with a folder of ours."""
        self._host_root = host_root
        self._kubelet_dir = kubelet_dir
        self._register = register
        self._store_uid = store_uid

    def fetch_facts(self, spec: CacheNodeSpec) -> Facts:
        """The node, as far as this spec asks for it."""
        kubelet_filesystem = self._kubelet_dir.stat().st_dev
        return Facts(
            memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            huge_pages=_reserved_pages(spec.tiers.dram.huge_pages),
            devices=tuple(self._look_at(path, kubelet_filesystem) for path in _paths(spec)),
        )

    def make_folders(self, spec: CacheNodeSpec) -> None:
        """Every device has kvtier's folder, and the register knows. Raises OSError."""
        paths = _paths(spec)
        self._write_register(self._registered() | set(paths))
        for path in paths:
            with folder(path, root=self._host_root) as device:
                make_folder(device, DEVICE_FOLDER, uid=self._store_uid, mode=0o700)

    def unwanted(self, spec: CacheNodeSpec) -> set[str]:
        """Paths with a folder of ours that the spec does not name any more."""
        return self._registered() - set(_paths(spec))

    def remove_folders(self, paths: Iterable[str]) -> None:
        """Nothing of ours is left at these paths. May be repeated. Raises OSError."""
        for path in paths:
            try:
                with folder(path, root=self._host_root) as device:
                    remove_folder(device, DEVICE_FOLDER)
            except FileNotFoundError:
                pass  # the directory itself is gone, and what was in it
            self._write_register(self._registered() - {path})

    def remove_all(self, spec: CacheNodeSpec) -> None:
        """Nothing of ours is left on any device. May be repeated. Raises OSError."""
        self.remove_folders(sorted(self._registered() | set(_paths(spec))))

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
