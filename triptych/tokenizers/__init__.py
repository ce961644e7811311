"""Tokenizers: text, images and audio to token ids of one modality, and back.

    base      the interface `Tokenizer`, and `tokenizer.json`
    text      ByteBPE (trained here), Tiktoken (cl100k_base)
    image     MoVQ (SBER-MoVQGAN and smaller networks of the same class)
    audio     Codec (Higgs Audio v2 and DAC);  mel_rvq: MelRVQ, a small codec fitted on a CPU
    bundle    the tokenizers of a model, with its vocabulary
    paper     a bundle of the paper's tokenizers from their published files

To add a tokenizer:
    1. write a class with the methods of `base.Tokenizer` and its own `kind` string,
    2. add one case for that kind to `load_text_tokenizer`, `load_image_tokenizer` or `load_audio_tokenizer`,
    3. test it in `tests/tokenizers`: round trip, independence of the batch, save and load.
"""
