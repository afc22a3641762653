"""Which pod gets which pool."""

from __future__ import annotations

import pytest
from kvtier_agent.control import PoolGrant, ServiceAccount
from kvtier_agent.link import PodIdentity
from kvtier_agent.store.errors import Refusal
from kvtier_agent.store.grants import pools_lost, resolve_pool
from kvtier_client.protocol.messages import RefusalCode

from tests.unit.store.process import grant

OWN = grant("uid-1", "demo")
SHARED = grant("uid-2", "shared", namespace="infra", service_accounts=(ServiceAccount("team", "*"),))


def pod(pool: str, namespace: str = "team", account: str = "engine") -> PodIdentity:
    return PodIdentity(namespace, "pod", "uid", account, pool)


@pytest.mark.parametrize(
    ("identity", "uid"),
    [
        pytest.param(pod("demo"), "uid-1", id="a-name-is-in-the-pods-namespace"),
        pytest.param(pod("team/demo"), "uid-1", id="a-namespace-may-be-given"),
        pytest.param(pod("infra/shared"), "uid-2", id="another-namespaces-pool-that-grants-it"),
        pytest.param(pod("infra/shared", account="any"), "uid-2", id="a-star-grants-every-account"),
    ],
)
def test_granted_pod_gets_the_pool_it_names(identity: PodIdentity, uid: str) -> None:
    assert resolve_pool(identity, (OWN, SHARED)).uid == uid


@pytest.mark.parametrize(
    ("identity", "words"),
    [
        pytest.param(pod("other"), "pool team/other is not served on this node", id="unknown-pool"),
        pytest.param(pod("shared"), "pool team/shared is not served", id="a-name-is-not-looked-up-elsewhere"),
        pytest.param(pod("demo", account="other"), "service account team/other may not use", id="another-account"),
        pytest.param(pod("team/demo", namespace="evil"), "evil/engine may not use pool team/demo", id="same-account"),
        pytest.param(pod("infra/shared", namespace="evil"), "may not use pool infra/shared", id="star-of-a-namespace"),
        pytest.param(pod(""), "is not served", id="no-pool"),
        pytest.param(pod("a/b/c"), "is not served", id="too-many-parts"),
    ],
)
def test_pod_without_a_grant_is_told_what_to_do(identity: PodIdentity, words: str) -> None:
    with pytest.raises(Refusal) as refused:
        resolve_pool(identity, (OWN, SHARED))
    assert refused.value.code == RefusalCode.NOT_GRANTED
    assert words in refused.value.message
    assert "CachePool" in refused.value.message


@pytest.mark.parametrize(
    ("now", "lost"),
    [
        pytest.param((OWN, SHARED), set(), id="nothing-changed"),
        pytest.param((grant("uid-1", "demo", service_accounts=()), SHARED), {"uid-1"}, id="account-taken-out"),
        pytest.param((SHARED,), set(), id="pool-gone-and-purged"),
        pytest.param((grant("uid-9", "demo"), SHARED), set(), id="pool-replaced-and-the-old-one-purged"),
    ],
)
def test_pool_is_lost_when_it_is_served_to_others_only(now: tuple[PoolGrant, ...], lost: set[str]) -> None:
    assert pools_lost([pod("demo"), pod("other")], (OWN, SHARED), now) == lost
