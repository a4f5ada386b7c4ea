"""What of a too long conversation goes first, and that no more goes than must."""

from __future__ import annotations

import pytest
from antiphon_gateway.domain.generation import Message, Role, ToolCall
from antiphon_gateway.domain.truncation import removable, shortened, without
from hypothesis import given
from hypothesis import strategies as st

CALL = (ToolCall("c", "f", "{}"),)
LETTERS = {"s": Role.SYSTEM, "d": Role.DEVELOPER, "u": Role.USER, "a": Role.ASSISTANT}


def conversation(letters: str) -> list[Message]:
    """One message a letter; ``t`` is a tool result."""
    return [
        Message(LETTERS.get(letter, Role.TOOL), (f"{letter}{index}",))
        for index, letter in enumerate(letters)
    ]


def text_of(messages: tuple[Message, ...]) -> str:
    return " ".join(str(message.parts[0]) for message in messages)


@pytest.mark.parametrize(
    ("letters", "groups"),
    [
        ("u", []),
        ("suau", [[1, 2]]),
        ("auau", [[0], [1, 2]]),
        ("uatatau", [[0, 1, 2, 3, 4, 5]]),
        ("uauatata", [[0, 1], [3, 4], [5, 6]]),
        ("uattat", [[1, 2, 3]]),
        ("ususa", [[0]]),
        ("atat", [[0, 1]]),
        ("", []),
    ],
)
def test_the_oldest_turns_go_first(letters: str, groups: list[list[int]]) -> None:
    assert removable(conversation(letters)) == groups


@given(st.text("suatd", min_size=1, max_size=24), st.data())
async def test_any_cut_is_a_conversation(letters: str, data: st.DataObject) -> None:
    messages = conversation(letters)
    groups = removable(messages)
    cut = groups[: data.draw(st.integers(0, len(groups)))]
    left = without(messages, cut)
    assert left
    # Instructions and the last user message stay, and results follow the calls that they are of.
    assert [m for m in left if m.role in (Role.SYSTEM, Role.DEVELOPER)] == [
        m for m in messages if m.role in (Role.SYSTEM, Role.DEVELOPER)
    ]
    users = [m for m in messages if m.role is Role.USER]
    assert not users or users[-1] in left
    for message in left:
        place = messages.index(message)
        if message.role is Role.TOOL and place:
            assert messages[place - 1] in left or messages[place - 1].role is not Role.ASSISTANT


@given(st.text("uat", min_size=2, max_size=40), st.integers(1, 80))
async def test_no_more_goes_than_must(letters: str, room: int) -> None:
    messages = conversation(letters)
    groups = removable(messages)
    asked = 0

    async def fits(left: tuple[Message, ...]) -> bool:
        nonlocal asked
        asked += 1
        return len(text_of(left)) <= room

    left = await shortened(messages, fits)
    fitting = [n for n in range(1, len(groups) + 1) if await fits(without(messages, groups[:n]))]
    wanted = without(messages, groups[: fitting[0]] if fitting else groups)
    assert left == wanted
    assert asked - len(groups) <= max(1, len(groups)).bit_length()
