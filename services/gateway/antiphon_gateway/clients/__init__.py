"""The backends as the routes and the realtime sessions see them: domain types only."""

from __future__ import annotations

from antiphon_gateway.clients.backends import Backends, LlmClient, RecognizerClient, VocoderClient
from antiphon_gateway.clients.llm import GenerationStream
from antiphon_gateway.clients.recognition import FileRecognitionStream, RecognitionStream
from antiphon_gateway.clients.speech import SpeechStream

__all__ = [
    "Backends",
    "FileRecognitionStream",
    "GenerationStream",
    "LlmClient",
    "RecognitionStream",
    "RecognizerClient",
    "SpeechStream",
    "VocoderClient",
]
