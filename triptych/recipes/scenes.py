"""Recipes for the built-in toy dataset (triptych.scenes), sized for a CPU."""

from dataclasses import replace

from triptych.data.loader import LoaderConfig
from triptych.data.pack import Packed
from triptych.data.sequences import OpenEnds
from triptych.diffusion.corrupt import CorruptConfig
from triptych.diffusion.schedule import Cosine, Linear
from triptych.model.transformer import ModelConfig
from triptych.recipes.proxy import INIT_STD, PER_MODULE_TUNED, transfer_from_proxy
from triptych.scenes.spoken import TRANSCRIPT_PROMPT, VOICE_REQUEST
from triptych.scenes.styles import CAPTION_PROMPT
from triptych.scenes.vocabulary import model_words
from triptych.scenes.voices import SPEAKING_VOICES
from triptych.scenes.world import SMALL
from triptych.training.config import PromptConfig, RunConfig, ValidationConfig

EXAMPLES = (
    "a purple cat",
    "three red hearts at night",
    "a small dog left of a big blue car",
    "a fox, two whales and a green umbrella on the grass",
)
SMALL_EXAMPLES = ("a cat", "three red hearts", "a dog left of a blue car", "a green hat and a yellow circle")
TASKS = ("text", "image-text", "audio-text")


def scenes() -> RunConfig:
    """The demo model: the preset `small` of the toy dataset, images of 64 x 64 pixels and one voice."""
    return RunConfig(
        recipe="scenes",
        prompts=PromptConfig(
            words=model_words(SMALL), caption_prompt=CAPTION_PROMPT, examples=SMALL_EXAMPLES, reader="scenes-small"
        ),
        sampling_preset="scenes",
        model=ModelConfig(
            num_layers=6,
            width=192,
            num_heads=4,
            d_ff=512,
            softmax_scope="modality",
            max_learned_positions=120,
            init_std=INIT_STD,
        ),
        loader=LoaderConfig(
            seq_len=144,
            global_batch=48,
            layout=Packed(row_length=144),
            task_weights={"text": 0.04, "image-text": 0.84, "audio-text": 0.12},
            document_attention=True,
            mask_text_eos="none",
            open_ends=OpenEnds(probability=0.25, text=20, audio=116, audio_share=0.4),
        ),
        # Users ask for conditional generation, and a shared time hardly ever trains it: hence p_one_sided.
        # A prompt matters most while nearly everything is masked: the cosine schedule is there three times as often.
        corrupt=CorruptConfig(
            schedule=Cosine(), text_schedule=Linear(), p_one_sided=0.8, p_prompt_masked=0.1, p_text_end=0.5
        ),
        # Tuned on the proxy, which trains in 15 seconds: docs/transfer.md.
        optimizer=replace(PER_MODULE_TUNED, warmup_steps=500),
        transfer=transfer_from_proxy(),
        # Bounded loss weights (docs/decisions/0010): a caption is so short that a weight of 1 / t is mostly noise.
        norm="masked",
        num_steps=26_000,
        ema_decay=0.999,
        data=_datasets("scenes", "train"),
        validation_data=_datasets("scenes", "validation"),
        validation=ValidationConfig(every=1000, sequences=256, draws=2),
        save_every=500,
    )


def scenes_full() -> RunConfig:
    """Text, images of 128 x 128 pixels and speech in 25 voices: the preset `full` of the toy dataset."""
    run = scenes()
    return replace(
        run,
        recipe="scenes_full",
        prompts=PromptConfig(
            words=model_words(),
            caption_prompt=CAPTION_PROMPT,
            transcript_prompt=TRANSCRIPT_PROMPT,
            voices=SPEAKING_VOICES,
            voice_request=VOICE_REQUEST,
            examples=EXAMPLES,
            reader="scenes-full",
        ),
        # Two hours of a core. Heads of 64: on a CPU, softmax and rotations of more heads cost more than they gain.
        model=replace(run.model, num_layers=6, width=192, num_heads=3, d_ff=512, max_learned_positions=432),
        loader=replace(
            run.loader,
            seq_len=648,  # the longest of 82,000 sequences of speech and text has 636 tokens
            global_batch=48,
            layout=Packed(row_length=648),
            task_weights={"text": 0.05, "image-text": 0.72, "audio-text": 0.23},
            open_ends=OpenEnds(probability=0.25, text=32, audio=426, audio_share=0.4),
        ),
        # Sequences have 4.4 times as many tokens as the proxy's: 155 to 35. Counting tokens gave a lower loss than
        # counting sequences in two runs of 460 steps on the same batches.
        transfer=replace(run.transfer, base_seq_len=146),
        num_steps=7_000,
        tokenizers="scenes-full",
        data=_datasets("scenes-full", "train"),
        validation_data=_datasets("scenes-full", "validation"),
    )


def _datasets(folder: str, split: str) -> tuple[str, ...]:
    return tuple(f"data/{folder}/{split}/{task}" for task in TASKS)


def nano() -> RunConfig:
    """A model that trains in a minute, to see the loss fall."""
    run = scenes()
    return replace(
        run,
        recipe="nano",
        model=replace(run.model, num_layers=3, width=128, num_heads=4, d_ff=320),
        loader=replace(run.loader, global_batch=16),
        num_steps=300,
        ema_decay=0.98,
        optimizer=replace(run.optimizer, warmup_steps=50),
        validation=ValidationConfig(every=100, sequences=32, draws=1),
        log_every=10,
    )
