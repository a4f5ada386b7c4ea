"""Recognition of the whisper class: rules, and the engines that run models."""
