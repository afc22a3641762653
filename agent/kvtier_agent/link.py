"""The node socket: what kvtier-node and the store on its node say to each other.

Frames are those of the wire protocol. kvtier-node listens; the store connects and names its class.
kvtier-node then sends one Listener for every published volume, now and later, and ListenerGone when a
volume ends; and for every raw block device of the class a Device with its descriptor, or a DeviceAbsent
that says why there is none yet, followed by the Device as soon as it can be opened. A store whose class
does not have this node is refused and may ask again later. The connection is the store's lease: when it
closes, kvtier-node serves the next store.
"""

from __future__ import annotations

from typing import Final

import msgspec

LINK_VERSION: Final = 1
DEVICE_MAGIC: Final = b"KVTDEVIC"
"""What a raw device begins with that a store has taken: kvtier-node hands it over, and blanks it at release."""


class StoreHello(msgspec.Struct, frozen=True, tag="store_hello"):
    """First frame of a store."""

    tier_class: str
    version: int = LINK_VERSION
    devices: tuple[str, ...] = ()
    """Raw devices that it still has from an earlier link; they are not handed over again."""


class NodeWelcome(msgspec.Struct, frozen=True, tag="node_welcome"):
    """The store is the one that serves this node."""

    node: str
    version: int = LINK_VERSION


class NodeRefusal(msgspec.Struct, frozen=True, tag="node_refusal"):
    """The store does not serve this node now. It closes, backs off and asks again."""

    message: str


class PodIdentity(msgspec.Struct, frozen=True):
    """Who stands behind a listener, as the kubelet said when it published the volume."""

    namespace: str
    name: str
    uid: str
    service_account: str
    pool: str
    """The volume's attribute: NAME (in the pod's namespace) or NAMESPACE/NAME."""


class Listener(msgspec.Struct, frozen=True, tag="listener"):
    """A pod's listening socket; its descriptor lies beside."""

    volume_id: str
    pod: PodIdentity


class ListenerGone(msgspec.Struct, frozen=True, tag="listener_gone"):
    """The volume ended: close its listener and its connections."""

    volume_id: str


class Device(msgspec.Struct, frozen=True, tag="device"):
    """A raw block device, opened for reading and writing, exclusively and for direct I/O; its descriptor lies beside.

    What it holds is the store's matter. The claim on the device lasts as long as a copy of the descriptor is open.
    """

    name: str
    """Of spec.tiers.nvme.devices."""


class DeviceAbsent(msgspec.Struct, frozen=True, tag="device_absent"):
    """A raw block device that cannot be handed over now; kvtier-node keeps trying."""

    name: str
    message: str
    """Why, and what mends it."""


class WantDevice(msgspec.Struct, frozen=True, tag="want_device"):
    """The store has closed its descriptor of a device that was gone or failed, and asks for another."""

    name: str


ToStore = NodeWelcome | NodeRefusal | Listener | ListenerGone | Device | DeviceAbsent
ToNode = StoreHello | WantDevice
