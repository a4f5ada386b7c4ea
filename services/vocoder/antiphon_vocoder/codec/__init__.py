"""RVQ codecs as torch modules: Mimi, EnCodec, DAC and the 31-codebook RVQ-VAE.

``contract`` is what the speech process builds against; everything here needs torch, so the
front imports none of it.
"""
