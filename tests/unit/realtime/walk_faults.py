"""What goes wrong in a walk: backends that die or refuse, and frames that are no events."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from antiphon_gateway.realtime import inputs
from antiphon_gateway.realtime.errors import BackendFailure

if TYPE_CHECKING:
    from walk import Walk

DIED = BackendFailure("server_error", "bad_gateway", "died")
TOO_LONG = BackendFailure("invalid_request_error", "context_length_exceeded", "too long")


def break_reply(name: str, said: list[inputs.Report], draw: random.Random) -> list[inputs.Report]:
    """What a reply's backends say, which a fault may cut."""
    fault = draw.random()
    if fault < 0.15:
        # The call breaks: what was on its way is lost, and the client helper says why.
        return [*said[: draw.randrange(len(said))], inputs.ReplyFailed(name, DIED)]
    if fault < 0.25:
        return [inputs.ReplyFailed(name, TOO_LONG, 50, 100)]
    return said


def break_recogniser(walk: Walk) -> None:
    """The recogniser's stream breaks, or ends because no audio came."""
    idle = walk.random.random() < 0.5
    ear = walk.backends.ear
    if walk.state.recognizer_open:
        ear.messages.clear()
        ear.speaking = False
        walk.read()
        walk.judge.turn_may_be_over = True
        walk.feed(inputs.RecognizerFailed(ear.epoch, DIED, idle))


def garbage(walk: Walk) -> None:
    """The client sends what is no event."""
    walk.client(type="nonsense")
