"""Global batches are the same on any number of ranks, in any layout, resumed at any step; faults are clear errors."""

import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from data_fakes import no_space
from hostile_client import is_running
from token_sets import SMALL, pair, random_set, wrapped, write_set

from triptych.data import sequences
from triptych.data.loader import Loader, LoaderConfig, Step
from triptych.data.pack import Grouped, Packed, Padded, RowLayout
from triptych.data.prefetch import LoaderOutOfMemory, LoaderWorkerDied, Prefetcher
from triptych.data.shards import TokenDataset
from triptych.data.steps import StepBuilder
from triptych.data.types import Batch
from triptych.errors import DataError, UserError
from triptych.vocab import Modality, Task, Vocabulary

SEQ_LEN = 48
CONFIG = LoaderConfig(seq_len=SEQ_LEN, global_batch=13, seed=5, prefetch=0, p_subsample=0.3)
LAYOUTS = [
    Padded(),
    Padded(micro_batch_rows=2),
    Packed(),
    Packed(row_length=SEQ_LEN, micro_batch_rows=3),
    Grouped(),
    Grouped(max_tokens=150, overhead=0),
]
TEXT_ONLY = {"text": 1.0}


def make_sets(folder: Path, seed: int = 0) -> list[TokenDataset]:
    rng = np.random.default_rng(seed)
    return [
        random_set(folder / "text", Task.TEXT, [30, 0, 11], rng),
        random_set(folder / "image", Task.IMAGE_TEXT, [9, 8], rng),
        random_set(folder / "audio", Task.AUDIO_TEXT, [12], rng),
        random_set(folder / "talks", Task.AUDIO_TEXT, [5, 6], rng, name="talks"),
    ]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> list[TokenDataset]:
    return make_sets(tmp_path_factory.mktemp("sets"))


def steps(datasets: list[TokenDataset], number: int, config: LoaderConfig = CONFIG, **options) -> list[Step]:
    with Loader(datasets, config, num_steps=number, **options) as loader:
        return list(loader)


def sequences_of(batch: Batch) -> dict[int, tuple]:
    """By slot: all values of a sequence, independent of its place in the batch."""
    sequences = {}
    for number, slot in enumerate(batch.slots.tolist()):
        here = batch.segment_ids == number + 1
        content = [getattr(batch, name)[here].tolist() for name in ("tokens", "positions", "modality_ids", "maskable")]
        about = [int(getattr(batch, name)[number]) for name in ("sample_ids", "epochs", "tasks")]
        sequences[slot] = (*about, *content)
    return sequences


def digest(parts: list[Step]) -> str:
    """One hash of a global batch, from the steps of all ranks. Checks that every sequence occurs once."""
    sequences: dict[int, tuple] = {}
    for part in parts:
        for batch in part.micro_batches:
            here = sequences_of(batch)
            assert not sequences.keys() & here.keys()
            sequences |= here
    assert sorted(sequences) == list(range(parts[0].num_sequences))
    return hashlib.sha256(json.dumps(sorted(sequences.items())).encode()).hexdigest()


def equal(left: Step, right: Step) -> bool:
    """Whether two steps are equal bit for bit."""
    same = replace(left, micro_batches=[]) == replace(right, micro_batches=[])
    pairs = zip(left.micro_batches, right.micro_batches, strict=True)
    return same and all(
        np.array_equal(getattr(a, field.name), getattr(b, field.name)) for a, b in pairs for field in fields(Batch)
    )


# -- content of a batch -----------------------------------------------------------------------------------------------


def expected_sequence(
    builder: StepBuilder, datasets: list[TokenDataset], number: int
) -> tuple[int, int, int, list[int]]:
    """Sample id, epoch, task and tokens at one position of the stream."""
    picks = builder.stream[np.array([number])]
    source, index, epoch = int(picks.sources[0]), int(picks.indices[0]), int(picks.epochs[0])
    task = datasets[source].task
    if task != Task.TEXT:
        return (source << 40) | index, epoch, task, pair(datasets[source][index], SEQ_LEN)
    length = int(builder.sources[source].lengths(np.array([index]), np.array([epoch]))[0])
    out = np.zeros(length, np.int32)  # packed text has its own tests
    builder.sources[source].write(index, epoch, out)
    return (source << 40) | index, epoch, task, out.tolist()


def expected_maskable(tokens: list[int], task: int, rule: str) -> list[bool]:
    answers = []
    for token in tokens:
        is_data = any(token in SMALL.data_ids(modality) for modality in Modality)
        is_end = token == SMALL.eos(Modality.TEXT)
        answers.append(is_data or (is_end and (rule == "all" or (rule == "packed" and task == Task.TEXT))))
    return answers


@pytest.mark.parametrize("rule", ["packed", "all", "none"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_the_content_of_a_batch(datasets: list[TokenDataset], layout: RowLayout, rule: str) -> None:
    config = replace(CONFIG, layout=layout, mask_text_eos=rule)
    loader = Loader(datasets, config, 1, 2)
    for step in steps(datasets, 4, config, rank=1, world_size=2):
        for batch in step.micro_batches:
            shapes = {getattr(batch, field.name).shape for field in fields(batch)}
            assert len(shapes) <= 2
            assert batch.tokens.shape == batch.positions.shape == batch.maskable.shape
            dtypes = [str(getattr(batch, field.name).dtype) for field in fields(batch)]
            assert dtypes == ["int32", "int32", "int32", "uint8", "bool", "int64", "int32", "int32", "uint8"]
            padding = batch.segment_ids == 0
            assert (batch.tokens[padding] == SMALL.pad).all()
            assert (batch.modality_ids[padding] == 255).all()
            assert not batch.maskable[padding].any()
            assert not batch.positions[padding].any()
            assert batch.segment_ids.max(initial=0) == len(batch.slots)
            for slot, (sample_id, epoch, task, *content) in sequences_of(batch).items():
                wanted = expected_sequence(loader.builder, datasets, step.index * CONFIG.global_batch + slot)
                tokens, positions, modalities, maskable = content
                assert (sample_id, epoch, task, tokens) == wanted
                assert positions == list(range(len(tokens)))
                assert tokens[0] == SMALL.task(Task(task))
                assert modalities == SMALL.modality_of(np.array(tokens)).tolist()
                assert maskable == expected_maskable(tokens, task, rule)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_segments_are_whole_and_in_one_row(datasets: list[TokenDataset], layout: RowLayout) -> None:
    for step in steps(datasets, 6, replace(CONFIG, layout=layout)):
        for batch in step.micro_batches:
            for segment in range(1, len(batch.slots) + 1):
                rows, columns = np.nonzero(batch.segment_ids == segment)
                assert len(set(rows.tolist())) == 1
                assert columns.tolist() == list(range(columns[0], columns[-1] + 1))


def test_totals_are_those_of_the_global_batch(datasets: list[TokenDataset]) -> None:
    for layout in LAYOUTS:
        config = replace(CONFIG, layout=layout)
        ranks = [steps(datasets, 3, config, rank=rank, world_size=3) for rank in range(3)]
        for parts in zip(*ranks):
            assert len({(p.index, p.num_sequences, p.num_tokens, p.num_positions) for p in parts}) == 1
            assert parts[0].num_sequences == CONFIG.global_batch
            batches = [batch for part in parts for batch in part.micro_batches]
            assert sum(batch.num_tokens for batch in batches) == parts[0].num_tokens
            assert sum(batch.tokens.size for batch in batches) == parts[0].num_positions
            shapes = [[batch.tokens.shape for batch in part.micro_batches] for part in parts]
            assert shapes[0] == shapes[1] == shapes[2]


# -- the same batches everywhere --------------------------------------------------------------------------------------


def test_global_batches_are_the_same_on_any_ranks_in_any_layout(datasets: list[TokenDataset]) -> None:
    number = 4
    digests = set()
    for layout in LAYOUTS:
        for world_size in (1, 2, 4):
            config = replace(CONFIG, layout=layout)
            ranks = [steps(datasets, number, config, rank=rank, world_size=world_size) for rank in range(world_size)]
            digests.add(tuple(digest(list(parts)) for parts in zip(*ranks)))
    assert len(digests) == 1
    assert len(set(digests.pop())) == number


def test_the_seed_decides(datasets: list[TokenDataset]) -> None:
    first, other = steps(datasets, 1), steps(datasets, 1, replace(CONFIG, seed=6))
    assert digest(first) != digest(other)


def test_a_rank_reads_only_its_own(datasets: list[TokenDataset], monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    for source in (sequences.Pairs, sequences.PackedText):
        write = source.write
        monkeypatch.setattr(source, "write", lambda *a, write=write: (read.append(a[1]), write(*a))[1])
    (step,) = steps(datasets, 1, rank=1, world_size=4)
    assert len(read) == sum(len(batch.slots) for batch in step.micro_batches) < CONFIG.global_batch / 2


@pytest.mark.parametrize("prefetch", [0, 3])
def test_resume_is_exact(datasets: list[TokenDataset], prefetch: int) -> None:
    config = replace(CONFIG, prefetch=prefetch)
    uninterrupted = steps(datasets, 60, config)
    for point in np.random.default_rng(1).integers(0, 55, 20).tolist():
        with Loader(datasets, config) as loader:
            loader.restore(json.loads(json.dumps(loader.state() | {"step": point})))
            assert all(equal(next(loader), uninterrupted[point + i]) for i in range(3))
            assert loader.state()["step"] == point + 3


def test_resume_on_other_ranks_and_layouts(datasets: list[TokenDataset]) -> None:
    uninterrupted = [digest([step]) for step in steps(datasets, 9)]
    with Loader(datasets, CONFIG) as loader:
        for _ in range(4):
            next(loader)
        state = loader.state()
    for rank_count, layout in ((2, Padded()), (4, Grouped())):
        parts = []
        for rank in range(rank_count):
            with Loader(datasets, replace(CONFIG, layout=layout), rank, rank_count, num_steps=9) as loader:
                loader.restore(state)
                parts.append(list(loader))
        assert [digest(list(step)) for step in zip(*parts)] == uninterrupted[4:]


def test_a_state_does_not_depend_on_how_weights_are_written(datasets: list[TokenDataset]) -> None:
    thirds = replace(CONFIG, task_weights={"audio-text": 1 / 3, "text": 1 / 3, "image-text": 1 / 3})
    Loader(datasets, thirds).restore(Loader(datasets, CONFIG).state())


def test_closing_keeps_the_place(datasets: list[TokenDataset]) -> None:
    uninterrupted = steps(datasets, 4)
    loader = Loader(datasets, replace(CONFIG, prefetch=2), start_step=1, num_steps=4)
    assert equal(next(loader), uninterrupted[1])
    loader.close()
    assert [step.index for step in loader] == [2, 3]
    assert list(loader) == []


# -- mixture, epochs, evaluation --------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [{"text": 1, "image-text": 1, "audio-text": 1}, {"text": 0.2, "audio-text": 0.8}])
def test_the_mixture_is_kept(datasets: list[TokenDataset], weights: dict) -> None:
    config = replace(CONFIG, global_batch=500, task_weights=weights, dataset_weights={"audio-text": 1, "talks": 3})
    tasks = np.concatenate([step.micro_batches[0].tasks for step in steps(datasets, 20, config)])
    expected = 10_000 * np.array([weights.get(task.label, 0) for task in Task]) / sum(weights.values())
    assert (abs(np.bincount(tasks, minlength=3) - expected) <= 0.01 * expected).all()


def test_every_epoch_reads_every_sequence_once(datasets: list[TokenDataset]) -> None:
    seen: dict[tuple[int, int], list[int]] = {}
    for step in steps(datasets, 60, replace(CONFIG, layout=Padded())):
        (batch,) = step.micro_batches
        for sample_id, epoch in zip(batch.sample_ids.tolist(), batch.epochs.tolist()):
            seen.setdefault((sample_id >> 40, epoch), []).append(sample_id & (2**40 - 1))
    sizes = [len(source) for source in Loader(datasets, CONFIG).builder.sources]
    for source, size in enumerate(sizes):
        last = max(epoch for number, epoch in seen if number == source)
        assert last > 3
        for epoch in range(last):
            assert sorted(seen[source, epoch]) == list(range(size))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_one_pass_reads_everything_once_in_order(datasets: list[TokenDataset], layout: RowLayout) -> None:
    text, image = datasets[0], datasets[1]
    config = replace(CONFIG, layout=layout, global_batch=5)
    for dataset in (text, image):
        ranks = [steps([dataset], 10**6, config, rank=rank, world_size=2, one_pass=True) for rank in range(2)]
        contents = []
        for parts in zip(*ranks):
            sequences_here = {s: c for part in parts for b in part.micro_batches for s, c in sequences_of(b).items()}
            assert len(sequences_here) == parts[0].num_sequences <= 5
            contents += [sequences_here[slot] for slot in range(len(sequences_here))]
        assert [sample_id for sample_id, *_ in contents] == list(range(len(contents)))
        tokens = [content[3] for content in contents]
        if dataset is image:
            assert tokens == [pair(image[i], SEQ_LEN) for i in range(len(image))]
        else:
            body = [token for row in tokens for token in row[1:]]
            assert body == [token for i in range(len(text)) for token in wrapped(text[i].text)]


def test_document_attention_makes_every_document_a_sequence(datasets: list[TokenDataset]) -> None:
    texts = [wrapped(datasets[0][i].text) for i in range(len(datasets[0])) if len(datasets[0][i].text)]
    config = replace(CONFIG, document_attention=True, task_weights=TEXT_ONLY, layout=Packed(), global_batch=len(texts))
    first, second = (
        {s: c for b in step.micro_batches for s, c in sequences_of(b).items()}
        for step in steps(datasets[:1], 2, config)
    )
    for epoch in (first, second):
        rows = [content[3] for content in epoch.values()]
        assert sorted(row[1:] for row in rows) == sorted(texts)
        assert {row[0] for row in rows} == {SMALL.task(Task.TEXT)}
        assert all(content[4] == list(range(len(content[3]))) for content in epoch.values())
    assert [first[slot][0] for slot in first] != [second[slot][0] for slot in first]


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"global_batch": 26}, "global_batch was 13, is 26"),
        ({"seed": 6}, "seed was 5, is 6"),
        ({"seq_len": 64}, "seq_len was 48, is 64"),
        ({"mask_text_eos": "all"}, "mask_text_eos was 'packed', is 'all'"),
        ({"task_weights": {"text": 1}}, r"datasets\[0\].share was 0.333333333, is 1.0; datasets\[1\].share was 0.33"),
        ({"dataset_weights": {"audio-text": 1, "talks": 3}}, r"datasets\[3\].share was 0.15942029, is 0.25"),
    ],
)
def test_a_changed_configuration_is_refused_by_name(datasets: list[TokenDataset], changes: dict, message: str) -> None:
    state = Loader(datasets, CONFIG).state()
    changed = Loader(datasets, replace(CONFIG, **changes))
    with pytest.raises(DataError, match=message):
        changed.restore(state)
    changed.restore(state, force=True)


def test_a_changed_dataset_is_refused(datasets: list[TokenDataset], tmp_path: Path) -> None:
    state = Loader(datasets, CONFIG).state()
    edited = [datasets[0], random_set(tmp_path / "i", Task.IMAGE_TEXT, [9, 8], np.random.default_rng(9)), *datasets[2:]]
    with pytest.raises(DataError, match=r"datasets\[1\].content was [0-9a-f]{12}..., is [0-9a-f]{12}"):
        Loader(edited, CONFIG).restore(state)
    with pytest.raises(DataError, match=r"datasets\[3\].content was .* is None"):
        Loader(datasets[:3], CONFIG).restore(state)
    retokenized = random_set(tmp_path / "t", Task.TEXT, [5], np.random.default_rng(0), tokenizer="b" * 64)
    state = Loader(datasets[:1], replace(CONFIG, task_weights=TEXT_ONLY)).state()
    with pytest.raises(DataError, match=r"datasets\[0\].tokenizers.text was aaaaaaaaaaaa..., is bbbbbbbbbbbb..."):
        Loader([retokenized], replace(CONFIG, task_weights=TEXT_ONLY)).restore(state)


def test_datasets_of_different_tokenizers_are_not_mixed(datasets: list[TokenDataset], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    other = random_set(tmp_path / "a", Task.TEXT, [5], rng, tokenizer="b" * 64)
    with pytest.raises(DataError, match="different text tokenizers"):
        Loader([*datasets, other], CONFIG)
    larger = write_set(tmp_path / "b", Task.TEXT, [[([], [1])]], vocabulary=Vocabulary(text=501, image=70, audio=40))
    with pytest.raises(DataError, match="different vocabularies"):
        Loader([*datasets, larger], CONFIG)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seq_len": 4}, "seq_len must be an integer of at least 8, got 4"),
        ({"global_batch": 0}, "global_batch must be"),
        ({"p_subsample": 1.5}, "p_subsample must be between 0 and 1"),
        ({"mask_text_eos": "some"}, "'packed' or 'all' or 'none', got 'some'"),
        ({"layout": Packed(row_length=40)}, "row_length=40 must be at least seq_len=48"),
        ({"num_workers": 1, "prefetch": 0}, "try prefetch=2"),
    ],
)
def test_wrong_configurations_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(CONFIG, **changes)


def test_wrong_arguments_are_refused(datasets: list[TokenDataset]) -> None:
    with pytest.raises(UserError, match=r"rank must be in \[0, world_size=2\), got 2"):
        Loader(datasets, CONFIG, 2, 2)
    with pytest.raises(UserError, match="at least one dataset"):
        Loader([], CONFIG)
    with pytest.raises(UserError, match="task 'audio-text' has weight 1 but no dataset"):
        Loader(datasets[:2], CONFIG)
    with pytest.raises(DataError, match="media tokens"):
        Loader(datasets, replace(CONFIG, seq_len=16))


# -- workers and faults -----------------------------------------------------------------------------------------------


def test_workers_change_nothing_and_resume(datasets: list[TokenDataset]) -> None:
    uninterrupted = steps(datasets, 12)
    config = replace(CONFIG, num_workers=2, prefetch=2)
    for point in (0, 5, 8):
        with Loader(datasets, config, start_step=point, num_steps=12) as loader:
            resumed = list(loader)
        assert [step.index for step in resumed] == list(range(point, 12))
        assert all(equal(step, uninterrupted[step.index]) for step in resumed)
    assert not multiprocessing.active_children()


def flip_a_byte(dataset: TokenDataset, shard: int) -> None:
    path = dataset.folder / dataset.manifest.shards[shard].file
    content = bytearray(path.read_bytes())
    header = int.from_bytes(content[:8], "little")
    arrays = json.loads(content[8 : 8 + header])
    content[8 + header + arrays["tokens"]["data_offsets"][0] + 1] ^= 1
    with open(path, "r+b") as file:  # in place: memory maps that are open see it
        file.write(content)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_flipped_byte_is_an_error_in_one_line(tmp_path: Path, workers: int) -> None:
    damaged = make_sets(tmp_path)
    config = replace(CONFIG, num_workers=workers, prefetch=1)
    with Loader(damaged, config) as loader:
        next(loader)  # the shards are mapped and in the cache
        flip_a_byte(damaged[1], 0)
        with pytest.raises(DataError, match=r"shard-00000.safetensors: sample 0 does not match its checksum") as caught:
            list(islice(loader, 50))
        assert "\n" not in str(caught.value)
        failed_at = loader.state()["step"]
        with pytest.raises(DataError):  # the next call does not skip it
            next(loader)
        assert loader.state()["step"] == failed_at


def wait_until_idle(processes: list[int]) -> None:
    """Wait until all threads of the processes have been asleep for a while: their buffers are full."""
    asleep = 0
    while asleep < 20:
        paths = [path for process in processes for path in Path(f"/proc/{process}/task").glob("*/stat")]
        states = [path.read_text().rpartition(")")[2].split()[0] for path in paths]
        asleep = asleep + 1 if set(states) <= {"S"} else 0
        time.sleep(0.005)


@contextmanager
def failing_after(seconds: int) -> Iterator[None]:
    """Turn a hang into an error."""

    def fail(number: int, frame: object) -> None:
        raise TimeoutError("the loader hangs")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("after", [1, 20])
def test_a_killed_worker_is_an_error_not_a_hang(datasets: list[TokenDataset], after: int) -> None:
    # Large steps, and full buffers: a worker then dies while it sends a step.
    config = replace(CONFIG, num_workers=2, prefetch=1, global_batch=2_000, layout=Padded())
    with Loader(datasets, config) as loader:
        for _ in range(after):
            next(loader)
        workers = [worker.pid for worker in multiprocessing.active_children()]
        wait_until_idle(workers)
        os.kill(workers[0], signal.SIGKILL)
        with (
            failing_after(60),
            pytest.raises(LoaderOutOfMemory, match=r"a loader worker died \(.*exit code -9") as caught,
        ):
            list(islice(loader, 50))
    assert caught.value.exit_code == 2, "the system kills a process like this when memory runs out"
    assert str(caught.value).endswith(
        "use a smaller loader.prefetch (it is 1) or fewer workers (loader.num_workers is 2)."
    )
    assert "\n" not in str(caught.value)
    assert not multiprocessing.active_children()


def test_a_worker_that_crashes_is_not_taken_for_a_lack_of_memory(datasets: list[TokenDataset]) -> None:
    with Loader(datasets, replace(CONFIG, num_workers=1, prefetch=1)) as loader:
        next(loader)
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGABRT)
        with (
            failing_after(60),
            pytest.raises(LoaderWorkerDied, match=r"a loader worker died \(.*exit code -6") as caught,
        ):
            list(islice(loader, 50))
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("workers", "prefetch", "advice"),
    [
        (0, 0, "use a smaller loader.global_batch."),
        (0, 2, "use a smaller loader.prefetch (it is 2)."),
        (1, 3, "use a smaller loader.prefetch (it is 3) or fewer workers (loader.num_workers is 1)."),
    ],
)
def test_out_of_memory_advises_what_to_change(workers: int, prefetch: int, advice: str) -> None:
    prefetcher = Prefetcher(np.empty, 1 << 59, None, workers, prefetch)  # an array of 4 exabytes
    with failing_after(60), pytest.raises(LoaderOutOfMemory) as caught:
        next(prefetcher)
    assert str(caught.value) == f"memory ran out in the data loader: {advice}"
    assert caught.value.exit_code == 2


def test_full_shared_memory_advises_what_to_change() -> None:
    with (
        failing_after(60),
        pytest.raises(LoaderOutOfMemory, match="is full of prefetched steps: use a smaller") as caught,
    ):
        next(Prefetcher(no_space, 0, None, 1, 1))
    assert caught.value.exit_code == 2


def test_workers_ignore_signals_to_the_process_group(datasets: list[TokenDataset]) -> None:
    with Loader(datasets, replace(CONFIG, num_workers=1, prefetch=1)) as loader:
        next(loader)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            os.kill(multiprocessing.active_children()[0].pid, number)
        time.sleep(0.2)
        for _ in range(5):
            next(loader)


SCRIPT = """
import sys, time, multiprocessing
from triptych.data.loader import Loader, LoaderConfig
from triptych.data.prefetch import LoaderOutOfMemory, LoaderWorkerDied, Prefetcher
from triptych.data.shards import TokenDataset
if __name__ == "__main__":
    workers, ending, *folders = sys.argv[1:]
    config = LoaderConfig(seq_len=48, global_batch=13, num_workers=int(workers), prefetch=2)
    loader = Loader([TokenDataset(folder) for folder in folders], config)
    for step in loader:
        if step.index == 3:
            break
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    if ending == "wait":
        time.sleep(60)
    if ending == "raise":
        raise SystemExit(7)
"""


def run_script(folder: Path, datasets: list[TokenDataset], workers: int, ending: str) -> subprocess.Popen:
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(folder / "script.py"), str(workers), ending, *(str(d.folder) for d in datasets)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("workers", "ending"), [(0, "end"), (2, "end"), (2, "raise")])
def test_exit_without_closing_is_silent(
    datasets: list[TokenDataset], tmp_path: Path, workers: int, ending: str
) -> None:
    process = run_script(tmp_path, datasets, workers, ending)
    _, noise = process.communicate(timeout=60)
    assert process.returncode == (7 if ending == "raise" else 0)
    assert [line for line in noise.splitlines() if "jax profiler" not in line] == []


def test_workers_do_not_outlive_a_killed_parent(datasets: list[TokenDataset], tmp_path: Path) -> None:
    process = run_script(tmp_path, datasets, 2, "wait")
    assert process.stdout is not None
    workers = [int(pid) for pid in process.stdout.readline().split()]
    assert len(workers) == 2
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while any(is_running(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.stdout.close()


def test_a_deleted_loader_stops_its_workers(datasets: list[TokenDataset]) -> None:
    loader = Loader(datasets, replace(CONFIG, num_workers=1, prefetch=1))
    next(loader)
    assert multiprocessing.active_children()
    del loader
    assert not multiprocessing.active_children()
