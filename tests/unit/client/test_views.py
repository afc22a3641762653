"""numpy and torch views of held pages, and the way between layers and pages."""

from __future__ import annotations

import gc
import tempfile

import numpy as np
import pytest
import torch
from kvtier_client.arrays import page_array
from kvtier_client.memory import map_readonly
from kvtier_client.tensors import (
    LayerKV,
    LayersFromPages,
    PageShape,
    layers_from_pages,
    page_tensor,
    pages_from_layers,
)

SHAPE = PageShape(layers=3, kv_heads=2, block_tokens=4, head_size=8, dtype=torch.float32)


def mapped(data: bytes) -> memoryview:
    """`data` as a client sees it in the arena: mapped, and not to be written."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        return map_readonly(file.fileno(), len(data))


def layers(shape: PageShape, tokens: int) -> list[LayerKV]:
    torch.manual_seed(0)
    size = (1, shape.kv_heads, tokens, shape.head_size)
    return [(torch.randn(size).to(shape.dtype), torch.randn(size).to(shape.dtype)) for _ in range(shape.layers)]


def test_array_shows_the_page_in_place_and_read_only() -> None:
    view = mapped(np.arange(12, dtype=np.int16).tobytes())
    array = page_array(view, np.int16, (3, 4))
    assert array.tolist() == np.arange(12).reshape(3, 4).tolist()
    assert array.ctypes.data == np.frombuffer(view, np.uint8).ctypes.data
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_tensor_shows_the_page_in_place_without_a_warning(dtype: torch.dtype) -> None:
    raw = torch.arange(0, 64, dtype=torch.uint8)
    view = mapped(raw.numpy().tobytes())
    tensor = page_tensor(view, dtype, (2, 32 // dtype.itemsize))
    assert torch.equal(tensor.view(torch.uint8).flatten(), raw)
    assert tensor.data_ptr() == np.frombuffer(view, np.uint8).ctypes.data


def test_tensor_keeps_the_mapping_alive() -> None:
    tensor = page_tensor(mapped(b"\x07" * 4096), torch.uint8, (4096,))
    gc.collect()
    assert int(tensor.sum()) == 7 * 4096


def test_view_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a page of 8 bytes is no \(3,\) of torch.float32, which has 12"):
        page_tensor(mapped(bytes(8)), torch.float32, (3,))
    with pytest.raises(ValueError, match="reshape"):
        page_array(mapped(bytes(8)), np.float32, (3,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_become_pages_and_layers_again(dtype: torch.dtype) -> None:
    shape = PageShape(layers=3, kv_heads=2, block_tokens=4, head_size=8, dtype=dtype)
    whole = layers(shape, 14)
    pages = pages_from_layers(shape, whole, 1, 2)
    assert pages.shape == (2, shape.page_bytes)
    for (keys, values), (new_keys, new_values) in zip(
        whole, layers_from_pages(shape, [memoryview(page) for page in pages]), strict=True
    ):
        assert torch.equal(new_keys, keys[:, :, 4:12])
        assert torch.equal(new_values, values[:, :, 4:12])


def test_pages_are_made_where_the_caller_wants_them() -> None:
    whole = layers(SHAPE, 8)
    rows = np.zeros((2, 4096), np.uint8)[:, : SHAPE.page_bytes]
    assert pages_from_layers(SHAPE, whole, 0, 2, rows) is rows
    assert np.array_equal(rows, pages_from_layers(SHAPE, whole, 0, 2))
    for wrong in (rows[:1], rows[:, :-1], rows.view(np.int8), np.zeros((SHAPE.page_bytes, 2), np.uint8).T):
        with pytest.raises(ValueError, match="out must be bytes of shape"):
            pages_from_layers(SHAPE, whole, 0, 2, wrong)


def test_layers_are_filled_block_by_block() -> None:
    whole = layers(SHAPE, 12)
    pages = [memoryview(page) for page in pages_from_layers(SHAPE, whole, 0, 3)]
    made = LayersFromPages(SHAPE, 3)
    made.fill(0, pages[:1])
    made.fill(1, pages[1:])
    for (keys, values), (new_keys, new_values) in zip(whole, made.layers(), strict=True):
        assert torch.equal(new_keys, keys)
        assert torch.equal(new_values, values)


def test_page_has_the_documented_axes() -> None:
    whole = layers(SHAPE, 8)
    page = pages_from_layers(SHAPE, whole, 1, 1)[0]
    axes = page_tensor(memoryview(page), torch.float32, (3, 2, 2, 4, 8))
    for layer, pair in enumerate(whole):
        for which, tensor in enumerate(pair):
            assert torch.equal(axes[layer, which], tensor[0, :, 4:8])


def test_sliced_tensors_need_not_be_contiguous() -> None:
    longer = layers(SHAPE, 20)
    sliced = [(keys[:, :, 4:12], values[:, :, 4:12]) for keys, values in longer]
    assert np.array_equal(pages_from_layers(SHAPE, sliced, 0, 2), pages_from_layers(SHAPE, longer, 1, 2))


def test_wrong_layers_and_pages_are_refused() -> None:
    with pytest.raises(ValueError, match=r"layer 0: expected \(1, 2, 12 or more, 8\) of torch.float32"):
        pages_from_layers(SHAPE, layers(SHAPE, 8), 1, 2)
    with pytest.raises(ValueError, match="2 layers were given, not 3"):
        pages_from_layers(SHAPE, layers(SHAPE, 8)[:2], 0, 1)
    with pytest.raises(ValueError, match="page 1 has 3 bytes, not 1536"):
        layers_from_pages(SHAPE, [memoryview(bytes(1536)), memoryview(b"abc")])
