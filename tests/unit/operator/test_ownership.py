from __future__ import annotations

from kvtier_operator.desired.ownership import decide_owners

from tests.unit.operator.build import ago, cache_node, node, tier_class, view


def test_class_has_linux_nodes_that_carry_all_its_labels() -> None:
    entries = [
        tier_class(selector={"gpu": "yes", "zone": "a"}),
        node("both", labels={"gpu": "yes", "zone": "a"}),
        node("one", labels={"gpu": "yes"}),
        node("windows", labels={"gpu": "yes", "zone": "a", "kubernetes.io/os": "windows"}),
    ]

    assert decide_owners(view(*entries)).owner == {"both": "flash"}


def test_empty_selector_selects_every_linux_node() -> None:
    seen = view(tier_class(selector={}), node("n1", labels={}), node("n2"))

    assert decide_owners(seen).nodes_of("flash") == ["n1", "n2"]


def test_older_class_has_a_contested_node() -> None:
    seen = view(tier_class("aa", created=ago(hours=1)), tier_class("zz", created=ago(hours=2)), node())
    ownership = decide_owners(seen)

    assert ownership.owner == {"n1": "zz"}
    assert ownership.lost == {"aa": {"n1": "zz"}}


def test_classes_of_one_second_go_by_name() -> None:
    seen = view(tier_class("bb"), tier_class("aa"), node())

    assert decide_owners(seen).owner == {"n1": "aa"}


def test_class_being_deleted_has_no_node() -> None:
    seen = view(tier_class("aa", deleting=ago(minutes=1)), tier_class("bb"), node())

    assert decide_owners(seen).owner == {"n1": "bb"}


def test_unreadable_class_keeps_its_nodes_and_takes_no_more() -> None:
    unreadable = tier_class("aa", created=ago(days=9), tiers={"dram": {}})
    seen = view(unreadable, tier_class("bb"), node("n1"), node("n2"), cache_node("n1", of="aa"))

    assert decide_owners(seen).owner == {"n1": "aa", "n2": "bb"}


def test_unreadable_class_being_deleted_keeps_nothing() -> None:
    unreadable = tier_class("aa", tiers={"dram": {}}, deleting=ago(minutes=1))

    assert decide_owners(view(unreadable, node(), cache_node(of="aa"))).owner == {}
