"""LMCache's multiprocess server without a GPU: its engine-driven transfer over shared memory, with its own client.

A page is one chunk of tokens of a model of a single layer, copied in one piece between its shared memory and ours: its
own way there, block by block, is slower on a CPU.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any, Final

from kvtier_bench.contenders.contender import Buffers

_ANSWER_S: Final = 60.0
_MODEL: Final = "test-model"
_INSTANCE: Final = 1000


class LmCache:
    """A Contender."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._torch = importlib.import_module("torch")  # these are in LMCache's environment only
        self._helpers = importlib.import_module("lmcache.cli.commands.bench.server_bench.helpers")
        factory = importlib.import_module("lmcache.v1.multiprocess.transport.factory").RequestClientFactory
        self._context = importlib.import_module("zmq").Context()
        self._server = factory.create(buffers.task.address["url"], context=self._context)
        self._chunk = self._helpers._get_chunk_size(self._server)
        self._transfer = self._register()
        self._sessions = 0

    def put(self, batch: int, version: int) -> None:
        """Store the batch as one prompt: copies into its shared memory."""
        session = self._session()
        key = self._key(batch, version, session, 0)
        slots, missing = self._transfer.engine_driven_context.prepare_store(key, _INSTANCE)
        pages = self._pages(self._buffers.source, batch)
        for slot, chunk in zip(slots, missing, strict=True):
            slot.copy_(pages[chunk])
        if not self._transfer.engine_driven_context.commit_store(key, _INSTANCE, slots):
            raise OSError("lmcache did not store")
        self._server.end_session(session)

    def get(self, batch: int, version: int) -> None:
        """Look the prompt up, as a retrieve requires, and copy out of its shared memory."""
        session = self._session()
        self._server.lookup(self._key(batch, version, session, None), 1).result(timeout=_ANSWER_S)
        hit = None
        while hit is None:
            hit = self._server.query_prefetch_status(session).result(timeout=_ANSWER_S)
        if hit != self._buffers.task.batch_pages:
            raise OSError(f"lmcache has {hit} of {self._buffers.task.batch_pages} chunks")
        key = self._key(batch, version, session, 0)
        slots = self._transfer.engine_driven_context.prepare_retrieve(key, _INSTANCE)
        for slot, page in zip(slots, self._pages(self._buffers.destination, batch), strict=True):
            page.copy_(slot)
        self._transfer.engine_driven_context.commit_retrieve(key, _INSTANCE)
        self._server.end_session(session)

    def drop(self, batch: int, version: int) -> None:
        """A worker cannot: there is room for all that is put."""

    def close(self) -> None:
        """Disconnect."""
        self._transfer.close()
        self._context.destroy(linger=0)

    def _register(self) -> Any:
        module = importlib.import_module("lmcache.v1.multiprocess.transfer_context")
        group = importlib.import_module("lmcache.v1.multiprocess.group_view").EngineGroupInfo
        engine = importlib.import_module("lmcache.utils").EngineType.VLLM
        transfer = module.EngineDrivenTransferContext(_INSTANCE, self._server)
        transfer.register(
            {"layer.0": self._tensor(self._buffers.source)},
            _MODEL,
            1,
            1,
            _ANSWER_S,
            layout_hints={"kv_layout": "NHD"},
            engine_group_infos=[group(engine_group_id=0, layer_indices=(0,), tokens_per_block=self._chunk)],
            engine_type=engine,
        )
        return transfer

    def _tensor(self, memory: Any) -> Any:
        """The pages as the paged KV cache of one layer in float16: a block for each."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of the source being read-only
            halves = self._torch.from_numpy(memory).view(self._torch.float16)
        return halves.view(-1, self._chunk, self._buffers.task.page_bytes // self._chunk // 2)

    def _pages(self, memory: Any, batch: int) -> list[Any]:
        """Each page of the batch in the shape of a chunk: layers, tokens, bytes of a token."""
        pages = self._buffers.task.batch_pages
        return [page[None] for page in self._tensor(memory)[batch * pages : (batch + 1) * pages]]

    def _key(self, batch: int, version: int, session: str, worker: int | None) -> Any:
        tokens = (batch * 100_000 + version, *[9906] * (self._buffers.task.batch_pages * self._chunk - 1))
        return self._helpers._make_key(tokens, session, start=0, end=len(tokens), worker_id=worker)

    def _session(self) -> str:
        self._sessions += 1
        return f"bench-{self._sessions}"


def connect(buffers: Buffers) -> LmCache:
    """A worker of the server at `url`."""
    return LmCache(buffers)
