"""The parts of kvtier-node put together, and run until a signal.

Publishing needs neither store nor API server. Ending it takes nothing off the node: sockets' paths,
records, the arena and the devices' folders stay for the next one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from pathlib import Path, PurePosixPath
from typing import Any, Final

from kvtier_crds import names

from kvtier_agent.cachenode import CacheNodeClient
from kvtier_agent.node.devices import Devices
from kvtier_agent.node.keeper import ArenaPlace, Keeper
from kvtier_agent.node.plugin import csi_socket, serving_plugin
from kvtier_agent.node.raw_devices import RawDevices
from kvtier_agent.node.store_link import StoreLink
from kvtier_agent.node.volumes import Volumes

log = logging.getLogger(__name__)

SWEEP_S: Final = 30.0
HEARTBEAT_S: Final = 5.0
RESTART_PAUSES_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)


def serve(node: str | None, kubelet_dir: Path, host_root: Path, heartbeat: Path) -> None:
    """Run until SIGTERM or SIGINT. Raises NotInCluster, OSError when the node cannot be served."""
    logging.basicConfig(
        level=os.environ.get("KVTIER_LOG_LEVEL", "info").upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    api = CacheNodeClient.in_cluster(node)
    with suppress(asyncio.CancelledError):
        asyncio.run(run(api, node or "", kubelet_dir, host_root, heartbeat))


async def run(api: CacheNodeClient, node: str, kubelet_dir: Path, host_root: Path, heartbeat: Path) -> None:
    """All of kvtier-node, until cancelled by a signal."""
    this = asyncio.current_task()
    assert this is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, this.cancel)
    run_dir = Path(names.HOST_ROOT)
    volumes = Volumes(records=run_dir / "volumes", kubelet_dir=kubelet_dir, sidecar_uid=names.SIDECAR_UID)
    raw_devices = RawDevices(host_root)
    link = StoreLink(node=node, allowed_uids={names.STORE_UID}, published=volumes.published, raw_devices=raw_devices)
    volumes.on_published, volumes.on_gone = link.announce, link.withdraw
    volumes.restore()
    register = csi_socket(kubelet_dir).parent / "devices.json"
    devices = Devices(
        host_root=host_root,
        kubelet_dir=kubelet_dir,
        register=register,
        store_uid=names.STORE_UID,
        raw_devices=raw_devices,
    )
    store_folder = PurePosixPath(names.ARENA_STORE_DIR).name
    arena = ArenaPlace(Path(names.ARENA_MOUNT), store_folder, names.STORE_UID)
    async with api, serving_plugin(kubelet_dir, node, volumes):
        keeper = Keeper(node=node, link=link, devices=devices, arena=arena, api=api, class_file=run_dir / "tier-class")
        log.info("kvtier-node serves node %s", node)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(link.serve(Path(names.NODE_SOCKET), group=names.STORE_UID))
            for work in (keeper.watch, keeper.keep, partial(_sweep, volumes)):
                tasks.create_task(persist(work))
            tasks.create_task(_beat(heartbeat))


async def persist(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `work` until cancelled, anew after a pause when it fails: publishing must not end with it."""
    for pause_s in chain(RESTART_PAUSES_S, repeat(RESTART_PAUSES_S[-1])):
        try:
            await work()
        except Exception:
            log.exception("%s failed; it goes on in %.0f s", work, pause_s)
        await asyncio.sleep(pause_s)


async def _sweep(volumes: Volumes) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        await asyncio.to_thread(volumes.sweep)


async def _beat(heartbeat: Path) -> None:
    """Show that the event loop turns, for `kvtier-node --probe`."""
    while True:
        heartbeat.touch()
        await asyncio.sleep(HEARTBEAT_S)
