"""What the operator's own Deployment tells it, through the environment. Nothing here changes while it runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

HEALTH_ENDPOINT: Final = "http://0.0.0.0:8080/healthz"
LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")


class SettingsError(Exception):
    """The environment does not suffice; the message names every fault."""


@dataclass(frozen=True)
class StoreSettings:
    """What every store's pod has in common."""

    image: str
    service_account: str
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    priority_class: str = ""
    """Empty: none."""


@dataclass(frozen=True)
class Settings:
    """The operator's settings."""

    namespace: str
    """Of the release: stores and their configuration live here."""
    store: StoreSettings
    instance: str = "kvtier-operator"
    """Name of this process in Events."""
    health_endpoint: str = HEALTH_ENDPOINT
    log_level: str = "INFO"


def read_settings(environ: Mapping[str, str]) -> Settings:
    """The settings that `environ` holds.

    Raises SettingsError with every fault at once.
    """
    faults = [
        f"{name} is not set"
        for name in ("KVTIER_NAMESPACE", "KVTIER_STORE_IMAGE", "KVTIER_STORE_SERVICE_ACCOUNT")
        if not environ.get(name)
    ]
    pull_secrets = _read_names(environ.get("KVTIER_IMAGE_PULL_SECRETS", "[]"))
    if pull_secrets is None:
        faults.append('KVTIER_IMAGE_PULL_SECRETS is not a JSON list of names such as ["registry"]')
    if (environ.get("KVTIER_LOG_LEVEL") or "INFO").upper() not in LOG_LEVELS:
        faults.append(f"KVTIER_LOG_LEVEL is none of {', '.join(LOG_LEVELS)}")
    if faults:
        raise SettingsError("; ".join(faults))
    return Settings(
        namespace=environ["KVTIER_NAMESPACE"],
        store=StoreSettings(
            image=environ["KVTIER_STORE_IMAGE"],
            service_account=environ["KVTIER_STORE_SERVICE_ACCOUNT"],
            pull_policy=environ.get("KVTIER_IMAGE_PULL_POLICY") or "IfNotPresent",
            pull_secrets=pull_secrets or (),
            priority_class=environ.get("KVTIER_STORE_PRIORITY_CLASS", ""),
        ),
        instance=environ.get("HOSTNAME") or "kvtier-operator",
        health_endpoint=environ.get("KVTIER_HEALTH_ENDPOINT") or HEALTH_ENDPOINT,
        log_level=(environ.get("KVTIER_LOG_LEVEL") or "INFO").upper(),
    )


def _read_names(text: str) -> tuple[str, ...] | None:
    try:
        names = json.loads(text or "[]")
    except json.JSONDecodeError:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    return tuple(names)
