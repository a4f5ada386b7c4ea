"""faster-whisper and piper-tts in a process of their own, which has those packages.

Runs with the Python that has them (``make bench-speech-cpu PEER_PYTHON=...``), so it imports
nothing of Antiphon. One JSON object a line: ``{"recognise": path of a float32 file}`` answers
seconds and text, ``{"speak": text}`` the seconds to the first and to all audio, its length and the
processor time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import numpy as np


def main() -> None:
    """Entry of the process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--whisper", required=True, help="CTranslate2 directory")
    parser.add_argument("--voice", required=True, help="Piper ONNX file")
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    from faster_whisper import WhisperModel  # pyright: ignore[reportMissingImports]
    from piper import PiperVoice  # pyright: ignore[reportMissingImports]

    whisper = WhisperModel(
        options.whisper, device="cpu", compute_type="int8", cpu_threads=options.threads
    )
    voice = PiperVoice.load(options.voice)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        began, cpu = time.perf_counter(), time.process_time()
        if "recognise" in asked:
            audio = np.fromfile(asked["recognise"], np.float32)
            segments, _ = whisper.transcribe(audio, language="en", beam_size=asked["beams"])
            answer: dict[str, object] = {"text": "".join(one.text for one in segments)}
        else:
            seconds, first = 0.0, 0.0
            for one in voice.synthesize(asked["speak"]):
                seconds += len(one.audio_int16_array) / one.sample_rate
                first = first or time.perf_counter() - began
            cpu = time.process_time() - cpu
            answer = {"audio_seconds": seconds, "first": first, "cpu": cpu}
        print(json.dumps(answer | {"seconds": time.perf_counter() - began}), flush=True)


if __name__ == "__main__":
    main()
