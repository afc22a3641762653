"""The nvme devices' states: in the store's words, in the resource's, and as the condition Degraded. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kvtier_crds.conditions import ConditionType, Reason, remedy
from kvtier_crds.models import DeviceState
from kvtier_crds.words import Verdict, about

from kvtier_agent.control import READABLE, DeviceSnapshot
from kvtier_agent.control import DeviceState as StoreWord
from kvtier_agent.quantities import exact

MESSAGE_LIMIT: Final = 1024
"""Characters of one device's message; the resource takes no more."""
DEGRADED_LIMIT: Final = 4096

STATES: Final[dict[StoreWord, DeviceState]] = {
    "opening": DeviceState.OPENING,
    "ready": DeviceState.READY,
    "slow": DeviceState.SLOW,
    "full": DeviceState.FULL,
    "read_only": DeviceState.READ_ONLY,
    "gone": DeviceState.GONE,
    "failed": DeviceState.FAILED,
    "refused": DeviceState.REFUSED,
}
_DEGRADED: Final[dict[StoreWord, tuple[Reason, str]]] = {
    "gone": (Reason.DEVICE_GONE, "is not there"),
    "failed": (Reason.DEVICE_FAILED, "answers with errors"),
    "refused": (Reason.DEVICE_REFUSED, "is refused"),
    "read_only": (Reason.DEVICE_READ_ONLY, "is read-only"),
    "full": (Reason.DEVICE_FULL, "is full"),
    "slow": (Reason.DEVICE_SLOW, "answers late"),
}
"""The worst first; all others are as they should be."""


def device_status(device: DeviceSnapshot) -> dict[str, Any]:
    """The device's entry in CacheNode.status."""
    status: dict[str, Any] = {"name": device.name, "state": STATES[device.state].value, "directIo": device.direct_io}
    if device.message:
        status["message"] = device.message[:MESSAGE_LIMIT]
    if device.capacity_bytes:
        status |= {"capacity": exact(device.capacity_bytes), "used": about(device.used_bytes)}
    return status


def decide_degraded(devices: Sequence[DeviceSnapshot]) -> Verdict:
    """Whether a device is out of use, or used less than it should be. The worst gives the reason, all are named."""
    faults = [device for state in _DEGRADED for device in devices if device.state == state]
    if faults:
        reason, _ = _DEGRADED[faults[0].state]
        said = "; ".join(map(_said, faults))
        return _degraded(reason, said)
    indirect = [device.name for device in devices if device.state in READABLE and not device.direct_io]
    if indirect:
        return _degraded(
            Reason.NO_DIRECT_IO, f"no direct I/O on {', '.join(indirect)}: reads pass through the page cache"
        )
    return Verdict(ConditionType.DEGRADED, "False", Reason.AS_EXPECTED, "all devices are in use")


def _said(device: DeviceSnapshot) -> str:
    words = f"{device.name} {_DEGRADED[device.state][1]}"
    return f"{words}: {device.message[:MESSAGE_LIMIT]}" if device.message else words


def _degraded(reason: Reason, said: str) -> Verdict:
    todo = remedy("CacheNode", ConditionType.DEGRADED, reason)
    tail = f"; {todo[0].lower()}{todo[1:].removesuffix('.')}"
    return Verdict(ConditionType.DEGRADED, "True", reason, said[: DEGRADED_LIMIT - len(tail)] + tail)
