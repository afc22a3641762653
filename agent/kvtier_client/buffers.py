"""Callers' buffers as flat bytes, without a copy."""

from __future__ import annotations

import sys
from typing import Any

from .results import BufferLike


def readable_bytes(buffer: BufferLike, what: str) -> memoryview:
    """All of `buffer` as flat bytes.

    Raises ValueError, naming `what`, when it is no C-contiguous CPU memory or is empty.
    """
    try:
        view = memoryview(_without_torch(buffer)).cast("B")
    except (TypeError, RuntimeError, BufferError) as error:
        raise ValueError(f"{what} is not C-contiguous bytes in CPU memory: {error}") from error
    if not view.nbytes:
        raise ValueError(f"{what} is empty")
    return view


def writable_bytes(buffer: BufferLike, what: str) -> memoryview:
    """As `readable_bytes`, and it may be written.

    Raises ValueError.
    """
    view = readable_bytes(buffer, what)
    if view.readonly:
        raise ValueError(f"{what} is read-only")
    return view


def _without_torch(buffer: BufferLike) -> Any:
    """A torch tensor as the numpy array of its bytes: torch offers no buffer, and numpy knows no bfloat16.

    Who holds a tensor has imported torch, so that this module need not.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(buffer, torch.Tensor):
        return buffer
    if not buffer.is_contiguous():
        raise TypeError("the tensor is not contiguous")
    return buffer.detach().reshape(-1).view(torch.uint8).numpy()
