"""This node's CacheNode: watched by its name, its status applied. All that an agent asks of the API server.

Two requests on one object, so they are made with the HTTP client that the agents have already; it ends
at once when its task is cancelled. An API server that is away is asked again with growing pauses.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import aiohttp
import msgspec
import pydantic
from kvtier_crds.models import CacheNodeSpec
from kvtier_crds.names import API_VERSION

from kvtier_agent.config import ConfigError

log = logging.getLogger(__name__)

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REQUEST_DEADLINE_S: Final = 10.0
WATCH_S: Final = 45
"""One watch request. It bounds how long a server that vanished without a word goes unnoticed."""
PAUSES_S: Final = (0.5, 1, 2, 5, 10, 20)
_PATH: Final = f"/apis/{API_VERSION}/cachenodes"
_LINE_LIMIT: Final = 4 << 20


class ApiError(Exception):
    """The API server did not do what was asked. Try again later; the message has its words."""

    def __init__(self, doing: str, code: int, text: str) -> None:
        self.code = code
        self.is_conflict = code == 409
        super().__init__(f"cannot {doing}: the API server answers {code}: {_words(text)[:500]}")


def _words(text: str) -> str:
    """The message of a Status object, else the text as it is."""
    try:
        return str(msgspec.json.decode(text)["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return text.strip()


class NotInCluster(ConfigError):
    """The process lacks what a pod has. It cannot go on."""

    def __init__(self, variable: str) -> None:
        super().__init__(f"{variable} is not set: run this in a pod that has a service account and its node's name")


@dataclass(frozen=True)
class CacheNode:
    """The object as it was last seen."""

    name: str
    uid: str
    version: str
    """resourceVersion: what is decided on this one is not applied to a later one."""
    generation: int
    spec: CacheNodeSpec
    status: Mapping[str, Any]
    """As the API server keeps it."""

    @property
    def conditions(self) -> dict[str, Mapping[str, Any]]:
        """Its conditions by type."""
        return {condition["type"]: condition for condition in self.status.get("conditions", ())}


def parse_cache_node(raw: Mapping[str, Any]) -> CacheNode:
    """The object in types. Fields of newer releases are passed over.

    Raises pydantic.ValidationError for a spec that this release cannot read.
    """
    metadata = raw["metadata"]
    return CacheNode(
        name=metadata["name"],
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        generation=metadata["generation"],
        spec=CacheNodeSpec.model_validate(raw["spec"], extra="ignore"),
        status=raw.get("status", {}),
    )


class CacheNodeClient:
    """Watches and applies to one CacheNode. Use as an async context manager, in one event loop."""

    def __init__(self, server: str, node: str, *, tls: ssl.SSLContext | None = None, token: Path | None = None) -> None:
        """`server` is the API server's URL; `token` a file that is read anew for every request."""
        self._server = server
        self._node = node
        self._tls = tls
        self._token = token
        self._exits = AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    def in_cluster(cls, node: str | None) -> Self:
        """With the pod's service account, for the node that NODE_NAME gave. Raises NotInCluster, OSError."""
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not node or not host:
            raise NotInCluster("KUBERNETES_SERVICE_HOST" if node else "NODE_NAME")
        tls = ssl.create_default_context(cafile=str(SERVICE_ACCOUNT / "ca.crt"))
        address = f"[{host}]" if ":" in host else host
        return cls(f"https://{address}:{port}", node, tls=tls, token=SERVICE_ACCOUNT / "token")

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=self._tls or False)
        session = aiohttp.ClientSession(self._server, connector=connector, read_bufsize=_LINE_LIMIT)
        self._session = await self._exits.enter_async_context(session)
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._exits.aclose()

    async def watch(self) -> AsyncGenerator[CacheNode | None, None]:
        """The object now, and after every change; None when there is none. Never ends, never raises."""
        pauses = iter(PAUSES_S)
        while True:
            try:
                async for raw in self._follow():
                    pauses = iter(PAUSES_S)
                    try:
                        yield None if raw is None else parse_cache_node(raw)
                    except pydantic.ValidationError as error:
                        log.error("CacheNode %s cannot be read by this release: %s", self._node, error)
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError, ApiError) as error:
                log.warning("watching CacheNode %s: %s", self._node, error or type(error).__name__)
            await asyncio.sleep(next(pauses, PAUSES_S[-1]))

    async def apply_status(self, node: CacheNode, manager: str, status: Mapping[str, Any]) -> CacheNode:
        """Server-side apply of `status` by `manager`; returns the object after it.

        Raises ApiError (409 when the object has changed: decide anew once the watch tells), aiohttp.ClientError,
        TimeoutError.
        """
        body = {
            "apiVersion": API_VERSION,
            "kind": "CacheNode",
            "metadata": {"name": node.name, "resourceVersion": node.version},
            "status": status,
        }
        headers = {"Content-Type": "application/apply-patch+yaml"}
        query = {"fieldManager": manager, "force": "true"}
        async with self._request("PATCH", f"{_PATH}/{node.name}/status", query, headers, body) as response:
            return parse_cache_node(await _read_json(response, f"write the status of CacheNode {node.name}"))

    async def _follow(self) -> AsyncIterator[Mapping[str, Any] | None]:
        """The object, then its changes, until the server forgets where this watch stood."""
        query = {"fieldSelector": f"metadata.name={self._node}"}
        async with self._request("GET", _PATH, query) as response:
            listed = await _read_json(response, f"read CacheNode {self._node}")
        yield listed["items"][0] if listed["items"] else None
        version = listed["metadata"]["resourceVersion"]
        watching = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_S)}
        while True:
            place = {"resourceVersion": version}
            async with self._request("GET", _PATH, query | watching | place, read_s=WATCH_S + 15) as response:
                if response.status != 200:
                    await _read_json(response, f"watch CacheNode {self._node}")
                async for line in response.content:
                    event = msgspec.json.decode(line)
                    if event["type"] == "ERROR":
                        return
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        yield None if event["type"] == "DELETED" else event["object"]

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        read_s: float | None = None,
    ) -> Any:
        assert self._session is not None, "enter the client first"
        authorization = {"Authorization": f"Bearer {self._token.read_text().strip()}"} if self._token else {}
        if read_s is None:
            timeout = aiohttp.ClientTimeout(total=REQUEST_DEADLINE_S)
        else:
            timeout = aiohttp.ClientTimeout(total=None, connect=REQUEST_DEADLINE_S, sock_read=read_s)
        return self._session.request(
            method,
            path,
            params=query,
            headers={**authorization, **(headers or {})},
            data=None if body is None else msgspec.json.encode(body),
            timeout=timeout,
        )


async def _read_json(response: aiohttp.ClientResponse, doing: str) -> Any:
    """The response's content. Raises ApiError unless it is a success."""
    if response.status >= 300:
        raise ApiError(doing, response.status, await response.text())
    return msgspec.json.decode(await response.read())
