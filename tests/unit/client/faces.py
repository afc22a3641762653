"""Both faces of the client behind one surface, so that one test holds them to the same behaviour."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from kvtier_client import Client
from kvtier_client.aio import AsyncClient

CALL_DEADLINE_S = 60.0


class AwaitingClient:
    """An AsyncClient whose calls are awaited in an event loop of its own, in a thread of its own."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.inner = AsyncClient(*args, **options)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inner, name)
        if name == "staging":
            return self._staging
        if not inspect.iscoroutinefunction(value):
            return value
        return lambda *args, **options: self.wait(value(*args, **options))

    def wait(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(CALL_DEADLINE_S)

    @contextmanager
    def _staging(self, size: int, **options: Any) -> Iterator[memoryview]:
        context = self.inner.staging(size, **options)
        memory = self.wait(context.__aenter__())
        try:
            yield memory
        finally:
            self.wait(context.__aexit__(None, None, None))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.inner.close()
        if self.loop.is_running():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(10)
            assert not asyncio.all_tasks(self.loop)
            self.loop.close()


Face = Callable[..., Any]
FACES: dict[str, Face] = {"threads": Client, "asyncio": AwaitingClient}
