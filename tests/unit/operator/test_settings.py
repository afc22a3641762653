from __future__ import annotations

import pytest
from kvtier_operator.settings import HEALTH_ENDPOINT, SettingsError, read_settings

LEAST = {"KVTIER_NAMESPACE": "kv", "KVTIER_STORE_IMAGE": "store:1", "KVTIER_STORE_SERVICE_ACCOUNT": "kvtier-store"}


def test_least_environment_gives_defaults_for_the_rest() -> None:
    settings = read_settings(LEAST)

    assert (settings.namespace, settings.store.image, settings.store.service_account) == (
        "kv",
        "store:1",
        "kvtier-store",
    )
    assert (settings.store.pull_policy, settings.store.pull_secrets) == ("IfNotPresent", ())
    assert (settings.store.priority_class, settings.health_endpoint) == ("", HEALTH_ENDPOINT)


def test_every_fault_of_the_environment_is_named_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings({"KVTIER_IMAGE_PULL_SECRETS": "registry", "KVTIER_LOG_LEVEL": "loud"})

    assert str(caught.value) == (
        "KVTIER_NAMESPACE is not set; KVTIER_STORE_IMAGE is not set; KVTIER_STORE_SERVICE_ACCOUNT is not set; "
        'KVTIER_IMAGE_PULL_SECRETS is not a JSON list of names such as ["registry"]; '
        "KVTIER_LOG_LEVEL is none of DEBUG, INFO, WARNING, ERROR"
    )


def test_pull_secrets_are_read_from_a_json_list() -> None:
    settings = read_settings(LEAST | {"KVTIER_IMAGE_PULL_SECRETS": '["one","two"]', "KVTIER_LOG_LEVEL": "debug"})

    assert settings.store.pull_secrets == ("one", "two")
    assert settings.log_level == "DEBUG"
