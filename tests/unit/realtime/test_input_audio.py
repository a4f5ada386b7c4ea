"""The input buffer loses no byte and uses none twice, whatever the cuts."""

from __future__ import annotations

from antiphon_gateway.realtime.formats import Pcm, Pcmu
from antiphon_gateway.realtime.input_audio import InputBuffer
from hypothesis import given, settings
from hypothesis import strategies as st

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 9_001)),
        st.tuples(st.just("take"), st.integers(0, 400)),
        st.tuples(st.just("trim"), st.integers(0, 100)),
        st.tuples(st.just("all"), st.just(0)),
        st.tuples(st.just("clear"), st.just(0)),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(OPERATIONS, st.sampled_from([Pcm(), Pcm(rate=8000), Pcmu()]))
def test_bytes_in_are_used_plus_dropped_plus_held(
    operations: list[tuple[str, int]], form: Pcm | Pcmu
) -> None:
    buffer = InputBuffer(form)
    fed = bytearray()
    used = bytearray()
    for name, number in operations:
        if name == "append":
            piece = bytes((len(fed) + i) * 31 % 251 for i in range(number))
            fed += piece
            buffer.append(piece)
        elif name == "take":
            start = buffer.start_ms + number // 2
            used += buffer.take(start, start + number)
        elif name == "trim":
            buffer.trim(number)
        elif name == "all":
            used += buffer.take_all()
        else:
            buffer.clear()
        assert buffer.received == len(fed)
        assert buffer.received == buffer.used + buffer.dropped + len(buffer)
        assert buffer.used == len(used)
        assert buffer.content() == bytes(fed[len(fed) - len(buffer) :])


@settings(deadline=None)
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=30))
def test_a_turn_is_the_same_whatever_the_cuts(cuts: list[int]) -> None:
    data = bytes(i * 7 % 256 for i in range(48_000))
    whole = InputBuffer(Pcm())
    whole.append(data)
    pieces = InputBuffer(Pcm())
    position = 0
    for cut in cuts:
        pieces.append(data[position : position + cut])
        position += cut
    pieces.append(data[position:])
    assert whole.take(100, 700) == pieces.take(100, 700)
    assert whole.take(700, 5000) == pieces.take(700, 5000)
