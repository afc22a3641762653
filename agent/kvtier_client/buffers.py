"""Callers' buffers as addresses, without a copy."""

from __future__ import annotations

import ctypes
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
    """Where each of `count` buffers lies; None is (0, 0). One array or tensor with `count` rows is as good.

    Raises ValueError, naming the buffer, also when one is read-only.
    """
    if len(buffers) != count:
        raise ValueError(f"{count} buffers are needed, one for each page of each block, not {len(buffers)}")
    rows: Any = _tensor_bytes(buffers, "buffers") if count and _is_tensor(buffers) else buffers
    if isinstance(rows, np.ndarray) and count and rows.ndim > 1:
        address, size = _span(_writable(rows[0], "buffers[0]"))
        return Spans([(address + index * rows.strides[0], size) for index in range(count)], rows)
    spans: list[Span] = []
    owners: list[Any] = []
    for index, buffer in enumerate(buffers):
        if buffer is None:
            spans.append((0, 0))
            continue
        try:  # in one step for most kinds of buffers, which there may be thousands of
            owner: Any = ctypes.c_char.from_buffer(buffer)
            spans.append((ctypes.addressof(owner), memoryview(buffer).nbytes))
        except (TypeError, ValueError, BufferError):
            owner = _writable(buffer, f"buffers[{index}]")
            spans.append(_span(owner))
        owners.append(owner)
    return Spans(spans, owners)


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
    if _is_tensor(buffer):
        buffer = _tensor_bytes(buffer.reshape(1) if not buffer.dim() else buffer, "the tensor")
    if isinstance(buffer, np.ndarray):
        if not buffer.flags.c_contiguous:
            raise TypeError("it is not contiguous")
        return buffer
    return np.frombuffer(memoryview(buffer).cast("B"), np.uint8)


def _is_tensor(buffer: object) -> bool:
    torch = sys.modules.get("torch")  # who holds a tensor has imported torch, so that this module need not
    return torch is not None and isinstance(buffer, torch.Tensor)


def _tensor_bytes(tensor: Any, what: str) -> np.ndarray[Any, Any]:
    """The tensor's bytes, with its dimensions: torch offers no buffer, and numpy knows no bfloat16.

    Raises ValueError.
    """
    torch = sys.modules["torch"]
    try:
        array: np.ndarray[Any, Any] = tensor.detach().view(torch.uint8).numpy()
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"{what} is not C-contiguous bytes in CPU memory: {error}") from error
    return array
