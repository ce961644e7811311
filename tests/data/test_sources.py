"""Every format against small files, intact and damaged."""

import csv
import gzip
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import soundfile
import zstandard
from data_fakes import png, wav

from triptych.data.sources import FORMATS, BadSample, Item, ReadOptions, open_source
from triptych.data.sources import base as base_module
from triptych.data.sources import files as files_module
from triptych.data.types import RawSample
from triptych.errors import DataError, UserError
from triptych.vocab import Task


def read(*inputs: Path | str, **kwargs) -> list[Item]:
    return list(open_source([str(path) for path in inputs], **kwargs))


def texts(items: list[Item]) -> list[str]:
    assert all(isinstance(item, RawSample) for item in items), items
    return [item.text for item in items]


def compress(content: bytes, suffix: str) -> bytes:
    if suffix == ".gz":
        return gzip.compress(content)
    return zstandard.compress(content) if suffix == ".zst" else content


def make_tar(path: Path, members: list[tuple[str, bytes]], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def write_jsonl(path: Path, rows: list) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# -- text -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_jsonl_of_texts(tmp_path: Path, suffix: str) -> None:
    lines = [{"text": "one  two\n"}, {"text": "Grüße 🎈", "url": "http://a/b.jpg"}, {"caption": "another column"}]
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(compress("\n".join(map(json.dumps, lines)).encode(), suffix))
    source = open_source([str(path)])
    items = list(source)
    assert source.task == Task.TEXT
    assert source.fraction == 1.0
    assert texts(items) == ["one  two\n", "Grüße 🎈", "another column"]
    assert [item.key for item in items] == [f"{path}:{n}" for n in (1, 2, 3)]


def test_text_key_chooses_the_column(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "no", "body": "yes"}, {"text": "no"}])
    good, bad = read(path, options=ReadOptions(text_key="body"))
    assert good == RawSample(f"{path}:1", "yes")
    assert bad == BadSample(f"{path}:2", "no text: looked for a string under 'body'")


def test_bad_lines_are_marked_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [
        b'{"text": "ok"}',
        b"",
        b"{broken",
        b"[1]",
        b'{"text": 3}',
        b'{"text": "\xff"}',
        b"[" * 100_000,
        b'{"text": "end"}',
    ]
    path.write_bytes(b"\r\n".join(lines))
    items = read(path)
    assert [item.category if isinstance(item, BadSample) else item.text for item in items] == [
        "ok", "bad JSON", "not a record", "no text", "not UTF-8", "bad JSON", "end",
    ]  # fmt: skip
    assert items[1].key == f"{path}:3"


def test_very_long_lines_do_not_fill_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "MAX_TEXT_BYTES", 64)
    path = tmp_path / "a.txt"
    path.write_bytes(b"first\n" + b"x" * 1000 + b"\n" + b"y" * 63 + b"\nlast")
    items = read(path, options=ReadOptions(per_line=True))
    assert [item.category if isinstance(item, BadSample) else item.text for item in items] == [
        "first", "text too long", "y" * 63, "last",
    ]  # fmt: skip
    assert [item.category for item in read(path)] == ["text too long"]


def test_zstd_reading_is_bounded_and_spans_frames(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.zst"
    path.write_bytes(
        zstandard.compress(b"one\ntw") + zstandard.compress(b"") + zstandard.compress(b"o\n" + b"z" * 10**6)
    )
    assert texts(read(path, options=ReadOptions(per_line=True))) == ["one", "two", "z" * 10**6]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_plain_text_by_file_and_by_line(tmp_path: Path, suffix: str) -> None:
    for name, content in (("b.txt", "second\n\nfile\n"), ("a.txt", "\ufefffirst\r\nfile")):
        (tmp_path / f"{name}{suffix}").write_bytes(compress(content.encode(), suffix))
    assert texts(read(tmp_path)) == ["first\r\nfile", "second\n\nfile\n"]
    assert texts(read(tmp_path, options=ReadOptions(per_line=True))) == ["first", "file", "second", "file"]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_truncated_file_loses_its_rest_and_no_other_file(tmp_path: Path, suffix: str) -> None:
    rng = np.random.default_rng(0)
    content = "".join(json.dumps({"text": rng.bytes(40).hex()}) + "\n" for _ in range(5000)).encode()
    whole = compress(content, suffix)
    (tmp_path / f"a.jsonl{suffix}").write_bytes(whole[: len(whole) // 2])
    (tmp_path / f"b.jsonl{suffix}").write_bytes(compress(b'{"text": "next"}', suffix))
    items = read(tmp_path)
    assert 1000 < len(items) < 4000
    assert items[-1].text == "next"
    assert [item.category for item in items if isinstance(item, BadSample)][-1] == "rest of the file unreadable"


def test_parquet_of_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"id": [1, 2, 3], "text": ["a", None, "c"], "blob": [b"x", b"y", b"z"]})
    pyarrow.parquet.write_table(table, path, row_group_size=2)
    source = open_source([str(path)])
    assert source.task == Task.TEXT
    first, second, third = source
    assert (first, third) == (RawSample(f"{path}:1", "a"), RawSample(f"{path}:3", "c"))
    assert isinstance(second, BadSample)


# -- images ----------------------------------------------------------------------------------------------------------


def test_images_with_captions_beside_them(tmp_path: Path) -> None:
    for name in ("b.PNG", "a.jpg", "sub/c.webp", ".hidden.png", "no caption.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"not decoded here")
    for name in ("a", "b", "sub/c"):
        (tmp_path / f"{name}.txt").write_text(f" {name}\n")
    source = open_source([str(tmp_path)])
    assert source.task == Task.IMAGE_TEXT
    items = list(source)
    expected = [(tmp_path / name, name.partition(".")[0]) for name in ("a.jpg", "b.PNG", "sub/c.webp")]
    assert [item for item in items if isinstance(item, RawSample)] == [
        RawSample(str(p), t, str(p)) for p, t in expected
    ]
    assert [item.category for item in items if isinstance(item, BadSample)] == ["no caption"]


def test_a_folder_of_both_media_needs_a_task(tmp_path: Path) -> None:
    for name in ("a.png", "b.wav"):
        (tmp_path / name).write_bytes(b"")
        (tmp_path / name).with_suffix(".txt").write_text(name)
    with pytest.raises(DataError, match=r"image-text in .*a\.png, audio-text in .*b\.wav"):
        read(tmp_path)
    assert texts(read(tmp_path, task=Task.AUDIO_TEXT)) == ["b.wav"]


@pytest.mark.parametrize("name", ["metadata.jsonl", "captions.jsonl", "captions.csv", "metadata.tsv"])
def test_images_described_by_a_table(tmp_path: Path, name: str) -> None:
    rows = [{"file_name": "x/1.png", "text": 'a "quoted", caption'}, {"file_name": "2.jpg", "text": "two\nlines "}]
    path = tmp_path / "train" / name
    if name.endswith(".jsonl"):
        write_jsonl(path, rows)
    else:
        path.parent.mkdir()
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, ["file_name", "text"], delimiter="\t" if name.endswith(".tsv") else ",")
            writer.writeheader()
            writer.writerows(rows)
    write_jsonl(tmp_path / "train" / "unrelated.jsonl", [{"loss": 1}])
    (tmp_path / "train" / "2.txt").write_text("not this")
    source = open_source([str(tmp_path)])
    assert source.task == Task.IMAGE_TEXT
    assert [(item.text, item.media) for item in source] == [
        ('a "quoted", caption', str(tmp_path / "train/x/1.png")),
        ("two\nlines", str(tmp_path / "train/2.jpg")),
    ]


def test_csv_rows_that_do_not_fit_are_marked(tmp_path: Path) -> None:
    path = tmp_path / "captions.csv"
    path.write_bytes(
        b"\xef\xbb\xbffile_name,text\na.png,ok\nb.png\nc.png,bad \xff byte\nd.png,one,too many\n\ne.png,end\n"
    )
    items = read(path)
    assert [item.category if isinstance(item, BadSample) else item.text for item in items] == [
        "ok", "bad CSV", "bad \udcff byte", "bad CSV", "end",
    ]  # fmt: skip
    assert items[-1].key == f"{path}:7"


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
def test_webdataset_of_images(tmp_path: Path, suffix: str) -> None:
    members = [
        ("./d/0001.jpg", b"JPG"),
        ("./d/0001.txt", b"first\n"),
        ("./d/0002.json", json.dumps({"caption": "second", "image": "old/path.png", "url": "u"}).encode()),
        ("./d/0002.cls", b"7"),
        ("./d/0002.webp", b"WEBP"),
        ("./d/._0002.webp", b"resource fork"),
        ("e/0003.png", b"PNG"),
        ("e/0004.txt", b"caption without an image"),
        ("e/0005.cls", b"neither"),
        ("e/0006.seg.png", b"mask"),
        ("e/0006.PNG", b"LAST"),
        ("e/0006.txt", b"last"),
    ]
    path = make_tar(tmp_path / f"a{suffix}", members, "w:gz" if suffix.endswith("gz") else "w")
    source = open_source([str(path)])
    assert source.task == Task.IMAGE_TEXT
    assert list(source) == [
        RawSample(f"{path}:d/0001", "first", b"JPG"),
        RawSample(f"{path}:d/0002", "second", b"WEBP"),
        BadSample(
            f"{path}:e/0003",
            "no text: looked for one of text, caption, transcript, transcription, sentence, or prompt and response, "
            "question and answer, instruction and output",
        ),
        BadSample(f"{path}:e/0004", "no image: the row has 'text'"),
        RawSample(f"{path}:e/0006", "last", b"LAST"),
    ]
    assert read(path, options=ReadOptions(media_key="seg.png"))[-1] == RawSample(f"{path}:e/0006", "last", b"mask")


def test_sharded_tars_by_braces_and_patterns(tmp_path: Path) -> None:
    for number in range(8, 12):
        make_tar(tmp_path / f"s-{number:03d}.tar", [("x.png", b"P"), ("x.txt", str(number).encode())])
    assert texts(read(f"{tmp_path}/s-{{008..010}}.tar")) == ["8", "9", "10"]
    assert texts(read(f"{tmp_path}/s-{{011,008}}.tar")) == ["11", "8"]
    assert texts(read(f"{tmp_path}/s-*.tar")) == ["8", "9", "10", "11"]
    assert texts(read(tmp_path)) == ["8", "9", "10", "11"]
    with pytest.raises(DataError, match=r"no such file or folder: .*s-012\.tar"):
        read(f"{tmp_path}/s-{{008..012}}.tar")


def test_hostile_tar_members_are_bad_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triptych.data.sources.tars.MAX_MEDIA_BYTES", 1000)
    secret = tmp_path / "secret.png"
    secret.write_bytes(b"SECRET")
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:

        def add(name: str, content: bytes = b"P", **fields) -> None:
            info = tarfile.TarInfo(name)
            for field, value in fields.items():
                setattr(info, field, value)
            info.size = len(content) if info.type == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(content))

        for number, (name, fields) in enumerate(
            [
                ("../../up.png", {}),
                ("/etc/absolute.png", {}),
                ("soft.png", {"type": tarfile.SYMTYPE, "linkname": str(secret)}),
                ("hard.png", {"type": tarfile.LNKTYPE, "linkname": str(secret)}),
                ("device.png", {"type": tarfile.CHRTYPE}),
                ("large.png", {"content": b"x" * 1001}),
                ("good.png", {}),
            ]
        ):
            add(name, **fields)
            add(name.replace(".png", ".txt"), f"caption {number}".encode())
    items = read(path)
    assert [item.category if isinstance(item, BadSample) else (item.text, item.media) for item in items] == [
        *["unsafe name in tar"] * 2,
        *["not a plain file in tar"] * 3,
        "file too large",
        ("caption 6", b"P"),
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tar", "secret.png"]


@pytest.mark.parametrize("damage", ["cut in data", "cut in header", "broken header"])
def test_a_damaged_tar_is_noticed(tmp_path: Path, damage: str) -> None:
    members = [(f"{n}.{kind}", bytes(700)) for n in range(4) for kind in ("png", "txt")]
    content = bytearray(make_tar(tmp_path / "a.tar", members).read_bytes())
    third = 4 * (512 + 1024)  # start of the members of sample 2
    match damage:
        case "cut in data":
            content = content[: third + 512 + 100]
        case "cut in header":
            content = content[: third + 100]
        case "broken header":
            content[third + 10 : third + 200] = b"?" * 190
    (tmp_path / "a.tar").write_bytes(content)
    make_tar(tmp_path / "b.tar", [("x.png", b"P"), ("x.txt", b"next")])
    items = read(tmp_path)
    assert [item.category for item in items if isinstance(item, BadSample)] == ["rest of the file unreadable"]
    assert items[-1].text == "next"


@pytest.mark.parametrize("kind", ["bytes", "struct"])
def test_parquet_of_images(tmp_path: Path, kind: str) -> None:
    images: list = [png(10), png(20)]
    if kind == "struct":
        images = [{"bytes": images[0], "path": "a.png"}, {"bytes": None, "path": "b.png"}]
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"image": images, "caption": ["ten", "twenty"]}), path)
    source = open_source([str(path)])
    assert source.task == Task.IMAGE_TEXT
    second = png(20) if kind == "bytes" else str(tmp_path / "b.png")
    assert [(item.text, item.media) for item in source] == [("ten", png(10)), ("twenty", second)]
    assert [item.media for item in read(path, task=Task.TEXT)] == [None, None]


# -- audio -----------------------------------------------------------------------------------------------------------


def test_nemo_manifest(tmp_path: Path) -> None:
    rows = [
        {"audio_filepath": "a.wav", "text": "hello ", "duration": 1.5, "offset": 0.25},
        {"audio_filepath": "/data/b.flac", "text": "there"},
        {"audio_filepath": "c.wav", "text": "x", "offset": -1},
        {"audio_filepath": "c.wav", "text": "x", "duration": "long"},
        {"audio_filepath": "c.wav", "text": "x", "duration": float("nan")},
        {"text": "x"},
    ]
    path = write_jsonl(tmp_path / "manifest.jsonl", rows)
    source = open_source([str(path)])
    assert source.task == Task.AUDIO_TEXT
    items = list(source)
    assert items[:2] == [
        RawSample(f"{path}:1", "hello", str(tmp_path / "a.wav"), 0.25, 1.5),
        RawSample(f"{path}:2", "there", "/data/b.flac"),
    ]
    assert [item.category for item in items[2:]] == ["bad offset or duration"] * 3 + ["no audio"]


@pytest.mark.parametrize(("name", "delimiter"), [("m.csv", ","), ("m.tsv", "\t")])
def test_audio_tables(tmp_path: Path, name: str, delimiter: str) -> None:
    path = tmp_path / name
    lines = [["path", "sentence", "duration"], ["clips/1.mp3", "good morning", "2.5"], ["2.ogg", "night", ""]]
    path.write_text("\n".join(delimiter.join(line) for line in lines))
    assert read(path) == [
        RawSample(f"{path}:2", "good morning", str(tmp_path / "clips/1.mp3"), 0.0, 2.5),
        RawSample(f"{path}:3", "night", str(tmp_path / "2.ogg")),
    ]


def test_librispeech(tmp_path: Path) -> None:
    for speaker, chapter in (("84", "2"), ("84", "1"), ("9", "5")):
        folder = tmp_path / "dev" / speaker / chapter
        folder.mkdir(parents=True)
        names = [f"{speaker}-{chapter}-{n:04d}" for n in range(2)]
        for name in names:
            soundfile.write(folder / f"{name}.flac", np.zeros(80, np.float32), 8000)
        (folder / f"{speaker}-{chapter}.trans.txt").write_text("".join(f"{name} WORDS OF {name}\n" for name in names))
    (tmp_path / "dev/84/1/84-1.trans.txt").open("a").write("84-1-0009 GONE\n../../9/5/9-5-0000 OUTSIDE\n")
    (tmp_path / "README.txt").write_text("about")
    source = open_source([str(tmp_path)])
    assert source.task == Task.AUDIO_TEXT
    items = list(source)
    good = [item for item in items if isinstance(item, RawSample)]
    assert [Path(item.media).name for item in good] == [
        f"{name}.flac" for name in ("84-1-0000", "84-1-0001", "84-2-0000", "84-2-0001", "9-5-0000", "9-5-0001")
    ]
    assert all(item.text == f"WORDS OF {Path(item.media).stem}" for item in good)
    assert [item.category for item in items if isinstance(item, BadSample)] == ["missing file"] * 2


def test_webdataset_of_audio(tmp_path: Path) -> None:
    members = [("1.wav", wav(0.5)), ("1.txt", b"one"), ("2.json", b'{"text": "two", "offset": 1}'), ("2.flac", b"FLAC")]
    path = make_tar(tmp_path / "a.tar", members)
    source = open_source([str(path)])
    assert source.task == Task.AUDIO_TEXT
    assert list(source) == [RawSample(f"{path}:1", "one", wav(0.5)), RawSample(f"{path}:2", "two", b"FLAC", 1.0)]


# -- detection -------------------------------------------------------------------------------------------------------


def test_an_input_without_samples_lists_the_formats(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_text("?")
    with pytest.raises(
        DataError, match=r"(?s)found no samples among the 1 files in .*Looked for:.*\*\.parquet"
    ) as caught:
        read(tmp_path)
    assert all(format.looks_for in str(caught.value) for format in FORMATS)
    with pytest.raises(DataError, match="no such file or folder"):
        read(tmp_path / "missing")


def test_images_without_captions_are_not_pairs(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(1))
    with pytest.raises(DataError, match="found no samples"):
        read(tmp_path)


def test_unknown_columns_are_named(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"body": "x", "id": 1}])
    with pytest.raises(
        DataError, match=r"looked for one of text, caption, .* found 'body', 'id'\. Choose with --text-key"
    ):
        read(path)


def test_files_with_a_wrong_suffix_are_refused(tmp_path: Path) -> None:
    for name in ("a.parquet", "a.tar", "a.jsonl.gz", "a.jsonl.zst"):
        (tmp_path / name).write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
        with pytest.raises(DataError, match=f"{name} cannot be read as"):
            read(tmp_path / name)


def test_format_can_be_forced(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"text": "json"}])
    (tmp_path / "a.txt").write_text("plain")
    assert texts(read(tmp_path)) == ["json"]
    assert texts(read(tmp_path, format="txt")) == ["plain"]
    with pytest.raises(UserError, match=r"unknown format .tx.\. Did you mean .txt."):
        read(tmp_path, format="tx")


def test_fingerprint_changes_with_any_file(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"P")
    (tmp_path / "a.txt").write_text("caption")
    before = open_source([str(tmp_path)]).fingerprint()
    assert open_source([str(tmp_path)]).fingerprint() == before
    (tmp_path / "a.txt").write_text("another")
    assert open_source([str(tmp_path)]).fingerprint() != before


def test_every_media_suffix_is_known_once() -> None:
    assert not set(base_module.IMAGE_SUFFIXES) & set(base_module.AUDIO_SUFFIXES)


# -- ambiguous inputs ------------------------------------------------------------------------------------------------


def test_an_unrelated_table_does_not_hide_the_images(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(0))
    (tmp_path / "a.txt").write_text("an image")
    (tmp_path / "notes.csv").write_text("text\nsomething else\n")
    with pytest.raises(UserError, match=r"several formats: table .*notes\.csv.*, pairs .*a\.png.*--format"):
        open_source([str(tmp_path)])
    assert texts(read(tmp_path, format="pairs")) == ["an image"]


def test_a_media_column_without_media_is_not_text(tmp_path: Path) -> None:
    rows = [{"text": "one", "image": None}, {"text": "two", "image": "a.png"}]
    assert open_source([str(write_jsonl(tmp_path / "later.jsonl", rows))]).task == Task.IMAGE_TEXT
    unusable = {"m4a": {"audio_filepath": "x.m4a", "text": "t"}, "url": {"image": "https://x/y.jpg", "text": "t"}}
    for name, row in unusable.items():
        path = write_jsonl(tmp_path / f"{name}.jsonl", [row])
        with pytest.raises(DataError, match=r"no image or audio in it.*--task text"):
            open_source([str(path)])
        assert texts(read(path, task=Task.TEXT)) == ["t"]


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "once"}])
    assert texts(read(path, f"{tmp_path}/./a.jsonl", tmp_path / "*.jsonl")) == ["once"]


def test_one_text_that_is_not_utf8_makes_one_parquet_row_bad(tmp_path: Path) -> None:
    raw = pyarrow.array([f"row {n}".encode() if n != 100 else b"\xff\xfe" for n in range(200)], pyarrow.binary())
    column = pyarrow.Array.from_buffers(pyarrow.string(), len(raw), raw.buffers())
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), tmp_path / "a.parquet")
    items = read(tmp_path / "a.parquet")
    assert [type(item) for item in items].count(BadSample) == 1
    assert len(texts([item for item in items if isinstance(item, RawSample)])) == 199


@pytest.mark.parametrize("text", ["", "x{3..1}.tar"])
def test_empty_inputs_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="empty"):
        open_source([text])


def test_broken_links_are_skipped(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"text": "here"}])
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "gone.jsonl")
    (tmp_path / "c.jsonl").symlink_to(tmp_path / "c.jsonl")
    assert texts(read(tmp_path)) == ["here"]


def test_plain_text_holds_no_images(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words")
    with pytest.raises(UserError, match="plain text files hold no image-text samples"):
        open_source([str(tmp_path / "a.txt")], task=Task.IMAGE_TEXT)


@pytest.mark.parametrize("offset", [1e306, 10**400, -1, "soon"])
def test_impossible_offsets_are_bad_samples(tmp_path: Path, offset: object) -> None:
    rows = [{"text": "t", "audio_filepath": "a.wav"}, {"text": "t", "audio_filepath": "a.wav", "offset": offset}]
    items = read(write_jsonl(tmp_path / "a.jsonl", rows))
    assert isinstance(items[0], RawSample)
    assert isinstance(items[1], BadSample)
    assert items[1].category == "bad offset or duration"
