from __future__ import annotations


class Native:
    isa = "none"


def native():
    return None


def unavailable_reason():
    return "not built"


def set_threads(n):
    pass


def threads():
    import torch

    return torch.get_num_threads()
