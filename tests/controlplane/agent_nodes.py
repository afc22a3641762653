"""CacheNodes on the real API server, and the agents' client for them."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from kvtier_agent.cachenode import CacheNodeClient

from tests.controlplane.crds_api import Api, Object, resource

WAIT_S = 20.0


@contextmanager
def stored_cache_node(api: Api, name: str, spec: Object) -> Iterator[None]:
    """A CacheNode of this spec, until the block ends."""
    store_cache_node(api, name, spec)
    try:
        yield
    finally:
        api.do("delete", "cachenode", name, "--ignore-not-found")


def store_cache_node(api: Api, name: str, spec: Object) -> None:
    """Make it, or change its spec, as the operator does."""
    document = resource("CacheNode", spec, name)
    api.do("apply", "--server-side", "--field-manager=kvtier-operator", "-f-", document=document)


def read_cache_node(api: Api, name: str) -> Object:
    """The whole object, field managers included."""
    found: Object = json.loads(api.do("get", "cachenode", name, "-ojson", "--show-managed-fields"))
    return found


def conditions(api: Api, name: str) -> dict[str, Any]:
    """Its conditions by type."""
    return {each["type"]: each for each in read_cache_node(api, name).get("status", {}).get("conditions", ())}


async def until(satisfied: Callable[[], bool], wait_s: float = WAIT_S) -> None:
    """Wait for it, or fail."""
    deadline = time.monotonic() + wait_s
    while not await asyncio.to_thread(satisfied):
        if time.monotonic() > deadline:
            raise TimeoutError
        await asyncio.sleep(0.1)


async def until_reason(api: Api, name: str, kind: str, reason: str) -> Object:
    """Wait until that condition has that reason, and return the condition."""

    def satisfied() -> bool:
        return bool(conditions(api, name).get(kind, {}).get("reason") == reason)

    try:
        await until(satisfied)
    except TimeoutError:
        raise AssertionError(f"{kind} never became {reason}: {conditions(api, name)}") from None
    found: Object = conditions(api, name)[kind]
    return found


def admin_client(api: Api, folder: Path, node: str) -> CacheNodeClient:
    """The agents' client with the administrator's certificate."""
    config = yaml.safe_load(api.kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    pair = folder / "admin.pem"
    pair.touch(mode=0o600)
    pair.write_bytes(b"".join(base64.b64decode(user[f"client-{part}-data"]) for part in ("certificate", "key")))
    tls.load_cert_chain(pair)
    return CacheNodeClient(cluster["server"], node, tls=tls)
