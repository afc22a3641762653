"""kvtier-node: root on every node, small. CSI plugin, pods' sockets, arena mount, device folders.

Publishing needs neither store nor API server. Ending it takes nothing off the node: sockets' paths,
records, the arena and the devices' folders stay for the next one.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

import grpc
from kvtier_crds import names

from kvtier_agent.cachenode import CacheNodeClient, NotInCluster
from kvtier_agent.node.csi import csi_pb2, csi_pb2_grpc
from kvtier_agent.node.devices import Devices
from kvtier_agent.node.keeper import ArenaPlace, Keeper
from kvtier_agent.node.plugin import csi_socket, serving_plugin
from kvtier_agent.node.store_link import StoreLink
from kvtier_agent.node.volumes import Volumes

log = logging.getLogger(__name__)

SWEEP_S: Final = 30.0
PROBE_DEADLINE_S: Final = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; with `--probe`, ask the running one whether it answers."""
    options = _parser().parse_args(argv)
    if options.probe:
        return probe(options.kubelet_dir)
    logging.basicConfig(
        level=os.environ.get("KVTIER_LOG_LEVEL", "info").upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    try:
        api = CacheNodeClient.in_cluster(options.node_name)
    except (NotInCluster, OSError) as error:
        print(f"kvtier-node: {error}", file=sys.stderr)
        return 2
    with suppress(asyncio.CancelledError):
        asyncio.run(run(api, options.node_name, options.kubelet_dir, options.host_root))
    return 0


def probe(kubelet_dir: Path) -> int:
    """0 when the plugin on this node answers, else 1 and why on stderr."""
    with grpc.insecure_channel(f"unix:{csi_socket(kubelet_dir)}") as channel:
        try:
            csi_pb2_grpc.IdentityStub(channel).Probe(csi_pb2.ProbeRequest(), timeout=PROBE_DEADLINE_S)  # type: ignore[no-untyped-call]
        except grpc.RpcError as error:
            print(f"kvtier-node does not answer: {error.details()}", file=sys.stderr)
            return 1
    return 0


async def run(api: CacheNodeClient, node: str, kubelet_dir: Path, host_root: Path) -> None:
    """All of kvtier-node, until cancelled by a signal."""
    this = asyncio.current_task()
    assert this is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, this.cancel)
    run_dir = Path(names.HOST_ROOT)
    volumes = Volumes(records=run_dir / "volumes", kubelet_dir=kubelet_dir, sidecar_uid=names.SIDECAR_UID)
    link = StoreLink(node=node, allowed_uids={names.STORE_UID}, published=volumes.published)
    volumes.on_published, volumes.on_gone = link.announce, link.withdraw
    volumes.restore()
    register = csi_socket(kubelet_dir).parent / "devices.json"
    devices = Devices(host_root=host_root, kubelet_dir=kubelet_dir, register=register, store_uid=names.STORE_UID)
    store_folder = PurePosixPath(names.ARENA_STORE_DIR).name
    arena = ArenaPlace(Path(names.ARENA_MOUNT), store_folder, names.STORE_UID)
    async with api, serving_plugin(kubelet_dir, node, volumes):
        keeper = Keeper(node=node, link=link, devices=devices, arena=arena, api=api, class_file=run_dir / "tier-class")
        log.info("kvtier-node serves node %s", node)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(link.serve(Path(names.NODE_SOCKET), group=names.STORE_UID))
            tasks.create_task(keeper.watch())
            tasks.create_task(keeper.keep())
            tasks.create_task(_sweep(volumes))


async def _sweep(volumes: Volumes) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        await asyncio.to_thread(volumes.sweep)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kvtier-node", description="The root part of kvtier's agent on a node.")
    parser.add_argument("--node-name", default=os.environ.get("NODE_NAME"), help="name of the Node object [NODE_NAME]")
    parser.add_argument(
        "--kubelet-dir",
        type=Path,
        default=Path(os.environ.get("KUBELET_DIR", "/var/lib/kubelet")),
        help="the kubelet's folder, at its own path [KUBELET_DIR, %(default)s]",
    )
    parser.add_argument(
        "--host-root",
        type=Path,
        default=Path(os.environ.get("HOST_ROOT", "/host")),
        help="where the node's / is mounted [HOST_ROOT, %(default)s]",
    )
    parser.add_argument("--probe", action="store_true", help="ask the running kvtier-node whether it answers")
    return parser


if __name__ == "__main__":
    sys.exit(main())
