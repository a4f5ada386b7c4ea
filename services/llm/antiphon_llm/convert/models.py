"""The served model."""

from __future__ import annotations

from antiphon.common.v1 import audio_pb2
from antiphon.llm.v1 import generate_pb2, llm_service_pb2

from antiphon_llm.front.model import ModelCard


def model(card: ModelCard) -> llm_service_pb2.Model:
    """The served model, or an adapter of it."""
    writes = [generate_pb2.MODALITY_TEXT]
    code_format = None
    if (spec := card.output) is not None:
        writes.append(generate_pb2.MODALITY_AUDIO)
        code_format = audio_pb2.CodeFormat(
            codec=spec.codec, codebook_count=spec.codebook_count, frame_rate=spec.frame_rate
        )
    return llm_service_pb2.Model(
        id=card.name,
        architecture=card.architecture,
        context_limit=card.context_limit,
        vocabulary_size=card.vocabulary_size,
        input_modalities=[generate_pb2.MODALITY_TEXT],
        output_modalities=writes,
        code_format=code_format,
        quantisation=card.quantisation,
        tokenizer_fingerprint=card.tokenizer_fingerprint,
        fingerprint=card.fingerprint,
        chat=card.chat,
        parameter_count=card.parameter_count,
        aliases=card.aliases,
        created_at_seconds=int(card.loaded_at),
        base_model=card.base_model,
        tenant=card.tenant,
        shared=card.shared,
    )
