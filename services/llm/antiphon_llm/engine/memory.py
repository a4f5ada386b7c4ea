"""Host memory given back to the kernel."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def discard_pages(storage: torch.UntypedStorage) -> int:
    """Gives the physical pages of host memory back; its address stays, its contents are lost.

    What is read before it is written is zero, but for the ends that share a page with others.
    Returns the bytes given back. Raises OSError where the kernel refuses.
    """
    page = mmap.PAGESIZE
    start = -(-storage.data_ptr() // page) * page
    size = (storage.data_ptr() + storage.nbytes()) // page * page - start
    if size <= 0:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), mmap.MADV_DONTNEED) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return size
