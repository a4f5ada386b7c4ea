"""Slots: any cut equals the whole, whoever else is in the batch, whichever slot it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest
import torch
from antiphon_vocoder.codec.contract import Codec
from antiphon_vocoder.codec.state import SlotState
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.vocoder_codec.test_oracles import draw_codes, draw_pcm

Get = Callable[[str], Codec]
KINDS = ["mimi", "encodec", "rvq_vae", "dac"]
FRAMES = 20
LONGEST = 12
TOLERANCE = 1e-5


def chunks(codec: Codec, sizes: Iterable[int], total: int) -> list[int]:
    """Sizes that add up to ``total``, the first one long enough for the codec."""
    cut: list[int] = []
    for size in sizes:
        left = total - sum(cut)
        size = max(size, codec.spec.first_hop_frames) if not cut else size
        if left > 0:
            cut.append(min(size, left))
    rest = total - sum(cut)
    return cut + [LONGEST] * (rest // LONGEST) + [rest % LONGEST] * bool(rest % LONGEST)


def everyone(batch: int) -> torch.Tensor:
    return torch.ones(batch, dtype=torch.bool)


def with_lookahead(codec: Codec, pcm: torch.Tensor) -> torch.Tensor:
    """What an encoder's last step sees past the stream's end."""
    spec = codec.spec
    return torch.nn.functional.pad(
        pcm, (0, spec.encode_lookahead_samples), value=spec.encode_lookahead_fill
    )


def encode_cut(codec: Codec, pcm: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    hop, ahead = codec.spec.frame_samples, codec.spec.encode_lookahead_samples
    state = codec.encoder_state(pcm.shape[0], LONGEST)
    padded = with_lookahead(codec, pcm)
    parts, at = [], 0
    for size in sizes:
        window = padded[:, at * hop : (at + size) * hop + ahead]
        parts.append(codec.encode_step(window, state, None, everyone(pcm.shape[0])))
        at += size
    return torch.cat(parts, dim=2)


def decode_cut(codec: Codec, codes: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    batch = codes.shape[0]
    state = codec.decoder_state(batch, LONGEST)
    parts = [
        codec.decode_step(part, state, None, everyone(batch))
        for part in codes.split(list(sizes), dim=2)
    ]
    parts.append(codec.decode_flush(state, None, everyone(batch)))
    return torch.cat(parts, dim=1)[:, codec.spec.decode_delay_samples :]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=6, deadline=None)
@given(sizes=st.lists(st.integers(1, LONGEST), max_size=12))
def test_any_cut_equals_the_whole(codecs: Get, kind: str, sizes: list[int]) -> None:
    codec = codecs(kind)
    codes, pcm = draw_codes(codec, FRAMES), draw_pcm(codec, FRAMES)
    cut = chunks(codec, sizes, FRAMES)
    want = codec.decode(codes)
    got = decode_cut(codec, codes, cut)
    assert got.shape == want.shape
    assert (got - want).abs().max() <= TOLERANCE * want.abs().max().clamp(min=1)
    assert torch.equal(encode_cut(codec, pcm, cut), codec.encode(pcm))


@pytest.mark.parametrize(("kind", "hops"), [("mimi", 300), *((kind, 60) for kind in KINDS[1:])])
def test_hops_of_one_frame_go_past_every_context(codecs: Get, kind: str, hops: int) -> None:
    """Mimi's ring goes round many times; no convolution of the others keeps 20 frames."""
    codec = codecs(kind)
    codes, pcm = draw_codes(codec, hops, batch=1), draw_pcm(codec, hops, batch=1)
    cut = chunks(codec, [1] * hops, hops)
    want = codec.decode(codes)
    difference = (decode_cut(codec, codes, cut) - want).abs().max()
    assert difference <= TOLERANCE * want.abs().max().clamp(min=1)
    assert torch.equal(encode_cut(codec, pcm, cut), codec.encode(pcm))


class Batch:
    """Steps of several slots that are given rows of one batch."""

    def __init__(self, codec: Codec, slots: int) -> None:
        self.codec = codec
        self.decoder = codec.decoder_state(slots, LONGEST)
        self.encoder = codec.encoder_state(slots, LONGEST)

    def states(self) -> list[SlotState]:
        return [self.decoder, self.encoder]

    def reset(self, slot: int) -> None:
        for state in self.states():
            state.reset(torch.tensor([slot]))

    def poison(self, *rows: int) -> None:
        """NaN wherever a row can hold one."""
        for state in self.states():
            for tensor in state.tensors.values():
                if tensor.is_floating_point():
                    tensor[list(rows)] = float("nan")

    def step(
        self, rows: Sequence[int], mask: Sequence[bool], codes: torch.Tensor, pcm: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        which, runs = torch.tensor(rows), torch.tensor(mask)
        return (
            self.codec.decode_step(codes, self.decoder, which, runs),
            self.codec.encode_step(pcm, self.encoder, which, runs),
        )


def run_alone(
    codec: Codec, codes: torch.Tensor, pcm: torch.Tensor, sizes: Sequence[int], batch: int, row: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """One stream in one row of a batch whose other rows are masked and hold NaN."""
    slots = Batch(codec, batch)
    rows = [slots.decoder.null_row] * batch
    rows[row] = 0
    mask = [index == row for index in range(batch)]
    slots.poison(slots.decoder.null_row)
    hop, ahead = codec.spec.frame_samples, codec.spec.encode_lookahead_samples
    outputs, at = [], 0
    for size in sizes:
        given = codes.new_zeros(batch, codes.shape[0], size)
        heard = pcm.new_full((batch, size * hop + ahead), float("nan"))
        given[row] = codes[:, at : at + size]
        heard[row] = pcm[at * hop : (at + size) * hop + ahead]
        sound, seen = slots.step(rows, mask, given, heard)
        outputs.append((sound[row].clone(), seen[row].clone()))
        at += size
    return outputs


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_streams_in_company_give_the_same_bits_as_alone(
    codecs: Get, kind: str, data: st.DataObject
) -> None:
    """Streams join and leave, pause, and use slots that others left full of NaN."""
    codec = codecs(kind)
    batch, slots, streams = 3, 4, 5
    spec = codec.spec
    hop, ahead = spec.frame_samples, spec.encode_lookahead_samples
    hops = 4
    # A stream must be long enough that its samples are more than what trails.
    first, later = spec.first_hop_frames, max(2, spec.decode_delay_samples // hop // 2 + 1)
    total = first + later * (hops - 1)
    codes = draw_codes(codec, total, batch=streams)
    pcm = with_lookahead(codec, draw_pcm(codec, total, batch=streams))
    sizes = [first] + [later] * (hops - 1)
    starts = [sum(sizes[:index]) for index in range(hops)]
    company = Batch(codec, slots)
    company.poison(*range(slots + 1))
    waiting = list(range(streams))
    free = data.draw(st.permutations(range(slots)), label="slots")
    live: dict[int, tuple[int, int]] = {}
    done: dict[int, list[tuple[int, torch.Tensor, torch.Tensor]]] = {s: [] for s in waiting}
    while waiting or live:
        while waiting and len(live) < batch:
            slot = free.pop(0)
            company.reset(slot)
            live[waiting.pop(0)] = (slot, 0)
        ready = [s for s in live if data.draw(st.booleans(), label="ready")] or list(live)[:1]
        # One step has one shape: those who begin, or those who go on.
        begins = live[ready[0]][1] == 0
        chosen = [s for s in ready if (live[s][1] == 0) == begins]
        places = data.draw(st.permutations(range(batch)), label="rows")
        size = first if begins else later
        rows, mask = [company.decoder.null_row] * batch, [False] * batch
        given = codes.new_zeros(batch, codes.shape[1], size)
        heard = pcm.new_full((batch, size * hop + ahead), float("nan"))
        for place, stream in zip(places, chosen, strict=False):
            slot, count = live[stream]
            at = starts[count]
            rows[place], mask[place] = slot, True
            given[place] = codes[stream, :, at : at + size]
            heard[place] = pcm[stream, at * hop : (at + size) * hop + ahead]
        idle = [s for s in live if s not in chosen]
        for place, stream in zip([p for p in places if not mask[p]], idle, strict=False):
            rows[place] = live[stream][0]
        sound, seen = company.step(rows, mask, given, heard)
        for place, stream in zip(places, chosen, strict=False):
            slot, count = live.pop(stream)
            done[stream].append((place, sound[place].clone(), seen[place].clone()))
            if count + 1 < hops:
                live[stream] = (slot, count + 1)
            else:
                free.append(slot)
    for stream, outputs in done.items():
        for place in {place for place, _, _ in outputs}:
            alone = run_alone(codec, codes[stream], pcm[stream], sizes, batch, place)
            for (row, sound, seen), (want_sound, want_seen) in zip(outputs, alone, strict=True):
                assert torch.isfinite(sound).all()
                assert torch.equal(seen, want_seen)
                if row == place:
                    torch.testing.assert_close(sound, want_sound, rtol=1e-6, atol=1e-6)
    constant = {s for s, o in done.items() if len({place for place, _, _ in o}) == 1}
    for stream in constant:
        place = done[stream][0][0]
        alone = run_alone(codec, codes[stream], pcm[stream], sizes, batch, place)
        for (_, sound, _), (want, _) in zip(done[stream], alone, strict=True):
            assert torch.equal(sound, want)


@pytest.mark.parametrize("kind", KINDS)
def test_a_masked_row_advances_nothing(codecs: Get, kind: str) -> None:
    codec = codecs(kind)
    slots = Batch(codec, 2)
    size = codec.spec.first_hop_frames
    codes, pcm = draw_codes(codec, size), with_lookahead(codec, draw_pcm(codec, size))
    slots.step([0, 1], [True, True], codes, pcm)
    before = [
        {name: t[:2].clone() for name, t in state.tensors.items()} for state in slots.states()
    ]
    slots.step([0, 1], [False, False], codes, torch.full_like(pcm, float("nan")))
    codec.decode_flush(slots.decoder, torch.tensor([0, 1]), torch.tensor([True, False]))
    for state, saved in zip(slots.states(), before, strict=True):
        for name, tensor in state.tensors.items():
            assert torch.equal(tensor[:2], saved[name]), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_reset_slot_equals_a_fresh_one_bit_for_bit(codecs: Get, kind: str) -> None:
    codec = codecs(kind)
    fresh, used = Batch(codec, 2), Batch(codec, 2)
    used.poison(0, 1, 2)
    used.reset(1)
    for state, other in zip(fresh.states(), used.states(), strict=True):
        for name, tensor in state.tensors.items():
            assert torch.equal(tensor[1], other.tensors[name][1]), name
    size = codec.spec.first_hop_frames
    codes = draw_codes(codec, size, batch=1)
    pcm = with_lookahead(codec, draw_pcm(codec, size, batch=1))
    for got, want in zip(
        used.step([1], [True], codes, pcm), fresh.step([1], [True], codes, pcm), strict=True
    ):
        assert torch.equal(got, want)


@pytest.mark.parametrize("kind", KINDS)
def test_state_has_fixed_addresses_and_a_price(codecs: Get, kind: str) -> None:
    codec = codecs(kind)
    slots = Batch(codec, 3)
    addresses = [t.data_ptr() for s in slots.states() for t in s.tensors.values()]
    size = codec.spec.first_hop_frames
    codes, pcm = draw_codes(codec, size), with_lookahead(codec, draw_pcm(codec, size))
    slots.step([2, 0], [True, True], codes, pcm)
    slots.reset(2)
    assert addresses == [t.data_ptr() for s in slots.states() for t in s.tensors.values()]
    for state in slots.states():
        assert state.nbytes == 4 * state.bytes_per_slot > 0


@pytest.mark.parametrize("kind", KINDS)
def test_steps_that_do_not_fit_are_refused(codecs: Get, kind: str) -> None:
    codec = codecs(kind)
    spec = codec.spec
    state, mask = codec.decoder_state(1, 2), everyone(1)
    with pytest.raises(ValueError, match=r"a step of 3 frames, the state holds 1\.\.2"):
        codec.decode_step(draw_codes(codec, 3, batch=1), state, None, mask)
    too_deep = torch.zeros(1, spec.codebook_count + 1, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match=f"{spec.codebook_count + 1} codebooks"):
        codec.decode_step(too_deep, state, None, mask)
    heard = codec.encoder_state(1, 2)
    with pytest.raises(ValueError, match="samples are not frames"):
        codec.encode_step(torch.zeros(1, spec.frame_samples - 1), heard, None, mask)
    whole = torch.zeros(1, spec.frame_samples + spec.encode_lookahead_samples)
    with pytest.raises(ValueError, match="codebooks is 0"):
        codec.encode_step(whole, heard, None, mask, codebooks=0)
