"""Who gets which pool. Pure: a pod's identity against the latest grants."""

from __future__ import annotations

from collections.abc import Iterable

from kvtier_client.protocol.messages import RefusalCode

from kvtier_agent.control import PoolGrant, ServiceAccount
from kvtier_agent.link import PodIdentity

from .errors import Refusal

ANY: str = "*"


def resolve_pool(pod: PodIdentity, grants: Iterable[PoolGrant]) -> PoolGrant:
    """The pool that the pod's volume names, if this node serves it and the pod may have it. Raises Refusal."""
    namespace, _, name = pod.pool.rpartition("/")
    namespace = namespace or pod.namespace
    wanted = f"{namespace}/{name}"
    granted = next((it for it in grants if (it.namespace, it.name) == (namespace, name)), None)
    if granted is None:
        raise Refusal(
            RefusalCode.NOT_GRANTED,
            f"pool {wanted} is not served on this node; create the CachePool, name this node's TierClass in it, "
            "and see its conditions",
        )
    if not is_granted(account_of(pod), granted.service_accounts):
        raise Refusal(
            RefusalCode.NOT_GRANTED,
            f"service account {pod.namespace}/{pod.service_account} may not use pool {wanted}; "
            "add it to the CachePool's spec",
        )
    return granted


def account_of(pod: PodIdentity) -> ServiceAccount:
    """Whom a pool is granted to."""
    return ServiceAccount(pod.namespace, pod.service_account)


def is_granted(account: ServiceAccount, granted: Iterable[ServiceAccount]) -> bool:
    """Whether one of the grants is for the account."""
    return any(it.namespace == account.namespace and it.name in (ANY, account.name) for it in granted)
