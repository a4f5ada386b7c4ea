"""Piper voices through onnxruntime. Imported by the model process only."""
