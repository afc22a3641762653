"""Callers' buffers as addresses, without a copy."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .results import BufferLike, Page

Span = tuple[int, int]
"""Address and bytes."""


class Spans(NamedTuple):
    """Where buffers lie."""

    spans: list[Span]
    owners: Any
    """Keeps them there: a bytearray, for one, cannot be resized as long as this is referred to."""


def page_spans(pages: Sequence[Page]) -> Spans:
    """Where the data of `pages` lie.

    Raises ValueError, naming the page, when one is no C-contiguous CPU memory or is empty.
    """
    arrays = [_array(page.data, f"pages[{index}].data") for index, page in enumerate(pages)]
    return Spans([_span(array) for array in arrays], arrays)


def writable_spans(buffers: Sequence[BufferLike | None], count: int) -> Spans:
    """Where each of `count` buffers lies; None is (0, 0). One array whose first dimension is `count` is as good.

    Raises ValueError, naming the buffer, also when one is read-only.
    """
    if len(buffers) != count:
        raise ValueError(f"{count} buffers are needed, one for each page of each block, not {len(buffers)}")
    if isinstance(buffers, np.ndarray) and count and buffers.ndim > 1:
        address, size = _span(_writable(buffers[0], "buffers[0]"))
        return Spans([(address + index * buffers.strides[0], size) for index in range(count)], buffers)
    arrays = [
        None if buffer is None else _writable(buffer, f"buffers[{index}]") for index, buffer in enumerate(buffers)
    ]
    return Spans([(0, 0) if array is None else _span(array) for array in arrays], arrays)


def _span(array: np.ndarray[Any, Any]) -> Span:
    return array.__array_interface__["data"][0], array.nbytes


def _writable(buffer: BufferLike, what: str) -> np.ndarray[Any, Any]:
    array = _array(buffer, what)
    if not array.flags.writeable:
        raise ValueError(f"{what} is read-only")
    return array


def _array(buffer: BufferLike, what: str) -> np.ndarray[Any, Any]:
    try:
        array = _bytes_of(buffer)
    except (TypeError, RuntimeError, BufferError, ValueError) as error:
        raise ValueError(f"{what} is not C-contiguous bytes in CPU memory: {error}") from error
    if not array.nbytes:
        raise ValueError(f"{what} is empty")
    return array


def _bytes_of(buffer: BufferLike) -> np.ndarray[Any, Any]:
    if isinstance(buffer, np.ndarray):
        if not buffer.flags.c_contiguous:
            raise TypeError("the array is not contiguous")
        return buffer
    torch = sys.modules.get("torch")  # who holds a tensor has imported torch, so that this module need not
    if torch is not None and isinstance(buffer, torch.Tensor):
        if not buffer.is_contiguous():
            raise TypeError("the tensor is not contiguous")
        # torch offers no buffer, and numpy knows no bfloat16.
        array: np.ndarray[Any, Any] = buffer.detach().reshape(-1).view(torch.uint8).numpy()
        return array
    return np.frombuffer(memoryview(buffer).cast("B"), np.uint8)
