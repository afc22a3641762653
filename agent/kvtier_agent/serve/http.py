"""Health, readiness and metrics over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from kvtier_agent.config import HttpConfig
from kvtier_agent.serve.attendant import Attendant
from kvtier_agent.serve.metrics import SnapshotCollector


@asynccontextmanager
async def serving_http(config: HttpConfig, attendant: Attendant) -> AsyncIterator[None]:
    """The three pages answer within the block. Raises OSError when the address is taken."""
    runner = web.AppRunner(make_app(attendant), access_log=None, handle_signals=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, config.host, config.port).start()
        yield
    finally:
        await runner.cleanup()


def make_app(attendant: Attendant) -> web.Application:
    """The pages: /healthz, /readyz, /metrics."""
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(attendant))

    async def healthz(_request: web.Request) -> web.Response:
        return _answer(attendant.fault())

    async def readyz(_request: web.Request) -> web.Response:
        return _answer(attendant.fault() or _unready(attendant))

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    return app


def _unready(attendant: Attendant) -> str | None:
    snapshot = attendant.snapshot
    if snapshot is None:
        return "the store has started and not spoken yet"
    return None if snapshot.ready else snapshot.message or "the store is not ready"


def _answer(fault: str | None) -> web.Response:
    return web.Response(text=f"{fault or 'ok'}\n", status=503 if fault else 200)
