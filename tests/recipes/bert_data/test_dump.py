"""The stream of pages, pieces of it in several processes, and dumps that end too early."""

from __future__ import annotations

import bz2
import gzip
import io
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from corpus.dump import CutOffError, pages
from corpus.formatting import extract, format_books, merge
from harness.files import DataError

RECIPE = Path(__file__).parents[3] / "recipes" / "bert"
PAGE = "<page><title>P{0}</title><ns>0</ns><id>{0}</id><revision><text>Prose number {0}.</text></revision></page>"


def dump_of(count: int) -> bytes:
    body = "".join(map(PAGE.format, range(count)))
    return f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/">{body}</mediawiki>'.encode()


def test_pages_of_a_real_dump_are_told_apart(excerpt: Path) -> None:
    excerpted = list(pages(excerpt))
    assert Counter((page.is_article, page.redirect, page.namespace) for page in excerpted) == {
        (True, False, "0"): 11,
        (False, True, "0"): 4,
        (False, True, "4"): 1,
    }
    albedo = next(page for page in excerpted if page.title == "Albedo")
    assert albedo.id == "39"
    assert albedo.text.startswith("{{Other uses}}")


@pytest.mark.parametrize("packed", ["plain", "bzip2", "multistream", "gzip"])
def test_a_dump_is_known_by_its_content(tmp_path: Path, packed: str) -> None:
    raw = dump_of(5)
    half = len(raw) // 2
    content = {
        "plain": raw,
        "bzip2": bz2.compress(raw),
        "multistream": bz2.compress(raw[:half]) + bz2.compress(raw[half:]),
        "gzip": gzip.compress(raw),
    }[packed]
    (tmp_path / "dump").write_bytes(content)
    assert [page.title for page in pages(tmp_path / "dump")] == ["P0", "P1", "P2", "P3", "P4"]


def test_old_dumps_mark_a_redirect_by_its_text(tmp_path: Path) -> None:
    (tmp_path / "dump").write_bytes(dump_of(1).replace(b"Prose number 0.", b"#redirect [[Other]]"))
    assert [page.redirect for page in pages(tmp_path / "dump")] == [True]


PEAK = """
import sys, tracemalloc
from pathlib import Path
sys.path[:0] = [{recipe!r}, {recipes!r}]
from corpus.dump import pages
tracemalloc.start()
count = sum(1 for _ in pages(Path({dump!r})))
print(count, tracemalloc.get_traced_memory()[1])
"""


def test_memory_does_not_grow_with_the_dump(tmp_path: Path) -> None:
    peaks = []
    for count in (1000, 5000):
        dump = tmp_path / "dump"
        dump.write_bytes(bz2.compress(dump_of(count).replace(b"Prose", b"Prose " * 100)))
        # In a process of its own: what other threads of this one allocate would be counted, too.
        script = PEAK.format(recipe=str(RECIPE), recipes=str(RECIPE.parent), dump=str(dump))
        said = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
        assert int(said[0]) == count
        peaks.append(int(said[1]))
    assert peaks[1] < 1.2 * peaks[0]


@pytest.mark.parametrize("cut", ["in the compressed stream", "between two streams", "in the XML"])
def test_a_cut_dump_yields_its_whole_pages_and_says_so(tmp_path: Path, cut: str) -> None:
    raw = dump_of(50)
    at = raw.index(b"<title>P30")
    content = {
        "in the compressed stream": bz2.compress(raw[:at]) + bz2.compress(raw[at:])[:-20],
        "between two streams": bz2.compress(raw[:at]),
        "in the XML": raw[:at],
    }[cut]
    (tmp_path / "dump").write_bytes(content)
    titles = []
    with pytest.raises(CutOffError, match="ends in the middle after 30 pages, the last of them 'P29'"):
        for page in pages(tmp_path / "dump"):
            titles.append(page.title)
    assert titles == [f"P{number}" for number in range(30)]


def test_a_damaged_dump_is_told_from_a_cut_one(tmp_path: Path) -> None:
    raw = bytearray(
        bz2.compress(dump_of(5000), 1)  # blocks of 100 kB
    )
    raw[len(raw) * 3 // 4] ^= 0xFF
    (tmp_path / "dump").write_bytes(raw)
    with pytest.raises(CutOffError, match="is damaged"):
        list(pages(tmp_path / "dump"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "neither XML nor bzip2 or gzip"),
        (b"PK\x03\x04", "neither XML nor bzip2 or gzip"),
        (b"<html><body/></html>", "its root is <html>"),
        (b"<mediawiki><page></mediawiki>", "no MediaWiki XML dump"),
    ],
)
def test_what_is_no_dump_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "dump").write_bytes(content)
    with pytest.raises(DataError, match=said):
        list(pages(tmp_path / "dump"))


def test_pieces_merge_to_an_article_a_line_in_the_order_of_the_dump(
    tmp_path: Path, excerpt: Path, articles: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corpus.formatting.PIECE", 30_000)
    pieces, summary = extract(excerpt, tmp_path / "extracted", 1)
    count = merge(pieces, tmp_path / "one_per_line.txt")
    written = [" ".join(lines) for lines in articles.values() if lines]
    assert (tmp_path / "one_per_line.txt").read_text(encoding="utf-8") == "".join(
        f"{article}\n\n" for article in written
    )
    assert (count, summary.articles, summary.redirects, summary.others) == (len(written), len(written), 5, 0)
    assert summary.articles + summary.listed == 11
    assert [piece.relative_to(tmp_path).as_posix() for piece in pieces[:2]] == [
        "extracted/AA/wiki_00",
        "extracted/AA/wiki_01",
    ]
    head = pieces[0].read_text(encoding="utf-8").split("\n")
    assert head[:3] == ['<doc id="39" url="https://en.wikipedia.org/wiki?curid=39" title="Albedo">', "Albedo", ""]


def test_a_rerun_makes_only_what_changed(tmp_path: Path, excerpt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corpus.formatting.PIECE", 30_000)
    raw = bz2.decompress(excerpt.read_bytes())
    (tmp_path / "cut").write_bytes(raw[: raw.index(b"<title>Adobe")])
    with pytest.raises(DataError, match="ends in the middle .* pieces before it are extracted and stay") as caught:
        extract(tmp_path / "cut", tmp_path / "extracted", 1)
    assert "\n" not in str(caught.value)
    whole, summary = extract(excerpt, tmp_path / "extracted", 1)
    assert 0 < summary.kept < len(whole)
    fresh, _ = extract(excerpt, tmp_path / "fresh", 1)
    assert [piece.read_bytes() for piece in whole] == [piece.read_bytes() for piece in fresh]
    # A piece that was changed since is made again; one that is no longer of the dump goes.
    whole[0].write_text("torn")
    again, summary = extract(excerpt, tmp_path / "extracted", 1)
    assert summary.kept == len(whole) - 1
    assert again[0].read_bytes() == fresh[0].read_bytes()
    short = raw[: raw.index(b"<page>", raw.index(b"<title>Albedo"))] + b"</mediawiki>"
    (tmp_path / "short").write_bytes(short)
    only, _ = extract(tmp_path / "short", tmp_path / "extracted", 1)
    assert sorted((tmp_path / "extracted").glob("*/wiki_*")) == only


def test_files_of_wikiextractor_itself_are_merged(tmp_path: Path) -> None:
    text = io.StringIO()
    text.write(
        '<doc id="1" url="u" title="T">\nT\n\nFirst line.\nSecond.\n\n</doc>\n'
        '<doc id="2" url="u" title="E">\nE\n\n</doc>\n'
    )
    (tmp_path / "wiki_00").write_text(text.getvalue())
    assert merge([tmp_path / "wiki_00"], tmp_path / "out") == 1
    assert (tmp_path / "out").read_text() == "First line. Second.\n\n"
    (tmp_path / "wiki_01").write_text('<doc id="1" url="u" title="T">\nT\n\nFirst')
    with pytest.raises(DataError, match="wiki_01 ends inside an article"):
        merge([tmp_path / "wiki_01"], tmp_path / "out")
    with pytest.raises(DataError, match="no article"):
        merge([], tmp_path / "out")
    assert (tmp_path / "out").read_text() == "First line. Second.\n\n"


def test_books_become_a_line_each(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes("\ufeffTwo\n\nparagraphs".encode())
    (tmp_path / "a.txt").write_text("One\n")
    assert format_books(tmp_path, tmp_path / "out") == 2
    assert (tmp_path / "out").read_text() == "One\n\nTwo paragraphs\n\n"
