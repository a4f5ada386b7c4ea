"""The tokens of one output that are speech, as whole frames of codes."""

from __future__ import annotations

from antiphon_core import metrics

from antiphon_llm.front.events import CodeRun
from antiphon_llm.output_spec import OutputSpec


class SpeechCodes:
    """Sorts speech tokens out of one output and gathers their frames until they are taken.

    A frame may go on behind text: models that write words and frames by turns cut where they like.
    A code in the place of another codebook cannot be decoded; it and the begun frame are dropped
    and counted, and a code of the first codebook begins the next frame.

    Args:
        spec: of the model.
    """

    __slots__ = ("_frame", "_frames", "_spec", "token_count")

    def __init__(self, spec: OutputSpec) -> None:
        self._spec = spec
        self._frame: list[int] = []
        self._frames: list[int] = []
        self.token_count = 0
        """Code tokens that came, dropped ones included."""

    def push(self, token_id: int) -> bool:
        """Takes a token; whether it is speech, and so no text."""
        spec = self._spec
        if token_id in spec.markers:
            self.finish()
            return True
        if token_id not in spec.code_ids:
            return False
        self.token_count += 1
        if not self._add(token_id):
            self._drop()
            self._add(token_id)
        return True

    def take(self) -> CodeRun | None:
        """The frames that were completed since the last call; None for none."""
        if not self._frames:
            return None
        codes, self._frames = self._frames, []
        return CodeRun(codes, self._spec.codebook_count, self._spec.frame_rate)

    def finish(self) -> None:
        """A run of speech ends: what its last frame lacks does not come."""
        if self._frame:
            self._drop()

    def _add(self, token_id: int) -> bool:
        """Appends the token to the frame if it is a code of the codebook whose turn it is."""
        code = token_id - self._spec.first_code_ids[len(self._frame)]
        if not 0 <= code < self._spec.codebook_size:
            return False
        self._frame.append(code)
        if len(self._frame) == self._spec.codebook_count:
            self._frames += self._frame
            self._frame.clear()
        return True

    def _drop(self) -> None:
        metrics.fallback("speech_codes", "frame_dropped")
        self._frame.clear()
