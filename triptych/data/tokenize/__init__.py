"""From raw files to a data set of token shards: `tokenize(settings, out)`."""

from triptych.data.tokenize.progress import Progress
from triptych.data.tokenize.run import tokenize
from triptych.data.tokenize.settings import RunFailed, TokenizeSettings

__all__ = ["Progress", "RunFailed", "TokenizeSettings", "tokenize"]
