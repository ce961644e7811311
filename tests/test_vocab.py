import json

import numpy as np
import pytest

from triptych.errors import CheckpointError, UserError
from triptych.vocab import NOT_A_MODALITY, Modality, Task, Vocabulary, paper_vocabulary


def test_paper_vocabulary_has_the_published_sizes():
    vocabulary = paper_vocabulary()
    assert vocabulary.size == 117_698
    assert [len(vocabulary.ids(modality)) for modality in Modality] == [100_281, 16_387, 1_027]
    assert len({vocabulary.task(task) for task in Task}) == 3


def test_every_id_has_exactly_one_meaning():
    vocabulary = Vocabulary(text=11, image=7, audio=5)
    meanings: list[int] = [vocabulary.pad, *(vocabulary.task(task) for task in Task)]
    for modality in Modality:
        meanings += [*vocabulary.data_ids(modality)]
        meanings += [vocabulary.bos(modality), vocabulary.eos(modality), vocabulary.mask(modality)]
    assert sorted(meanings) == list(range(vocabulary.size))


def test_ranges_are_disjoint_and_contain_no_task():
    vocabulary = Vocabulary(text=11, image=7, audio=5)
    ids = [set(vocabulary.ids(modality)) for modality in Modality]
    assert len(ids[0] | ids[1] | ids[2]) == sum(map(len, ids))
    for task in Task:
        assert all(vocabulary.task(task) not in members for members in ids)
        assert vocabulary.modality_of(np.array([vocabulary.task(task)]))[0] == NOT_A_MODALITY


def test_embedding_blocks_tile_the_vocabulary_and_hold_their_specials():
    vocabulary = paper_vocabulary()
    text, image, audio = vocabulary.embedding_blocks
    assert [*text, *image, *audio] == list(range(vocabulary.size))
    assert vocabulary.pad in text
    assert all(vocabulary.task(task) in text for task in Task)
    assert vocabulary.mask(Modality.IMAGE) in image
    assert vocabulary.bos(Modality.AUDIO) in audio


@pytest.mark.parametrize("modality", list(Modality))
def test_global_and_local_ids_are_inverse(modality):
    vocabulary = Vocabulary(text=11, image=7, audio=5)
    local = np.arange(vocabulary.data_size(modality))
    ids = vocabulary.to_global(modality, local)
    assert (vocabulary.modality_of(ids) == modality).all()
    assert (vocabulary.to_local(modality, ids) == local).all()


def test_ids_of_another_tokenizer_are_refused():
    vocabulary = Vocabulary(text=11, image=7, audio=5)
    with pytest.raises(UserError, match=r"image token ids must be in \[0, 7\), got 7 to 7"):
        vocabulary.to_global(Modality.IMAGE, np.array([7]))
    with pytest.raises(UserError, match="expected only text data ids"):
        vocabulary.to_local(Modality.TEXT, np.array([0, vocabulary.eos(Modality.TEXT)]))


def test_saved_and_loaded(tmp_path):
    vocabulary = Vocabulary(text=11, image=7, audio=5)
    vocabulary.save(tmp_path / "vocab.json")
    loaded = Vocabulary.load(tmp_path / "vocab.json")
    assert loaded == vocabulary
    assert loaded.fingerprint == vocabulary.fingerprint
    assert loaded.fingerprint != Vocabulary(text=11, image=7, audio=6).fingerprint


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"format": "triptych-vocabulary", "version": 1, "text": 3}', '{"version": 2}', "\xff"]
)
def test_a_damaged_file_is_one_clear_line(tmp_path, content):
    path = tmp_path / "vocab.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"vocab\.json is not a Triptych vocabulary") as caught:
        Vocabulary.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [0, -1, 10**12, 2.5, True, "7", None])
def test_impossible_sizes_are_refused(tmp_path, size):
    with pytest.raises(UserError, match="vocabulary size of image"):
        Vocabulary(text=1, image=size, audio=1)
    path = tmp_path / "vocab.json"
    path.write_text(json.dumps({"format": "triptych-vocabulary", "version": 1, "text": 1, "image": size, "audio": 1}))
    with pytest.raises(UserError):
        Vocabulary.load(path)


@pytest.mark.parametrize("modality", list(Modality))
def test_logits_have_a_column_per_data_id_then_bos_and_eos(modality):
    vocabulary = Vocabulary(text=11, image=7, audio=5)
    assert vocabulary.num_logits(modality) == vocabulary.data_size(modality) + 2
    assert vocabulary.eos_column(modality) == vocabulary.num_logits(modality) - 1
    assert vocabulary.ids(modality)[vocabulary.eos_column(modality)] == vocabulary.eos(modality)


def test_mask_ids_are_indexed_by_modality():
    vocabulary = Vocabulary(text=11, image=7, audio=5)
    assert vocabulary.mask_ids.tolist() == [vocabulary.mask(modality) for modality in Modality]
    assert vocabulary.mask_ids.dtype == np.int64
