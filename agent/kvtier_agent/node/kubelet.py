"""How much space the node's kubelet wants left on its own file system, from its configuration.

The kubelet is found among the node's processes; its files are read as it sees them. What cannot be
read is taken to be the kubelet's default.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

import msgspec

from kvtier_agent.config import parse_quantity

log = logging.getLogger(__name__)

_SIGNAL: Final = "nodefs.available"


class KubeletConfig(msgspec.Struct, frozen=True, rename="camel"):
    """Of a KubeletConfiguration, what is looked at here."""

    eviction_hard: dict[str, str] | None = None
    merge_default_eviction_settings: bool | None = None


@dataclass(frozen=True)
class Threshold:
    """The kubelet evicts pods when less than this is free: a part of the file system, or bytes."""

    fraction: float = 0.0
    size_bytes: int = 0

    def reserve(self, filesystem_bytes: int) -> int:
        """Bytes to be left free on a file system of that size."""
        return max(self.size_bytes, int(filesystem_bytes * self.fraction))


DEFAULT: Final = Threshold(fraction=0.10)


def read_threshold(*, host_root: Path, kubelet_dir: Path) -> Threshold:
    """The threshold of this node's kubelet. Blocks; never raises."""
    try:
        arguments, root = _find_kubelet(host_root / "proc")
        return decide_threshold(list(_configs(arguments, root, kubelet_dir)), option(arguments, "eviction-hard"))
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        log.warning("the kubelet's configuration cannot be read, so its default is taken: %s", error)
        return DEFAULT


def decide_threshold(configs: Sequence[KubeletConfig], flag: str | None) -> Threshold:
    """What the configuration files, later ones first in rank, and the flag `--eviction-hard` come to. Pure.

    Raises ValueError for what is no threshold.
    """
    hard: dict[str, str] = {}
    merge = False
    for config in configs:
        hard |= config.eviction_hard or {}
        if config.merge_default_eviction_settings is not None:
            merge = config.merge_default_eviction_settings
    if flag is not None:
        hard = dict(entry.split("<", 1) for entry in flag.split(",") if "<" in entry)
    if _SIGNAL in hard:
        return _parse(hard[_SIGNAL])
    return DEFAULT if not hard or merge else Threshold()


def option(arguments: Sequence[str], name: str) -> str | None:
    """The value of the last `--name=value` or `--name value`; None: not given. Pure."""
    value = None
    for at, argument in enumerate(arguments):
        if argument.startswith(f"--{name}="):
            value = argument.partition("=")[2]
        elif argument == f"--{name}" and at + 1 < len(arguments):
            value = arguments[at + 1]
    return value


def _parse(text: str) -> Threshold:
    text = text.strip()
    if text.endswith("%"):
        return Threshold(fraction=float(text[:-1]) / 100)
    return Threshold(size_bytes=parse_quantity(text))


def _find_kubelet(proc: Path) -> tuple[list[str], Path]:
    """The kubelet's command line, and the root of its files; none and / when it is not seen."""
    for process in proc.glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended meanwhile
            continue
        if PurePath(arguments[0]).name == "kubelet":
            return arguments, process / "root"
    return [], proc.parent


def _configs(arguments: Sequence[str], root: Path, kubelet_dir: Path) -> Iterator[KubeletConfig]:
    """The kubelet's configuration files in rising rank; where it names none, the usual one if it is there."""
    named, folder = option(arguments, "config"), option(arguments, "config-dir")
    usual = kubelet_dir / "config.yaml"
    if named is not None:
        yield _load(root / named.lstrip("/"))
    elif not arguments and usual.exists():
        yield _load(usual)
    if folder is not None:
        yield from (_load(path) for path in sorted((root / folder.lstrip("/")).glob("*.conf")))


def _load(path: Path) -> KubeletConfig:
    return msgspec.yaml.decode(path.read_bytes(), type=KubeletConfig | None) or KubeletConfig()
