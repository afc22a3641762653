"""Service accounts within the room of a node's object: who keeps how many, and that an object always fits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kvtier_crds.models import NodePool
from kvtier_operator.desired.grants import ACCOUNT_BYTES, fair_shares, fit_accounts
from kvtier_operator.plan import decide
from kvtier_operator.status.cache_pool import Granted

from tests.unit.operator.build import NOW, SETTINGS, node, pool, tier_class, view
from tests.unit.operator.test_cache_pool_status import judge, told

Object = dict[str, Any]
LONGEST = [{"namespace": "n" * 63, "name": f"{number:03}" + "a" * 250} for number in range(256)]


def entry(uid: str, accounts: int) -> NodePool:
    named = [{"namespace": "inference", "name": f"engine-{number:03}"} for number in range(accounts)]
    return NodePool.model_validate(
        {"uid": uid, "namespace": "inference", "name": uid, "quota": {"dram": "1Gi"}, "serviceAccounts": named}
    )


@pytest.mark.parametrize(
    ("needs", "room", "shares"),
    [
        ([], 10, []),
        ([3, 4], 10, [3, 4]),
        ([10, 2, 10], 12, [5, 2, 5]),
        ([100, 100, 1, 30], 91, [30, 30, 1, 30]),
        ([7, 7], 0, [0, 0]),
    ],
    ids=["none", "all-fit", "small-ones-whole", "rest-of-the-small-goes-to-the-large", "no-room"],
)
def test_fair_shares_cut_only_those_that_need_more_than_the_others(
    needs: list[int], room: int, shares: list[int]
) -> None:
    assert fair_shares(needs, room) == shares


def test_accounts_that_fit_are_granted_whole() -> None:
    fitted = fit_accounts([entry("b", 256), entry("a", 3)])
    assert [(pool.uid, len(pool.service_accounts)) for pool in fitted.entries] == [("a", 3), ("b", 256)]
    assert fitted.left_out == {}


def test_longest_list_is_cut_from_its_end_and_no_other() -> None:
    fitted = fit_accounts([entry("a", 200), entry("b", 10), entry("c", 40)], room_bytes=5000)
    kept = {pool.uid: [account.name for account in pool.service_accounts] for pool in fitted.entries}
    assert (len(kept["b"]), len(kept["c"])) == (10, 40)
    assert kept["a"] == [f"engine-{number:03}" for number in range(len(kept["a"]))]
    assert 40 < len(kept["a"]) < 200
    assert fitted.left_out == {"a": 200 - len(kept["a"])}


def apply_of_n1(pools: int) -> Object:
    pools_ = [pool(f"chat-{number}", serviceAccounts=LONGEST) for number in range(pools)]
    plan = decide(view(tier_class(), node(), *pools_), {}, {}, SETTINGS, NOW)
    (body,) = [
        action.step.body
        for actions in plan.values()
        for action in actions
        if getattr(action.step, "target", None) and action.step.target.resource.kind == "CacheNode"
    ]
    return body


@pytest.mark.parametrize("pools", [18, 200, 512])
def test_cache_node_with_the_longest_lists_fits_into_an_object(pools: int) -> None:
    body = apply_of_n1(pools)
    assert len(body["spec"]["pools"]) == pools, "a pool that is left out is purged"
    assert all(entry["serviceAccounts"] for entry in body["spec"]["pools"])
    assert len(json.dumps(body)) < ACCOUNT_BYTES + pools * 600


def test_pool_with_accounts_left_out_says_how_many() -> None:
    subject = pool(serviceAccounts=LONGEST)
    status = judge(subject, tier_class(), granted=Granted(accounts_left_out=36))
    message = (
        "the service accounts of all pools of TierClass flash are more than a node's object holds, so the last 36 of "
        "this pool's 256 are not granted; name fewer in spec.serviceAccounts, or `*` for a namespace of your own"
    )
    assert told(status) == {
        "Ready": ("False", "TooManyAccounts", message),
        "Degraded": ("True", "TooManyAccounts", message),
    }
