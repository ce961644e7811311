"""Totals of the paper's 3B run. Tokens never count padding: 1M steps of 3,072 rows of 3,256 have 10T positions."""

SEQ_LEN = 3256  # 30 s of audio in 4 codebooks at 25 frames/s, and 256 positions of text
STEPS, BATCH = 1_000_000, 3072
SEQUENCES = STEPS * BATCH
TOKENS = 6.4e12
MEAN_TOKENS = TOKENS / SEQUENCES
"""Tokens per sequence, over a mixture of equal parts of text, image-text and audio-text."""
