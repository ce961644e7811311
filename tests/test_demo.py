import re

from triptych.cli import main


def test_the_demo_writes_a_page_with_all_three_forms(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path / "page"), "--sentences", "2"]) == 0
    page = (tmp_path / "page/index.html").read_text()
    assert len(re.findall("class='picture'", page)) == 4
    assert len(re.findall("class='spectrogram'", page)) == 4
    assert len(re.findall("data:audio/wav;base64", page)) == 4
    said = capsys.readouterr().out
    assert "index.html" in said
    assert said.count("right") == 2  # the judge, on both pictures


def test_a_wrong_number_is_one_clear_line(tmp_path, capsys):
    assert main(["demo", "--sentences", "0"]) == 2
    assert capsys.readouterr().err == "triptych: error: --sentences must be at least 1, got 0.\n"
