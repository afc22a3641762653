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

from kvtier_agent.control import EvictionPolicy, NvmeAdmission, NvmeWrite, Restore

_UNITS: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15} | {
    f"{letter}i": 1024**power for power, letter in enumerate("KMGTP", 1)
}
_QUANTITY: Final = re.compile(r"(\d+(?:\.\d+)?)([kKMGTP]?i?)")
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)")
_SECONDS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}

Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]


class ConfigError(Exception):
    """The configuration file cannot be used; the message names the file, the place and the remedy."""


class Bytes(int):
    """A size in bytes, written as a Kubernetes quantity."""


class Seconds(float):
    """A duration, written in Go's manner: `90s`, `1h30m`."""


class ArenaConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The DRAM tier's place."""

    path: str
    """A folder on tmpfs or hugetlbfs that the store may write."""
    capacity: Bytes
    client_path: str | None = None
    """The same folder through a read-only mount; clients' descriptors are opened there. None: `path`."""
    slot_alignment: int = 4096
    """Bytes; the huge page size where the folder is a hugetlbfs."""


class DeviceConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One nvme device: a folder that belongs to the store, or a raw block device. Exactly one of the two is given."""

    name: Name
    path: str = ""
    """The folder."""
    device: str = ""
    """The block device by a name that stays, such as one below /dev/disk/by-id. In a cluster kvtier-node opens it and
    hands it over under `name`; alone the store does."""
    initialize: Literal["ifBlank", "always"] = "ifBlank"
    """A block device that holds neither a store's data nor zeros only is refused, or with `always` overwritten."""


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
    eviction_policy: EvictionPolicy = "default"
    ttl: Seconds = Seconds(0)
    """A block is kept so long after it was stored; 0: no limit."""
    nvme_write: NvmeWrite = "through"
    nvme_admission: NvmeAdmission = "all"
    restore: Restore = "auto"


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
    """Processes that copy, checksum and do device I/O."""
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


def parse_duration(text: str) -> float:
    """Seconds of a Go-style duration such as `90s`, `1h30m` or `500ms`.

    Raises ValueError when it is none.
    """
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration such as 90s or 1h30m")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


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
    for device in config.nvme.devices if config.nvme else ():
        if bool(device.path) == bool(device.device):
            raise ConfigError(
                f"{path}: device {device.name}: give either `path` (a folder) or `device` (a block device)"
            )
    return config


def _decode_size(kind: type, value: Any) -> Any:
    if kind is Bytes:
        return Bytes(parse_quantity(str(value)))
    if kind is Seconds:
        return Seconds(parse_duration(str(value)))
    raise NotImplementedError(kind)
