"""From written text to phoneme ids: cutting, cleaning, phonemes."""
