"""torch views of held pages, and the way between an engine's per-layer tensors and block pages.

A block's page is C-contiguous with the axes (layer, key or value, KV head, token of the block, head size).
Both directions move whole runs of `block_tokens * head_size` elements, without a loop over tokens.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

LayerKV = tuple[torch.Tensor, torch.Tensor]
"""One layer's keys and values, each (1, KV heads, tokens, head size)."""


@dataclass(frozen=True)
class PageShape:
    """The dimensions of a block's page."""

    layers: int
    kv_heads: int
    block_tokens: int
    head_size: int
    dtype: torch.dtype

    @property
    def rows(self) -> int:
        """Runs in a page: one for each layer, key or value, and KV head."""
        return self.layers * 2 * self.kv_heads

    @property
    def run_bytes(self) -> int:
        """Of a row's part that one block fills."""
        return self.block_tokens * self.head_size * self.dtype.itemsize

    @property
    def page_bytes(self) -> int:
        """Of a whole page."""
        return self.rows * self.run_bytes


def page_tensor(view: memoryview, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """A held page's bytes as a tensor, in place.

    torch knows no read-only tensors: writing to this one ends the process. It is good as long as the hold's
    `intact()` covers the page. Raises ValueError when the size does not match.
    """
    expected = dtype.itemsize * int(np.prod(shape))
    if view.nbytes != expected:
        raise ValueError(f"a page of {view.nbytes} bytes is no {tuple(shape)} of {dtype}, which has {expected}")
    # torch warns about a read-only buffer, once per process and from any thread; it does not about an address.
    memory = (ctypes.c_ubyte * view.nbytes).from_address(np.frombuffer(view, np.uint8).ctypes.data)
    memory._owner = view  # type: ignore[attr-defined]
    return torch.frombuffer(memory, dtype=dtype).view(*shape)


def pages_from_layers(
    shape: PageShape,
    layers: Sequence[LayerKV],
    first_block: int,
    blocks: int,
    out: npt.NDArray[np.uint8] | None = None,
) -> npt.NDArray[np.uint8]:
    """Copies of `blocks` pages from `first_block` on, as (blocks, page bytes); in `out` where that is given.

    Raises ValueError when the tensors or `out` have another shape or type, or too few tokens.
    """
    begin, end = first_block * shape.block_tokens, (first_block + blocks) * shape.block_tokens
    if out is None:
        out = np.empty((blocks, shape.page_bytes), np.uint8)
    elif out.shape != (blocks, shape.page_bytes) or out.dtype != np.uint8 or out.strides[1] != 1:
        raise ValueError(f"out must be bytes of shape {(blocks, shape.page_bytes)}, not {out.dtype} of {out.shape}")
    pages = np.lib.stride_tricks.as_strided(
        out, (blocks, shape.rows, shape.run_bytes), (out.strides[0], shape.run_bytes, 1)
    )
    row = 0
    for number, layer in enumerate(layers):
        for tensor in layer:
            check_tensor(shape, tensor, end, f"layer {number}")
            if row < shape.rows:
                part = tensor[0, :, begin:end].detach().cpu().view(torch.uint8).numpy()
                runs = part.reshape(shape.kv_heads, blocks, shape.run_bytes)
                pages[:, row : row + shape.kv_heads] = runs.swapaxes(0, 1)
            row += shape.kv_heads
    if row != shape.rows:
        raise ValueError(f"{len(layers)} layers were given, not {shape.layers}")
    return out


class LayersFromPages:
    """The layers' keys and values of a prefix, filled block by block, in CPU memory. Copies once."""

    def __init__(self, shape: PageShape, blocks: int) -> None:
        """Room for `blocks` blocks."""
        self._shape = shape
        # numpy asks for huge pages where it may, torch does not: their first touch costs a quarter.
        self._rows = np.empty((shape.rows, blocks * shape.run_bytes), np.uint8)

    def fill(self, first_block: int, pages: Sequence[memoryview]) -> None:
        """Copy the pages of the blocks from `first_block` on.

        Raises ValueError when one has another size.
        """
        shape = self._shape
        for index, page in enumerate(pages, first_block):
            if page.nbytes != shape.page_bytes:
                raise ValueError(f"page {index} has {page.nbytes} bytes, not {shape.page_bytes}")
            begin = index * shape.run_bytes
            np.copyto(
                self._rows[:, begin : begin + shape.run_bytes], np.frombuffer(page, np.uint8).reshape(shape.rows, -1)
            )

    def layers(self) -> list[LayerKV]:
        """The keys and values of all blocks, in this object's memory."""
        shape = self._shape
        joined = torch.from_numpy(self._rows).view(shape.dtype)
        joined = joined.view(shape.layers, 2, 1, shape.kv_heads, -1, shape.head_size)
        return [(joined[layer, 0], joined[layer, 1]) for layer in range(shape.layers)]


def layers_from_pages(shape: PageShape, pages: Sequence[memoryview]) -> list[LayerKV]:
    """The layers' keys and values for the tokens of `pages`, copied once, in CPU memory.

    Raises ValueError when a page has another size.
    """
    made = LayersFromPages(shape, len(pages))
    made.fill(0, pages)
    return made.layers()


def check_tensor(shape: PageShape, tensor: torch.Tensor, tokens: int, what: str) -> None:
    """Raise ValueError unless it is one sequence's (1, KV heads, at least `tokens`, head size)."""
    batch, heads, length, size = tensor.shape
    expected = (1, shape.kv_heads, shape.head_size, shape.dtype)
    if (batch, heads, size, tensor.dtype) != expected or length < tokens:
        raise ValueError(
            f"{what}: expected (1, {shape.kv_heads}, {tokens} or more, {shape.head_size}) of {shape.dtype}, "
            f"got {tuple(tensor.shape)} of {tensor.dtype}"
        )
