"""Before a dataset is made: whether its tokenizers can represent the samples at all."""

from itertools import islice

from PIL import Image

from triptych.data.fit.samples import spread
from triptych.data.sources import Source
from triptych.data.types import RawSample
from triptych.errors import UserError
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.utils.media import Audio, read_audio, read_image
from triptych.vocab import Task

_SAMPLES = 12
_MAX_SECONDS = 10.0


def check_reconstruction(source: Source, bundle: TokenizerBundle) -> str | None:
    """A warning if a few samples are reconstructed much worse than what the tokenizers were fitted to."""
    if source.task == Task.TEXT:
        return None
    from triptych.tokenizers.reconstruction import poor_reconstruction, read_report

    if not read_report(bundle):
        return None
    images: list[Image.Image] = []
    clips: list[Audio] = []
    for item in islice(spread(source, _SAMPLES, seed=0), _SAMPLES):
        if not isinstance(item, RawSample) or item.media is None:
            continue
        try:
            if source.task == Task.IMAGE_TEXT:
                images.append(read_image(item.media))
            else:
                clips.append(read_audio(item.media, item.offset_seconds, max_seconds=_MAX_SECONDS, too_long="cut"))
        except UserError:
            continue
    return poor_reconstruction(bundle, images, clips) if images or clips else None
