"""The recipe for anyone's data: everything that depends on the data is read from the datasets.

    triptych train own data=data/photos,data/notes

Tasks are those of the datasets, with equal weights; the tokenizers are those the data were made with; a sequence is as
long as the longest sample; texts and clips have open ends, so the model chooses their lengths; any word is allowed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from triptych.data.loader import LoaderConfig
from triptych.data.sequences import PAIR_SPECIALS, OpenEnds
from triptych.data.shards import TokenDataset
from triptych.diffusion.corrupt import CorruptConfig
from triptych.diffusion.schedule import Cosine, Linear
from triptych.errors import UserError
from triptych.hub.format import Limits, read_config
from triptych.hub.source import BUILTIN_MODELS, check_source, is_run
from triptych.model.transformer import ModelConfig
from triptych.recipes.proxy import INIT_STD, PER_MODULE_TUNED, transfer_from_proxy
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import OptimizerConfig, PromptConfig, RunConfig, ValidationConfig
from triptych.transfer.groups import TransferConfig
from triptych.vocab import Modality, Task

MAX_SEQ_LEN = 1024  # longer texts are cut into pieces; longer clips need loader.seq_len
_TEXT_PIECE = 256  # of text without images or audio, in tokens
_PROXY_TOKENS = 35  # mean tokens of a sequence of the proxy
_EXAMPLES, _EXAMPLE_LENGTH = 4, 200
_COMMON = 99.5  # percentile of lengths that open ends reach


@dataclass(frozen=True)
class Lengths:
    """What the recipe needs to know about the samples."""

    tasks: tuple[Task, ...]
    seq_len: int
    """Positions of the longest sequence."""
    text: int
    """Tokens that nearly all texts fit into; 0 if all are cut."""
    audio: int
    """Tokens that nearly all clips fit into; 0 without audio."""
    mean: float
    """Mean tokens of a sequence, tasks weighted equally."""


def measure(datasets: Sequence[TokenDataset]) -> Lengths:
    """The lengths of all samples, from the shards' offsets; no token is read."""
    texts: list[np.ndarray] = []
    clips: list[np.ndarray] = []
    means: dict[Task, list[np.ndarray]] = {}
    longest = 0
    for dataset in datasets:
        shards = [dataset.shard(number) for number in range(len(dataset.manifest.shards))]
        media = np.concatenate([shard.splits for shard in shards])
        text = dataset.lengths - media
        if dataset.task == Task.TEXT:
            longest = max(longest, min(_TEXT_PIECE, int(text.max(initial=0)) + 3))
            means.setdefault(dataset.task, []).append(np.minimum(text + 3, _TEXT_PIECE))
        else:
            needed = media + text + PAIR_SPECIALS
            longest = max(longest, int(media.max(initial=0)) + PAIR_SPECIALS, int(np.percentile(needed, _COMMON)))
            means.setdefault(dataset.task, []).append(needed)
            texts.append(text)
        if dataset.task == Task.AUDIO_TEXT:
            clips.append(media)
    mean = float(np.mean([np.concatenate(lengths).mean() for lengths in means.values()]))
    return Lengths(tuple(sorted(means)), max(16, longest), _common(texts), _common(clips), mean)


def _common(lengths: Sequence[np.ndarray]) -> int:
    return int(np.percentile(np.concatenate(lengths), _COMMON)) + 2 if lengths else 0


def own(folders: Sequence[str]) -> RunConfig:
    """The configuration for these datasets: a model of 4 layers and width 128 that trains in minutes on a CPU."""
    if not folders:
        raise UserError("the recipe 'own' needs your data: `triptych train own data=data/mine` (docs/your-data.md).")
    datasets = [TokenDataset(folder) for folder in folders]
    lengths = measure(datasets)
    if lengths.seq_len > MAX_SEQ_LEN:
        raise UserError(
            f"the longest sample has {lengths.seq_len} tokens, more than the {MAX_SEQ_LEN} of the recipe 'own'. "
            "Tokenize with a smaller --max-seconds, or fit tokenizers with a larger --factor or fewer --codebooks."
        )
    pairs = [task for task in lengths.tasks if task.partner is not None]
    ends = lengths.text + lengths.audio  # both may be filled in one sequence
    seq_len = max(lengths.seq_len, ends + PAIR_SPECIALS if Task.AUDIO_TEXT in pairs else 0)
    return RunConfig(
        recipe="own",
        tokenizers=_tokenizers(datasets),
        data=tuple(folders),
        prompts=PromptConfig(examples=_examples(datasets)),
        sampling_preset="scenes",
        model=ModelConfig(
            num_layers=4,
            width=128,
            num_heads=8,
            d_ff=344,
            softmax_scope="modality",
            max_learned_positions=min(seq_len, 512),
            init_std=INIT_STD,
        ),
        loader=LoaderConfig(
            seq_len=seq_len,
            global_batch=32,
            task_weights={task.label: 1.0 for task in lengths.tasks},
            document_attention=True,
            mask_text_eos="none",
            held_out=0.05,
            open_ends=OpenEnds(
                probability=0.25 if pairs else 0.0, text=lengths.text, audio=lengths.audio, audio_share=0.4
            ),
        ),
        # As in the recipe `scenes`: users ask for one side of a pair, given the other.
        corrupt=CorruptConfig(
            schedule=Cosine(),
            text_schedule=Linear(),
            p_one_sided=0.8 if pairs else 0.0,
            p_prompt_masked=0.1 if pairs else 0.0,
            p_text_end=0.5,
        ),
        optimizer=replace(PER_MODULE_TUNED, warmup_steps=100),
        transfer=replace(transfer_from_proxy(), base_seq_len=max(1, round(_PROXY_TOKENS * seq_len / lengths.mean))),
        norm="masked",
        num_steps=2000,
        ema_decay=0.995,
        validation=ValidationConfig(every=500, sequences=128, draws=2),
        save_every=250,
    )


def _examples(datasets: Sequence[TokenDataset]) -> tuple[str, ...]:
    """A few texts of the data, which TensorBoard shows as images and speech."""
    pairs = next((dataset for dataset in datasets if dataset.task != Task.TEXT and len(dataset)), None)
    if pairs is None:
        return ()
    bundle = TokenizerBundle.load(_tokenizers(datasets))
    if Modality.TEXT not in bundle:
        return ()
    chosen = np.unique(np.linspace(0, len(pairs) - 1, _EXAMPLES).astype(int))
    texts = bundle.text.decode([pairs[int(index)].text for index in chosen])
    return tuple(dict.fromkeys(text for text in texts if len(text) <= _EXAMPLE_LENGTH))


def _tokenizers(datasets: Sequence[TokenDataset]) -> str:
    """Where the tokenizers of the data are."""
    names = {str(dataset.manifest.settings.get("tokenizers", "")) for dataset in datasets}
    if len(names) > 1:
        listed = ", ".join(f"{dataset.folder} ({dataset.manifest.settings.get('tokenizers')})" for dataset in datasets)
        raise UserError(f"the datasets were made with different tokenizers: {listed}. Tokenize them with the same.")
    name = names.pop()
    if not name:
        raise UserError(f"{datasets[0].folder} does not say what tokenizers it was made with; set tokenizers=FOLDER.")
    return name


def fine_tuned(config: RunConfig, name: str) -> RunConfig:
    """The configuration that continues a saved model on the same data: its shape, limits and prompts, a low rate.

    The word list is cleared, because the data may bring new words.
    """
    check_source(name)
    folder = BUILTIN_MODELS.get(name, Path(name))
    if is_run(folder):
        raise UserError(f"init_from={name} is a run; export it first: `triptych export {name} --out MODEL`.")
    saved = read_config(folder)
    limits, loader = Limits.from_json(saved["limits"]), config.loader
    ends = replace(
        loader.open_ends,
        probability=0.25,
        text=max(loader.open_ends.text, limits.text_slot or 0),
        audio=max(loader.open_ends.audio, limits.audio_slot or 0),
    )
    room = max(ends.text, ends.audio) + PAIR_SPECIALS
    return replace(
        config,
        model=ModelConfig(**saved["model"]),
        loader=replace(loader, seq_len=max(loader.seq_len, limits.seq_len, room), open_ends=ends),
        prompts=replace(
            config.prompts,
            caption_prompt=limits.caption_prompt,
            transcript_prompt=limits.transcript_prompt,
            voices=limits.voices,
            voice_request=limits.voice_request,
        ),
        sampling_preset=saved["presets"],
        optimizer=OptimizerConfig(lr=3e-4, beta1=0.9, beta2=0.98, weight_decay=0.01, clip=1.0, warmup_steps=50),
        transfer=TransferConfig(),
        num_steps=1000,
        ema_decay=0.99,
    )
