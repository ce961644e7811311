"""The built-in toy dataset: scenes that exist as a sentence, an image and speech, so that every direction has an exact
score.

    world, picture, layout, grid       scenes and their splits, what an image shows, where its objects are
    sprites, image                     looks as sprites, pictures as pixels
    captions, questions, parse, ...    what people write about a scene, and how it is read
    voices, speech, spoken, ...        sentences as waveforms in many voices
    samples, write, make               sample i of a split, files on disk, tokenized datasets
    judge, exam, exam_*                exact scores of images and texts, evaluation of a model
    fit, tokenizer_report              the demo tokenizers and what they preserve
    demo, demo_training                `triptych demo`

One generator has two presets (`world.FULL`, `world.SMALL`): images of 128 pixels, or of 64 for cheap studies.
The rest of the package does not import this one; recipes and commands do.
"""
