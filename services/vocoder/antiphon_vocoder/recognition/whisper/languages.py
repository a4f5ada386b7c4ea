"""Languages of the multilingual whisper models."""

_CODES = """
af am ar as az ba be bg bn bo br bs ca cs cy da de el en es et eu fa fi fo fr gl gu ha haw he hi hr
ht hu hy id is it ja jw ka kk km kn ko la lb ln lo lt lv mg mi mk ml mn mr ms mt my ne nl nn no oc
pa pl ps pt ro ru sa sd si sk sl sn so sq sr su sv sw ta te tg th tk tl tr tt uk ur uz vi yi yo yue
zh
"""

LANGUAGES = tuple(_CODES.split())
"""ISO 639-1 codes, and haw and yue, which have none; of yue only the latest models have a token."""
