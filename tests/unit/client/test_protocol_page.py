"""docs/protocol.md says in bytes what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import blake3
import msgspec
import pytest
from kvtier_client import Layout, block_hashes, root_hash
from kvtier_client.protocol.frames import FrameDecoder, encode_frame
from kvtier_client.protocol.messages import (
    MAX_BLOCKS,
    MAX_CHUNKS,
    MAX_PAGES_OF_BLOCK,
    Chunks,
    Delete,
    Done,
    Get,
    GetReply,
    HashList,
    Hello,
    HelloReply,
    Lookup,
    LookupReply,
    PageId,
    Put,
    PutPage,
    PutReply,
    Reach,
    RefusalCode,
    Release,
    Stage,
    ToAgent,
    ToClient,
)
from kvtier_client.protocol.places import PLACE, TIERS, PagePlace, pack_places

PAGE = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
HEX = {name: bytes.fromhex(text) for name, text in re.findall(r"```hex (\S+)\n(.*?)```", PAGE, re.S)}
LAYOUT = Layout(
    weights_digest="00112233",
    config_digest="rope-1",
    quantisation="",
    dtype="float32",
    layers=30,
    kv_heads=3,
    head_size=64,
    block_tokens=16,
    parallel=(1, 1),
    groups=("full",),
    attention="sdpa/HND",
    lora_digest="",
    hash_algorithm="sha256_cbor/vllm-none-hash",
    connector="transformers/1",
)
PLACES = pack_places([PagePlace(3, 4096, 8192, 64, 11, 0), PagePlace(3, 12288, 8192, 72, 5, 1)])
BLOCKS = [HEX["block-0"], HEX["block-1"]]
FRAMES: dict[str, msgspec.Struct] = {
    "hello": Hello((1, 1), "example/1"),
    "hello_reply": HelloReply(1, "kvtier-store/0.1.0", "default/chat", "0f6a"),
    "lookup": Lookup(1, HEX["layout-fingerprint"], HashList.of(BLOCKS)),
    "lookup_reply": LookupReply(1, 2, 1, 2),
    "chunks": Chunks([3]),
    "get": Get(2, HEX["layout-fingerprint"], HashList.of(BLOCKS), 900, stream=True),
    "get_reply-first": GetReply(2, 1, PLACES[:40], 7, 30_000, more=True),
    "get_reply-last": GetReply(2, 1, PLACES[40:], 7, 30_000),
    "release": Release(7),
    "stage": Stage(3, 64 << 20),
    "done": Done(3),
    "put": Put(
        4,
        HEX["layout-fingerprint"],
        BLOCKS[0],
        [PutPage(BLOCKS[1], 0, 8192), PutPage(BLOCKS[1], 8192, 512, PageId(1, 0, 1))],
    ),
    "put_reply": PutReply(4, 1, 1, Reach.DRAM),
    "delete": Delete(5, HEX["layout-fingerprint"], HashList.of(BLOCKS[:1])),
}


def test_layout_fingerprint_is_the_pages_vector() -> None:
    assert LAYOUT.fingerprint() == HEX["layout-fingerprint"]
    assert blake3.blake3(HEX["layout-encoding"]).digest() == HEX["layout-fingerprint"]


@pytest.mark.parametrize("name", FRAMES)
def test_exchange_is_the_pages_bytes(name: str) -> None:
    frame, data = FRAMES[name], HEX[name]
    assert encode_frame(frame) == data
    decoder: FrameDecoder[object] = FrameDecoder(ToAgent | ToClient)
    assert list(decoder.feed(data)) == [frame]
    assert decoder.pending_bytes == 0


def test_block_hashes_are_the_pages_vectors() -> None:
    assert root_hash() == HEX["root"]
    assert block_hashes(range(40), 16) == [HEX["block-0"], HEX["block-1"]]
    assert block_hashes(range(16), 16, extra_keys=[(("cache_salt", "tenantA"),)]) == [HEX["block-0-salted"]]


@pytest.mark.parametrize("kind", [*ToAgent.__args__, *ToClient.__args__], ids=lambda kind: kind.__struct_config__.tag)
def test_every_message_and_field_is_described(kind: type[msgspec.Struct]) -> None:
    assert f"`{kind.__struct_config__.tag}`" in PAGE
    for field in msgspec.structs.fields(kind):
        assert f"`{field.encode_name}`" in PAGE


def test_every_layout_field_and_refusal_code_is_described() -> None:
    for name in [*(field.name for field in msgspec.structs.fields(Layout)), *RefusalCode]:
        assert f"`{name}`" in PAGE


def test_limits_are_the_pages() -> None:
    assert f"{MAX_BLOCKS:,}" in PAGE
    assert f"at most {MAX_PAGES_OF_BLOCK:,} pages" in PAGE
    assert f"at most {MAX_CHUNKS}" in PAGE


def test_every_example_is_held_and_the_record_of_a_place_is_the_pages() -> None:
    others = {"layout-encoding", "layout-fingerprint", "root", "block-0", "block-1", "block-0-salted"}
    assert set(HEX) == set(FRAMES) | others
    assert f"a record of {PLACE.size} bytes" in PAGE
    assert ", ".join(f"{number} `{tier}`" for number, tier in enumerate(TIERS)) in PAGE
