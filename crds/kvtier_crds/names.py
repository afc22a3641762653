"""Names that several parts must agree on: API group, labels, user IDs, paths on the node."""

from __future__ import annotations

from typing import Final

GROUP: Final = "kvtier.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

CSI_DRIVER: Final = "csi.kvtier.io"
FINALIZER: Final = f"{GROUP}/drain"

LABEL_TIER_CLASS: Final = f"{GROUP}/tier-class"
"""On what the operator makes for a TierClass: the class's name."""

STORE_UID: Final = 64100
"""User and group of kvtier-store; owns the arena, the devices' kvtier folders and the node socket's group."""
SIDECAR_UID: Final = 64101
"""User and group of kvtier-sidecar; owns each pod's socket directory."""

HOST_ROOT: Final = "/run/kvtier"
"""On every node, kvtier's own folder: sockets, published volumes, the arena's mount."""
NODE_SOCKET_DIR: Final = f"{HOST_ROOT}/node"
NODE_SOCKET: Final = f"{NODE_SOCKET_DIR}/node.sock"
ARENA_MOUNT: Final = f"{HOST_ROOT}/arena"
"""The tmpfs (or hugetlbfs) that kvtier-node mounts."""
ARENA_STORE_DIR: Final = f"{ARENA_MOUNT}/store"
"""Inside it, the store's folder: it exists only once the mount does."""
DEVICE_FOLDER: Final = "kvtier"
"""The one folder that kvtier makes inside a directory that a TierClass names."""

POD_SOCKET_DIR: Final = "/run/kvtier"
"""Where pods mount their volume."""
AGENT_SOCKET_NAME: Final = "agent.sock"
CLIENT_SOCKET_NAME: Final = "kvtier.sock"

STORE_HTTP_PORT: Final = 9410

MANAGER_OPERATOR: Final = "kvtier-operator"
MANAGER_NODE: Final = "kvtier-node"
MANAGER_STORE: Final = "kvtier-store"
"""Field managers, one per writer."""
