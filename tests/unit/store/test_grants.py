"""Which pod gets which pool."""

from __future__ import annotations

from pathlib import Path

import pytest
from kvtier_agent.control import ServiceAccount
from kvtier_agent.link import PodIdentity
from kvtier_agent.store.accounts import Accounts
from kvtier_agent.store.errors import Refusal
from kvtier_agent.store.grants import resolve_pool
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


ENGINE, SECOND = ServiceAccount("team", "engine"), ServiceAccount("team", "second")


@pytest.mark.parametrize(
    ("granted", "lost"),
    [
        pytest.param((ENGINE, SECOND), False, id="nothing-changed"),
        pytest.param((ServiceAccount("team", "*"),), False, id="a-star-grants-both"),
        pytest.param((ServiceAccount("team", "third"), ENGINE), True, id="one-taken-out"),
        pytest.param((ServiceAccount("other", "*"),), True, id="another-namespace"),
    ],
)
def test_successor_knows_which_account_lost_a_pool(
    tmp_path: Path, granted: tuple[ServiceAccount, ...], lost: bool
) -> None:
    before = Accounts(tmp_path)
    for account in (ENGINE, SECOND):
        before.note("uid-1", account)
    after = Accounts(tmp_path)
    assert not after.lose(grant("uid-2", service_accounts=()))
    assert after.lose(grant("uid-1", service_accounts=granted)) == lost


def test_account_loses_a_pool_once_until_it_has_it_again(tmp_path: Path) -> None:
    accounts, now = Accounts(tmp_path), grant("uid-1")
    accounts.note("uid-1", ENGINE)
    accounts.note("uid-1", SECOND)
    assert [accounts.lose(now), accounts.lose(now)] == [True, False]
    accounts.note("uid-1", SECOND)
    assert accounts.lose(now)
    assert Accounts(tmp_path).lose(now), "the chunks may still be there"
    accounts.forget_lost()
    assert not Accounts(tmp_path).lose(now)
    assert Accounts(tmp_path).lose(grant("uid-1", service_accounts=())), "the other one is still noted"
