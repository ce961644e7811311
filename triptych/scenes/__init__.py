"""The built-in toy dataset: scenes that exist as a sentence, an image and speech, so that every direction has an exact
score.

    grammar, sprites, image, speech    scenes, their captions and questions, 64 x 64 images, waveforms
    samples, write, make               sample i of a split, files on disk, tokenized datasets
    judge, exam                        exact scores of images and captions, evaluation of a model
    fit, tokenizer_report              the demo tokenizers and what they preserve
    demo                               `triptych demo`

The rest of the package does not import this one; recipes and commands do.
"""
