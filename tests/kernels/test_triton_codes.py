"""Residual quantisation on the device against its reference."""

from __future__ import annotations

import pytest
import torch
from antiphon_kernels.nearest_codes import kernel, nearest_codes, reference
from antiphon_kernels.nearest_codes.cases import CASES, MIMI, Case, build


@pytest.mark.parametrize("case", CASES, ids=str)
def test_codes_equal_the_reference(device: torch.device, case: Case) -> None:
    latents, books, norms = build(case, device)
    wanted = reference.nearest_codes(latents, books, norms, case.levels)
    result = kernel.nearest_codes(latents, books, norms, case.levels)
    assert torch.equal(result, wanted)
    alone = kernel.nearest_codes(latents[-1:], books, norms, case.levels - 1)
    assert torch.equal(alone, wanted[:-1, -1:])


@pytest.mark.gpu
@pytest.mark.parametrize("case", MIMI, ids=str)
def test_codes_of_full_size(case: Case) -> None:
    latents, books, norms = build(case, torch.device("cuda"))
    wanted = reference.nearest_codes(latents.double(), books.double(), norms.double(), 8)
    result = nearest_codes(latents, books, norms, 8)
    assert (result == wanted).double().mean() > 0.999


def test_equal_distances_take_the_lowest_code(device: torch.device) -> None:
    books = torch.randn(2, 1, 16, generator=torch.Generator().manual_seed(1)).expand(2, 16, 16)
    books = books.contiguous().to(device)
    latents = torch.randn(5, 16, device=device)
    result = kernel.nearest_codes(latents, books, books.square().sum(dim=2), 2)
    assert not result.any()


def test_a_row_of_nan_stays_within_the_book_and_alone(device: torch.device) -> None:
    latents, books, norms = build(Case(6, 2, 16, 16), device)
    wanted = kernel.nearest_codes(latents, books, norms, 2)
    latents[2] = float("nan")
    result = kernel.nearest_codes(latents, books, norms, 2)
    assert ((result >= 0) & (result < 16)).all()
    others = [0, 1, 3, 4, 5]
    assert torch.equal(result[:, others], wanted[:, others])


def test_rows_of_a_wider_tensor(device: torch.device) -> None:
    latents, books, norms = build(Case(6, 2, 16, 16), device)
    wide = torch.cat([latents, latents.flip(0)], dim=1)
    wanted = kernel.nearest_codes(latents, books, norms, 2)
    assert torch.equal(kernel.nearest_codes(wide[:, :16], books, norms, 2), wanted)


def test_shapes_that_do_not_fit_are_refused(device: torch.device) -> None:
    latents, books, norms = build(Case(2, 3, 16, 16), device)
    with pytest.raises(ValueError, match="depth 4"):
        nearest_codes(latents, books, norms, 4)
    with pytest.raises(ValueError, match="float32"):
        nearest_codes(latents.double(), books, norms, 1)
