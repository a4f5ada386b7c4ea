"""Recognition of the whisper class on CTranslate2."""
