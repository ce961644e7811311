"""Tokenizers fitted to anyone's files: `fit_tokenizers(inputs, out)`.

config      what decides the result, and the sizes that are chosen by the data
samples     a bounded number of samples from the inputs, some of them held out
run         the fits, one after another, each resumable
"""

from triptych.data.fit.config import FitConfig, Sizes
from triptych.data.fit.run import Fitted, fit_tokenizers
from triptych.data.fit.samples import FitSamples, read_samples

__all__ = ["FitConfig", "FitSamples", "Fitted", "Sizes", "fit_tokenizers", "read_samples"]
