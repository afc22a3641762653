"""The store's configuration file: YAML, the same in a cluster and on a plain Linux box.

Keys are camelCase, sizes are Kubernetes quantities. In a cluster the operator writes it; the pools
then come from the node's CacheNode, and clients through kvtier-node. Alone, `pools` lists them with a
socket each. Reference: docs/install.md.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

_UNITS: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15} | {
    f"{letter}i": 1024**power for power, letter in enumerate("KMGTP", 1)
}
_QUANTITY: Final = re.compile(r"(\d+(?:\.\d+)?)([kKMGTP]?i?)")

Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]


class ConfigError(Exception):
    """The configuration file cannot be used; the message names the file, the place and the remedy."""


class Bytes(int):
    """A size in bytes, written as a Kubernetes quantity."""


class ArenaConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The DRAM tier's place."""

    path: str
    """A folder on tmpfs or hugetlbfs that the store may write."""
    capacity: Bytes
    client_path: str | None = None
    """The same folder through a read-only mount; clients' descriptors are opened there. None: `path`."""
    slot_alignment: int = 4096
    """Bytes; the huge page size where the folder is a hugetlbfs. On smaller pages a store in a cluster does not start;
    alone it goes on with them."""


class DeviceConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One nvme device."""

    name: Name
    path: str
    """A folder that belongs to the store, which makes one file there, or a raw block device, which it takes whole.
    In a cluster kvtier-node opens a device below /dev and hands it over under `name`."""
    initialize: Literal["ifBlank", "always"] = "ifBlank"
    """Whether a device with other content may be overwritten. One of an unknown kvtier format never is."""


class NvmeConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The NVMe tier."""

    capacity: Bytes
    """Over all devices."""
    devices: tuple[DeviceConfig, ...]


class PoolConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A pool of a store that runs without a cluster."""

    name: str
    uid: str
    dram_quota: Bytes
    nvme_quota: Bytes | None = None
    socket: str
    """Path of the pool's listening socket. Whoever can connect to it has the pool."""
    eviction: Literal["default", "lru"] = "default"
    """What leaves dram first."""
    write: Literal["through", "back"] = "through"
    """When pages are written to nvme: as they are stored, or before they leave dram."""
    ttl_seconds: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Blocks are deleted this long after they were stored; 0: never."""
    admission: Literal["all", "reused"] = "all"
    """Which blocks are written to nvme: every one, or those of chains that were used again or grew."""
    restore: Literal["auto", "always"] = "auto"
    """Whether blocks are offered that are slower to restore than to compute."""


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Health, readiness and metrics."""

    host: str = "127.0.0.1"
    port: int = 9410


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The whole file."""

    arena: ArenaConfig
    nvme: NvmeConfig | None = None
    pools: tuple[PoolConfig, ...] = ()
    http: HttpConfig = HttpConfig()
    movers: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    """Processes that copy and checksum; each nvme device has one more of its own."""
    mean_page: Bytes = Bytes(0)
    """Pages count this much at least, on average, against quotas and capacity: so many does the index have memory for.
    0: no limit but the machine's memory."""
    node_socket: str | None = None
    """kvtier-node's socket, from which listeners come; None without a cluster."""
    tier_class: Name | None = None
    """The TierClass served; required with nodeSocket."""


def parse_quantity(text: str) -> int:
    """Bytes of a Kubernetes quantity such as `8Gi`, `500M` or `1.5Gi`.

    Raises ValueError when it is none.
    """
    match = _QUANTITY.fullmatch(text)
    if not match or match.group(2) not in _UNITS:
        raise ValueError(f"{text!r} is not a quantity such as 8Gi or 500M")
    return int(float(match.group(1)) * _UNITS[match.group(2)])


def load_config(path: Path) -> StoreConfig:
    """Read and check the file.

    Raises ConfigError with all that is known about the fault.
    """
    try:
        config = msgspec.yaml.decode(path.read_bytes(), type=StoreConfig, dec_hook=_decode_size)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if (config.node_socket is None) == (not config.pools):
        raise ConfigError(f"{path}: give either `pools` (no cluster) or `nodeSocket` with `tierClass` (a cluster)")
    if config.node_socket is not None and config.tier_class is None:
        raise ConfigError(f"{path}: `nodeSocket` needs `tierClass`")
    return config


def _decode_size(kind: type, value: Any) -> Any:
    if kind is Bytes:
        return Bytes(parse_quantity(str(value)))
    raise NotImplementedError(kind)
