"""Opens ONNX models on the processor, for voices, detectors, judges and speaker models."""

from __future__ import annotations

from pathlib import Path

import onnxruntime

_ERRORS_ONLY = 3


class ModelUnloadable(Exception):
    """onnxruntime refuses the model; the text says why."""


def open_session(
    model: Path | bytes, threads: int = 1, *, lengths_vary: bool = False
) -> onnxruntime.InferenceSession:
    """A session whose runs take the caller's thread and ``threads - 1`` of its own.

    Args:
        model: a file, or a serialized model.
        threads: of one run; they sleep between runs.
        lengths_vary: every run may have shapes of its own, whose remembered allocation patterns
            would pile up.

    Raises:
        ModelUnloadable: naming what is wrong.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = not lengths_vary
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = _ERRORS_ONLY
    source = model if isinstance(model, bytes) else str(model)
    try:
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no common base but this
        raise ModelUnloadable(str(error)) from error
