"""The recipe for anyone's data: everything that depends on the data is read from the datasets.

    triptych train own data=data/photos,data/notes

Tasks are those of the datasets, with equal weights; the tokenizers are those the data were made with; a sequence is as
long as the longest sample; texts and clips have open ends, so the model chooses their lengths; any word is allowed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from triptych.data.loader import Loader, LoaderConfig, common_vocabulary
from triptych.data.mix import source_weights
from triptych.data.sequences import DOCUMENT_SPECIALS, PAIR_SPECIALS, OpenEnds
from triptych.data.shards import TokenDataset, dataset_names
from triptych.diffusion.corrupt import CorruptConfig
from triptych.diffusion.schedule import Cosine, Linear
from triptych.errors import UserError
from triptych.hub.format import Limits, read_config
from triptych.hub.source import BUILTIN_MODELS, check_source, is_run
from triptych.model.transformer import ModelConfig
from triptych.recipes.proxy import INIT_STD, PER_MODULE_TUNED, shape_of, transfer_from_proxy
from triptych.tokenizers.bundle import BUILTIN_TOKENIZERS, TokenizerBundle
from triptych.training.config import OptimizerConfig, PromptConfig, RunConfig, ValidationConfig
from triptych.transfer.groups import TransferConfig
from triptych.vocab import Modality, Task

MAX_SEQ_LEN = 2048  # unless loader.seq_len is given; 30 s of audio with two codebooks have 1,500 tokens
_TEXT_PIECE = 256  # tokens of a long text that attend to each other, where media do not need longer sequences
_PROXY_TOKENS = 35  # mean tokens of a sequence of the proxy
_EXAMPLES, _EXAMPLE_LENGTH = 4, 200
REPLAY, REPLAY_SHARE = "replay", "replay_share"
"""Settings of the recipe besides the fields of a `RunConfig`: see `with_replay`."""
_COMMON = 99.5  # percentile of lengths that open ends reach


@dataclass(frozen=True)
class Lengths:
    """What the recipe needs to know about the samples."""

    tasks: tuple[Task, ...]
    seq_len: int
    """Positions of a sequence: all media fit, and nearly all texts of pairs; longer texts are cut."""
    text: int
    """Tokens that nearly all texts of pairs fit into, and all responses with prompts, EOS included; 0 without any."""
    audio: int
    """The same for audio clips."""
    mean: float
    """Mean tokens of a sequence, tasks weighted equally."""


def measure(datasets: Sequence[TokenDataset], seq_len: int | None = None) -> Lengths:
    """The lengths of all samples, from the shards' offsets; no token is read. `seq_len` is chosen unless given."""
    media: dict[Task, list[np.ndarray]] = {}
    texts: dict[Task, list[np.ndarray]] = {}
    prompted: dict[Task, list[np.ndarray]] = {}  # prompts with their responses
    for dataset in datasets:
        shards = [dataset.shard(number) for number in range(len(dataset.manifest.shards))]
        of_media = np.concatenate([np.zeros(0, np.int64), *(shard.splits for shard in shards)])
        of_text = dataset.lengths - of_media
        media.setdefault(dataset.task, []).append(of_media)
        texts.setdefault(dataset.task, []).append(of_text)
        has_prompt = np.concatenate([np.zeros(0, bool), *(shard.prompts > 0 for shard in shards)])
        if has_prompt.any():
            prompted.setdefault(dataset.task, []).append(of_text[has_prompt])
    pairs = [task for task in texts if task.partner is not None]
    # A response ends where the model chooses, also without media. Prompts are counted apart from captions, which may be
    # many more and shorter.
    responses = {task: _common(lengths) for task, lengths in prompted.items()}
    text = max([*(_common(texts[task]) for task in pairs), *responses.values()], default=0)
    audio = _common(media[Task.AUDIO_TEXT]) if Task.AUDIO_TEXT in media else 0
    most_media = {task: max(int(of.max(initial=0)) for of in media[task]) for task in texts}
    # Room for the media and for texts that are filled up to the end of their slot.
    longest = [most_media[task] + max(min(text, _TEXT_PIECE), responses.get(task, 0)) for task in pairs]
    if Task.TEXT in texts:
        longest_text = max(int(of.max(initial=0)) for of in texts[Task.TEXT]) + DOCUMENT_SPECIALS
        longest.append(max(min(_TEXT_PIECE, longest_text), responses.get(Task.TEXT, 0)))
    longest += [dataset.manifest.longest_prompted for dataset in datasets]
    longest.append(audio + min(text, _TEXT_PIECE) if audio else 0)  # both ends may be open
    chosen = seq_len or max(16, max(longest) + PAIR_SPECIALS)
    room = chosen - PAIR_SPECIALS
    least_media = min((most_media[task] for task in {*pairs, *prompted}), default=0)
    means = [
        np.minimum(np.concatenate(media[task]) + np.concatenate(texts[task]) + PAIR_SPECIALS, chosen).mean()
        for task in texts
    ]
    slot = max(0, min(text, room - least_media))
    return Lengths(tuple(sorted(texts)), chosen, slot, min(audio, room), float(np.mean(means)))


def _common(lengths: Sequence[np.ndarray]) -> int:
    return int(np.percentile(np.concatenate(lengths), _COMMON)) + 2


def own(folders: Sequence[str], tokenizers: str | None = None, seq_len: str | None = None) -> RunConfig:
    """The configuration for these datasets: a model of 4 layers and width 128 that trains in minutes on a CPU.

    `tokenizers` and `seq_len` are given where the data do not decide them.
    """
    if not folders:
        raise UserError("the recipe 'own' needs your data: `triptych train own data=data/mine` (docs/your-data.md).")
    datasets = [TokenDataset(folder) for folder in folders]
    tokenizers = tokenizers or _tokenizers(datasets)
    given = int(seq_len) if seq_len is not None and seq_len.isdecimal() else None
    lengths = measure(datasets, given)
    if given is None and lengths.seq_len > MAX_SEQ_LEN:
        raise UserError(
            f"the longest sample needs {lengths.seq_len} positions, more than {MAX_SEQ_LEN}. Set loader.seq_len="
            f"{lengths.seq_len}, leave out the longest prompts, tokenize with a smaller --max-seconds, or fit "
            "tokenizers with a larger --factor or fewer --codebooks."
        )
    pairs = [task for task in lengths.tasks if task.partner is not None]
    return RunConfig(
        recipe="own",
        tokenizers=tokenizers,
        data=tuple(folders),
        prompts=PromptConfig(examples=_examples(datasets, tokenizers)),
        sampling_preset="scenes",
        model=ModelConfig(
            **shape_of(128),
            softmax_scope="modality",
            max_learned_positions=min(lengths.seq_len, 512),
            init_std=INIT_STD,
        ),
        loader=LoaderConfig(
            seq_len=lengths.seq_len,
            global_batch=32,
            task_weights={task.label: 1.0 for task in lengths.tasks},
            document_attention=True,
            mask_text_eos="none",
            held_out=0.05,
            open_ends=OpenEnds(
                probability=0.25 if lengths.text else 0.0, text=lengths.text, audio=lengths.audio, audio_share=0.4
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
        transfer=replace(
            transfer_from_proxy(), base_seq_len=max(1, round(_PROXY_TOKENS * lengths.seq_len / lengths.mean))
        ),
        norm="masked",
        num_steps=2000,
        ema_decay=0.995,
        validation=ValidationConfig(every=500, sequences=128, draws=2),
        save_every=250,
    )


def with_replay(config: RunConfig, replay: Sequence[str], share: str | None) -> RunConfig:
    """The configuration with older data mixed in, so that a model that learns new data does not forget the old.

    `share` is the part of the sequences that comes from the datasets of `replay`. Within the new and within the old
    data, tasks keep their weights, and datasets of a task count by their number of sequences.
    """
    if not replay:
        if share is not None:
            raise UserError(f"{REPLAY_SHARE} needs older data: {REPLAY}=FOLDER.")
        return config
    part = _share_of(share)
    if not config.data:
        raise UserError("the recipe 'own' needs new data beside the older: data=FOLDER.")
    if twice := set(map(_resolved, replay)) & set(map(_resolved, config.data)):
        raise UserError(f"{sorted(twice)[0]} is in data and in {REPLAY}; leave it out of one of them.")
    if config.loader.dataset_weights:
        raise UserError(f"{REPLAY} sets loader.dataset_weights; leave them out.")
    folders = (*config.data, *replay)
    datasets = [TokenDataset(folder) for folder in folders]
    names, tasks = dataset_names(datasets), [dataset.task for dataset in datasets]
    with Loader(datasets, replace(config.loader, prefetch=0), one_pass=True) as loader:
        sizes = [len(source) for source in loader.builder.sources]
    source_weights(names, tasks, sizes, config.loader.task_weights, {})  # refuses wrong weights in the user's words
    weights = np.zeros(len(datasets))
    for members, total in ((range(len(config.data)), 1 - part), (range(len(config.data), len(folders)), part)):
        by_task = {task: config.loader.task_weights.get(task.label, 0.0) for task in {tasks[each] for each in members}}
        if not sum(by_task.values()):
            raise UserError(f"no task of {', '.join(folders[member] for member in members)} has a weight.")
        for member in members:
            size = sum(sizes[other] for other in members if tasks[other] == tasks[member])
            weights[member] = total * by_task[tasks[member]] / sum(by_task.values()) * sizes[member] / max(1, size)
    task_weights = {
        task.label: float(sum(weight for weight, each in zip(weights, tasks) if each == task))
        for task in sorted(set(tasks))
    }
    named = dict(zip(names, map(float, weights)))
    return replace(
        config,
        data=folders,
        loader=replace(config.loader, task_weights=task_weights, dataset_weights=named),
    )


def _share_of(text: str | None) -> float:
    try:
        share = 0.2 if text is None else float(text)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise UserError(f"{REPLAY_SHARE} must be a number between 0 and 1, got {text!r}.")
    return share


def _resolved(folder: str) -> str:
    return str(Path(folder).resolve())


def _examples(datasets: Sequence[TokenDataset], tokenizers: str) -> tuple[str, ...]:
    """A few captions, or transcripts without images, which TensorBoard shows as images and speech."""
    pairs = sorted((each for each in datasets if each.task != Task.TEXT and len(each)), key=lambda each: each.task)
    bundle = TokenizerBundle.load(tokenizers)
    if not pairs or Modality.TEXT not in bundle:
        return ()
    for dataset in pairs:
        spread = np.unique(np.linspace(0, len(dataset) - 1, 4 * _EXAMPLES).astype(int))
        samples = [dataset[int(index)] for index in spread]
        captions = [sample.text for sample in samples if not sample.prompt]  # no image is drawn from a question
        if captions:
            break
    else:
        return ()
    texts = bundle.text.decode(captions[:: max(1, len(captions) // _EXAMPLES)][:_EXAMPLES])
    return tuple(dict.fromkeys(text for text in texts if len(text) <= _EXAMPLE_LENGTH))


def _tokenizers(datasets: Sequence[TokenDataset]) -> str:
    """Where the tokenizers of the data are: the first recorded folder that exists, or a built-in name."""
    common_vocabulary(datasets)  # raises an error if they were made with different ones
    names = [str(dataset.manifest.settings.get("tokenizers", "")) for dataset in datasets]
    usable = [name for name in names if name and (name in BUILTIN_TOKENIZERS or Path(name).is_dir())]
    if not usable:
        what = (
            f"their tokenizers were in {names[0]!r}, which does not exist here" if names[0] else "they do not say which"
        )
        raise UserError(f"the tokenizers of the data are not known ({what}): set tokenizers=FOLDER.")
    return usable[0]


def fine_tuned(config: RunConfig, name: str) -> RunConfig:
    """The configuration that continues a saved model on the same data: its shape, limits and prompts, a low rate.

    The word list and the reader of prompts are cleared, because the data may bring new words and sentences.
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
    # The slot of the saved model's texts may be longer than that of the data, and media come before it.
    room = loader.seq_len + max(ends.text - loader.open_ends.text, 0)
    return replace(
        config,
        model=ModelConfig(**saved["model"]),
        loader=replace(loader, seq_len=max(limits.seq_len, room), open_ends=ends),
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
