"""Prompts and responses: only the response is predicted, and the prompt survives every stage unchanged."""

import json
import tarfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import data_fakes
import numpy as np
import pytest
from PIL import Image
from token_sets import SMALL

from triptych.data.loader import Loader
from triptych.data.sequences import Documents, OpenEnds, Pairs, split_by_content
from triptych.data.shards import Manifest, Shard, TokenDataset, write_shard
from triptych.data.sources import BadSample, ReadOptions, open_source
from triptych.data.steps import LoaderConfig
from triptych.data.tokenize import TokenizeConfig, build_dataset
from triptych.data.types import RawSample, TokenSample
from triptych.diffusion.corrupt import CorruptConfig, corrupt
from triptych.diffusion.likelihood import k_uniform
from triptych.errors import DataError, UserError
from triptych.utils.rng import random_bits
from triptych.vocab import Modality, Task

CONFIG = LoaderConfig(
    seq_len=64,
    global_batch=16,
    prefetch=0,
    document_attention=True,
    mask_text_eos="none",
    open_ends=OpenEnds(probability=0.6, text=30, audio=24),
)


# -- reading ----------------------------------------------------------------------------------------------------------


def rows_of(path: Path, rows: list[dict], **options: str) -> list[RawSample | BadSample]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(open_source([str(path)], options=ReadOptions(**options)))


def test_usual_names_of_prompts_are_found(tmp_path: Path) -> None:
    rows = [
        {"prompt": "p", "response": "r"},
        {"prompt": "p", "completion": "c"},
        {"question": "q?", "answer": "a"},
        {"instruction": "i", "output": "o"},
        {"text": "t", "prompt": "not used"},
        {"prompt": "alone"},
    ]
    *good, bad = rows_of(tmp_path / "a.jsonl", rows)
    assert [(item.prompt, item.text) for item in good] == [
        ("p", "r"),
        ("p", "c"),
        ("q?", "a"),
        ("i", "o"),
        ("", "t"),
    ]
    assert "prompt and response" in bad.reason


def test_keys_choose_prompt_and_response(tmp_path: Path) -> None:
    rows = [{"text": "t", "ask": "a", "say": "s"}, {"say": "s"}]
    good, bad = rows_of(tmp_path / "a.jsonl", rows, prompt_key="ask", text_key="say")
    assert (good.prompt, good.text) == ("a", "s")
    assert bad.reason == "no text: looked for strings under 'ask' and 'say'"
    (beside,) = rows_of(tmp_path / "b.jsonl", [{"text": "t", "ask": "a"}], prompt_key="ask")
    assert (beside.prompt, beside.text) == ("a", "t")


def test_more_of_a_prompt_follows_it(tmp_path: Path) -> None:
    rows = [
        {"instruction": "Summarise.", "input": "The cat sat.", "output": "Cat."},
        {"question": "Who?", "context": "", "answer": "Nobody."},
    ]
    first, second = rows_of(tmp_path / "a.jsonl", rows)
    assert (first.prompt, first.text) == ("Summarise.\nThe cat sat.", "Cat.")
    assert (second.prompt, second.text) == ("Who?", "Nobody.")


def test_a_prompt_is_not_its_own_response(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="looked for strings under 'text' and 'response'"):
        rows_of(tmp_path / "a.jsonl", [{"text": "what is it?", "label": "a cat"}], prompt_key="text")
    with pytest.raises(UserError, match="are both 'text'"):
        ReadOptions(prompt_key="text", text_key="text")


def test_an_image_may_be_beside_them_in_tables_and_tars(tmp_path: Path) -> None:
    buffer = BytesIO()
    Image.new("RGB", (4, 4), "red").save(buffer, "PNG")
    (tmp_path / "a.png").write_bytes(buffer.getvalue())
    (row,) = rows_of(tmp_path / "a.jsonl", [{"file_name": "a.png", "prompt": " what? ", "response": "red"}])
    assert (row.prompt, row.response, row.media) == ("what?", " red", str(tmp_path / "a.png"))
    with tarfile.open(tmp_path / "b.tar", "w") as tar:
        for name, content in (
            ("0.png", buffer.getvalue()),
            ("0.json", json.dumps({"question": "what?", "answer": "red"}).encode()),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, BytesIO(content))
    (member,) = open_source([str(tmp_path / "b.tar")])
    assert (member.prompt, member.text, member.media) == ("what?", "red", buffer.getvalue())


@pytest.mark.parametrize(
    ("prompt", "text", "response"), [("", "a", "a"), ("p", "a", " a"), ("p\n", "a", "a"), ("p", "\na", "\na")]
)
def test_a_response_follows_white_space(prompt: str, text: str, response: str) -> None:
    assert RawSample("k", text, prompt=prompt).response == response


# -- datasets ---------------------------------------------------------------------------------------------------------


def tokenized(folder: Path, rows: list[dict]) -> TokenDataset:
    folder.mkdir()
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = TokenizeConfig(inputs=(str(path),), tokenizers="fake")
    build_dataset(config, folder / "set", load=data_fakes.load)
    return TokenDataset(folder / "set")


def test_tokens_are_those_of_the_prompt_then_those_of_the_response(tmp_path: Path) -> None:
    dataset = tokenized(tmp_path / "a", [{"prompt": "ab", "response": "cde"}, {"prompt": "f", "response": "g"}])
    assert [bytes(sample.text.astype(np.uint8)) for sample in (dataset[0], dataset[1])] == [b"ab cde", b"f g"]
    assert [dataset[0].prompt, dataset[1].prompt] == [2, 1]
    assert dataset.manifest.longest_prompted == 6
    assert TokenDataset(dataset.folder).manifest.longest_prompted == 6


def test_without_prompts_files_are_as_before(tmp_path: Path) -> None:
    dataset = tokenized(tmp_path / "a", [{"text": "abc"}])
    assert "longest_prompted" not in (dataset.folder / "manifest.json").read_text()
    assert b'"prompts"' not in (dataset.folder / dataset.manifest.shards[0].file).read_bytes()
    assert dataset[0].prompt == 0


def test_an_empty_response_is_a_bad_sample(tmp_path: Path) -> None:
    dataset = tokenized(tmp_path / "a", [{"prompt": "ab", "response": " "}, {"prompt": "f", "response": "g"}])
    assert len(dataset) == 1
    assert "empty response" in (dataset.folder / "bad.jsonl").read_text()


def test_a_dataset_of_an_earlier_version_is_complete(tmp_path: Path) -> None:
    """Its plan does not know of prompts."""
    dataset = tokenized(tmp_path / "a", [{"text": "abc"}])
    assert "prompt_key" not in dataset.manifest.settings


def test_prompts_that_the_manifest_does_not_know_are_refused(tmp_path: Path) -> None:
    dataset = tokenized(tmp_path / "a", [{"prompt": "ab", "response": "cde"}])
    replace(dataset.manifest, longest_prompted=0).save(dataset.folder)
    with pytest.raises(DataError, match="has prompts with responses of 6 tokens, not 0"):
        TokenDataset(dataset.folder)[0]


def prompted_set(folder: Path, task: Task, count: int = 40, every: int = 1) -> TokenDataset:
    """Random samples; every n-th has a prompt."""
    rng = np.random.default_rng(7)
    folder.mkdir(parents=True)
    samples = []
    for number in range(count):
        media = [] if task.partner is None else rng.integers(SMALL.data_size(task.partner), size=rng.integers(4, 12))
        text = rng.integers(SMALL.text, size=rng.integers(4, 20))
        prompt = int(rng.integers(1, len(text))) if number % every == 0 else 0
        samples.append(TokenSample(task, np.array(media, np.int32), text.astype(np.int32), prompt))
    info = write_shard(folder / "shard-00000.safetensors", samples, SMALL)
    sizes = {"text": SMALL.text, "image": SMALL.image, "audio": SMALL.audio}
    longest = max(sample.num_tokens for sample in samples if sample.prompt)
    Manifest(
        name=task.label,
        task=task.name,
        vocabulary=sizes,
        tokenizers={"text": "a" * 64},
        shards=[info],
        longest_prompted=longest,
    ).save(folder)
    return TokenDataset(folder)


def test_a_changed_prompt_is_damage(tmp_path: Path) -> None:
    dataset = prompted_set(tmp_path / "a", Task.TEXT)
    path = dataset.folder / "shard-00000.safetensors"
    shard = Shard(path, Task.TEXT)
    before, expected = path.read_bytes(), shard.prompts.astype("<i4").tobytes()
    assert before.count(expected) == 1
    changed = shard.prompts.astype("<i4").copy()
    changed[3] -= 1 if changed[3] > 1 else -1
    path.write_bytes(before.replace(expected, changed.tobytes()))
    damaged = Shard(path, Task.TEXT)
    assert damaged[2].prompt == shard.prompts[2]
    with pytest.raises(DataError, match="sample 3 does not match its checksum"):
        damaged[3]


# -- sequences --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", list(Task))
@pytest.mark.parametrize("held_out", [0.0, 0.2])
def test_exactly_the_responses_may_be_masked(task: Task, held_out: float, tmp_path: Path) -> None:
    dataset = prompted_set(tmp_path / "a", task, every=2)
    config = replace(CONFIG, task_weights={task.label: 1.0}, held_out=held_out)
    seen = 0
    with Loader([dataset], config, num_steps=8) as loader:
        for step in loader:
            for batch in step.micro_batches:
                for segment, id in enumerate(batch.sample_ids, start=1):
                    here = batch.segment_ids == segment
                    tokens, maskable = batch.tokens[here], batch.maskable[here]
                    sample = dataset[number_in(loader, int(id) & ((1 << 40) - 1))]
                    if not sample.prompt:
                        assert maskable.sum() >= sample.num_tokens
                        continue
                    seen += 1
                    eos = tokens == SMALL.eos(Modality.TEXT)
                    fill = int(eos.sum())
                    expected = [*SMALL.to_global(Modality.TEXT, sample.text[sample.prompt :]).tolist()]
                    expected += [SMALL.eos(Modality.TEXT)] * (fill if fill > 1 else 0)
                    assert tokens[maskable].tolist() == expected
    assert seen > 20


def number_in(loader: Loader, number: int) -> int:
    source = loader.builder.sources[0]
    return int(source.numbers(np.array([number]))[0]) if hasattr(source, "numbers") else number


@pytest.mark.parametrize("task", list(Task))
def test_every_prompted_sequence_is_predicted_from_its_prompt_and_media(task: Task, tmp_path: Path) -> None:
    dataset = prompted_set(tmp_path / "a", task)
    config = replace(CONFIG, task_weights={task.label: 1.0})
    masks = CorruptConfig(p_one_sided=0.6, p_prompt_masked=0.4, p_text_end=0.5)
    with Loader([dataset], config, num_steps=6) as loader:
        for step in loader:
            for batch in step.micro_batches:
                found = corrupt(batch, SMALL, masks, step=step.index, global_batch=16)
                assert (found.num_eligible > 0).all()
                assert not (found.predicted & ~batch.maskable).any()
                given = ~batch.maskable
                assert (found.tokens[given] == batch.tokens[given]).all()
                scored = k_uniform(batch, SMALL, seed=0, draw=0, num_draws=1)
                assert (scored.tokens[given] == batch.tokens[given]).all()
                assert set(batch.segment_ids[scored.predicted]) == set(range(1, len(batch.sample_ids) + 1))


def test_samples_without_prompts_are_masked_as_before(tmp_path: Path) -> None:
    """One side of a pair, or the whole of it: a neighbour with a prompt changes nothing."""
    dataset = prompted_set(tmp_path / "a", Task.IMAGE_TEXT, every=2)
    masks = CorruptConfig(p_one_sided=0.5)
    with Loader([dataset], replace(CONFIG, task_weights={"image-text": 1.0}), num_steps=10) as loader:
        sides = set()
        for step in loader:
            for batch in step.micro_batches:
                found = corrupt(batch, SMALL, masks, step=step.index, global_batch=16)
                for segment, id in enumerate(batch.sample_ids, start=1):
                    if (int(id) & ((1 << 40) - 1)) % 2:
                        here = batch.segment_ids == segment
                        sides.add(tuple(sorted({int(m) for m in batch.modality_ids[here & found.predicted]})))
    assert {(Modality.TEXT,), (Modality.IMAGE,)} <= sides


def test_prompts_must_not_be_cut(tmp_path: Path) -> None:
    pairs, texts = (prompted_set(tmp_path / task.label, task) for task in (Task.IMAGE_TEXT, Task.TEXT))
    for kind, dataset, specials in ((Pairs, pairs, 5), (Documents, texts, 3)):
        needed = dataset.manifest.longest_prompted + specials
        kind(dataset, needed)
        with pytest.raises(UserError, match=rf"loader\.seq_len={needed}"):
            kind(dataset, needed - 1)


def test_packed_rows_refuse_prompts(tmp_path: Path) -> None:
    dataset = prompted_set(tmp_path / "a", Task.TEXT)
    config = replace(CONFIG, document_attention=False, open_ends=OpenEnds(), task_weights={"text": 1.0})
    with pytest.raises(UserError, match=r"need loader\.document_attention=true"):
        Loader([dataset], config)


def test_equal_texts_with_other_prompts_differ_in_content(tmp_path: Path) -> None:
    """Held-out sequences are chosen by content, and the border of the prompt is content."""
    folder, text = tmp_path / "a", np.arange(8, dtype=np.int32)
    folder.mkdir()
    samples = [TokenSample(Task.TEXT, np.zeros(0, np.int32), text, prompt) for prompt in range(1, 8)]
    write_shard(folder / "s.safetensors", samples, SMALL)
    checksums = Shard(folder / "s.safetensors", Task.TEXT).checksums
    assert len(set(random_bits(0, checksums).tolist())) == 7


def test_a_held_out_part_keeps_its_prompts(tmp_path: Path) -> None:
    dataset = prompted_set(tmp_path / "a", Task.TEXT)
    held = split_by_content(Documents(dataset, 64), 0.3, held_out=True)
    for number in range(len(held)):
        length = int(held.lengths(np.array([number]), np.array([0]))[0])
        out = np.zeros(length, np.int32)
        sample = dataset[int(held.numbers(np.array([number]))[0])]
        assert held.write(number, 0, out) == 2 + sample.prompt
