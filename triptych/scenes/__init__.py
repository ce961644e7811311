"""The embedded world: scenes that exist as a sentence, a picture and speech, so that every direction can be judged.

grammar -> captions, questions, documents      sprites, picture -> 64 x 64 pixels
speech  -> waveforms                           judge   -> exact scores
"""
