"""From raw files to a dataset of token shards: `tokenize(inputs, out)`.

config      what decides the content of a dataset
encode      raw samples to token ids
workers     encoding in several processes
folder      the output folder: plan, journal, manifest
run         the loop over batches and shards
"""

from triptych.data.tokenize.config import TokenizeConfig, TokenizeFailed
from triptych.data.tokenize.progress import Progress
from triptych.data.tokenize.run import build_dataset, tokenize

__all__ = ["Progress", "TokenizeConfig", "TokenizeFailed", "build_dataset", "tokenize"]
