"""Names that only the operator uses."""

from __future__ import annotations

from typing import Final

from kvtier_crds.names import GROUP

ANNOTATION_SPEC_HASH: Final = f"{GROUP}/spec-hash"
"""On a store's pod: hash of configuration and pod template. A pod with another one has an older specification."""
ANNOTATION_APPLIED_HASH: Final = f"{GROUP}/applied-hash"
"""On what the operator makes: hash of what it applied, so that fields it no longer wants are noticed too."""
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"

MAX_POOLS_PER_NODE: Final = 512
"""Entries of CacheNode.spec.pools that its schema allows."""


def store_name(tier_class: str) -> str:
    """Name of the DaemonSet and of the ConfigMap of a class."""
    return f"kvtier-store-{tier_class}"


def class_of_store(name: str) -> str:
    """The class that a DaemonSet or ConfigMap of that name belongs to."""
    return name.removeprefix("kvtier-store-")
