"""Requests to the API server: each in a thread, each with a timeout.

Errors are those of the `kubernetes` client (ApiException with a status) and of urllib3 (connection and timeout).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from kubernetes.client import ApiClient, Configuration
from kubernetes.config import load_config
from kubernetes.dynamic import DynamicClient
from kvtier_crds.names import MANAGER_OPERATOR

from kvtier_operator.objects import PODS, Object, Resource, Target

REQUEST_TIMEOUT_S: Final = (5, 20)
"""To connect, and to answer."""
CONCURRENT_REQUESTS: Final = 8
PAGE: Final = 500
_METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"


def connect(kubeconfig: Path | None = None) -> Api:
    """With that kubeconfig, or the one of whoever runs it, or the pod's service account. Raises ConfigException."""
    configuration = Configuration()
    # The mere presence of config_file keeps load_config from looking for a service account.
    chosen = {"config_file": str(kubeconfig)} if kubeconfig else {}
    load_config(**chosen, client_configuration=configuration)  # type: ignore[no-untyped-call]
    configuration.connection_pool_maxsize = CONCURRENT_REQUESTS
    configuration.retries = False
    return Api(ApiClient(configuration))


class Api:
    """What the operator asks of the API server. Coroutines may run side by side."""

    def __init__(self, client: ApiClient) -> None:
        self._client = DynamicClient(client, discoverer=_NoDiscovery)  # type: ignore[no-untyped-call]
        self._threads = ThreadPoolExecutor(CONCURRENT_REQUESTS, thread_name_prefix="api")

    async def apply(self, target: Target, body: Object, subresource: str = "") -> Object:
        """Server-side apply; conflicts are won. Returns the object after it."""
        query = {"field_manager": MANAGER_OPERATOR, "force_conflicts": True}
        return await self._call("patch", _path(target, subresource), body, content_type=_APPLY, **query)

    async def merge(self, target: Target, body: Object) -> Object:
        """Merge patch; lists are replaced whole. A resourceVersion in it must be the present one (else 409)."""
        return await self._call("patch", _path(target), body, content_type=_MERGE, field_manager=MANAGER_OPERATOR)

    async def create(self, target: Target, body: Object) -> None:
        """Create. 409: there is one already."""
        await self._call("post", _collection(target.resource, target.namespace), body)

    async def delete(self, target: Target, uid: str) -> None:
        """Delete if it still has that UID (else 409); what it owns goes after it. 404: it is gone."""
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        await self._call("delete", _path(target), {"apiVersion": "v1", "kind": "DeleteOptions", **options})

    async def list_metadata(
        self, resource: Resource, namespace: str, selector: str
    ) -> AsyncIterator[tuple[str, list[Object]]]:
        """Pages of all objects, metadata only, each with the version of the whole list."""
        more = None
        while True:
            page = await self._call(
                "get",
                _collection(resource, namespace),
                None,
                label_selector=selector or None,
                limit=PAGE,
                _continue=more,
                header_params={"Accept": _METADATA_ONLY},
            )
            yield page["metadata"].get("resourceVersion", ""), page.get("items") or []
            more = page["metadata"].get("continue")
            if not more:
                return

    async def pods_on(self, node: str) -> list[Object]:
        """The pods of a node, of every namespace, finished ones left out."""
        selector = f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"
        reply = await self._call("get", _collection(PODS, ""), None, field_selector=selector)
        return list(reply.get("items") or [])

    async def _call(self, method: str, path: str, body: Object | None, **options: Any) -> Object:
        given = {key: value for key, value in options.items() if value is not None}
        call = partial(
            self._client.request, method, path, body=body, _request_timeout=REQUEST_TIMEOUT_S, serialize=False, **given
        )
        reply = await asyncio.get_running_loop().run_in_executor(self._threads, call)
        answer: Object = json.loads(reply.data)
        return answer


class _NoDiscovery:
    """In place of the discovery of a DynamicClient: every path is known here."""

    def __init__(self, client: DynamicClient, cache_file: str | None) -> None:
        pass


def _collection(resource: Resource, namespace: str) -> str:
    root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    return f"{root}/namespaces/{namespace}/{resource.plural}" if namespace else f"{root}/{resource.plural}"


def _path(target: Target, subresource: str = "") -> str:
    path = f"{_collection(target.resource, target.namespace)}/{target.name}"
    return f"{path}/{subresource}" if subresource else path
