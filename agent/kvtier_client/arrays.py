"""numpy views of held pages, without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def page_array(view: memoryview, dtype: npt.DTypeLike, shape: Sequence[int]) -> npt.NDArray[Any]:
    """A held page's bytes as an array, in place and read-only.

    It is good as long as the hold's `intact()` covers the page. Raises ValueError when the size does not match.
    """
    return np.frombuffer(view, dtype=dtype).reshape(shape)
