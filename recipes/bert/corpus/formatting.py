"""A dump, or a folder of books, to one file with an article or book a line.

A dump is extracted first, in pieces of about 2 MiB of wikitext, to `extracted/{dataset}/AA/wiki_00` and so on, in the
form that WikiExtractor writes: that is what its users have scripts for, what is done in parallel, and what an
interrupted run goes on from. Then the pieces are merged. The dump is read once, as a stream.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.fetch import Tick
from harness.files import DataError, digest, read_text, reading, written
from harness.jobs import Job, run
from mwparserfromhell.parser import ParserError

from corpus.dump import CutOffError, Page, pages
from corpus.wikitext import RULES, prose

PIECE = 2 << 20  # characters of wikitext
_URL = "https://en.wikipedia.org/wiki?curid="


@dataclass
class Formatted:
    """What came of a dump: counts."""

    articles: int = 0  # with at least a line of prose
    listed: int = 0  # articles without prose: lists, disambiguations
    unread: int = 0  # articles at which the parser of wikitext gave up
    redirects: int = 0
    others: int = 0  # pages of other namespaces, or of other content than wikitext
    kept: int = 0  # pieces found finished


def extract(dump: Path, folder: Path, n_processes: int, tick: Tick = lambda said: None) -> tuple[list[Path], Formatted]:
    """Write the articles of a dump as pieces under `folder`; pieces already there from the same pages are kept.

    Returns the pieces in the dump's order, and counts.
    """
    counts, outputs = Formatted(), list[Path]()

    def jobs() -> Iterator[Job]:
        for piece in _pieces(dump, counts):
            outputs.append(folder / _piece_name(len(outputs)))
            key = digest(RULES, *(part for page in piece for part in (page.id, page.title, page.text)))
            yield Job(outputs[-1], key, (piece,))

    try:
        for done in run(jobs(), _extract_piece, folder / "finished.jsonl", n_processes):
            for name, count in {**done.figures, "kept": done.kept}.items():
                setattr(counts, name, getattr(counts, name) + count)
            tick(f"{counts.articles:,} articles")
    except CutOffError as error:
        again = "Get the whole file (--action download goes on where it stopped) and give the same command again"
        if not counts.articles:
            raise DataError(f"{error}; no article before it. {again}") from None
        raise DataError(
            f"{error}; {len(outputs):,} pieces before it are extracted and stay. {again}; or go on with what is here: "
            "--skip_wikiextractor 1"
        ) from None
    if not counts.articles:
        raise DataError(f"the dump {dump} holds no article with prose")
    # Left from a dump that was longer.
    index = len(outputs)
    while (stale := folder / _piece_name(index)).exists():
        stale.unlink()
        index += 1
    return outputs, counts


def _piece_name(index: int) -> str:
    """AA/wiki_00 … AA/wiki_99, AB/wiki_00 …, as WikiExtractor counts."""
    return f"{chr(65 + index // 2600)}{chr(65 + index // 100 % 26)}/wiki_{index % 100:02d}"


def _pieces(dump: Path, counts: Formatted) -> Iterator[list[Page]]:
    piece, size = list[Page](), 0
    try:
        for page in pages(dump):
            if not page.is_article:
                counts.redirects += page.redirect
                counts.others += not page.redirect
                continue
            piece.append(page)
            size += len(page.text)
            if size >= PIECE:
                yield piece
                piece, size = [], 0
    except CutOffError:
        if piece:
            yield piece  # the whole pages before the end
        raise
    if piece:
        yield piece


def _extract_piece(output: Path, piece: list[Page]) -> dict[str, int]:
    articles = unread = 0
    with written(output) as file:
        for page in piece:
            try:
                lines = prose(page.text)
            except (ParserError, RecursionError):  # one page in millions, and counted
                unread += 1
                continue
            if lines:
                articles += 1
                title = html.escape(page.title)
                head = f'<doc id="{page.id}" url="{_URL}{page.id}" title="{title}">\n{page.title}\n\n'
                file.write((head + "\n".join(lines) + "\n\n</doc>\n").encode())
    return {"articles": articles, "listed": len(piece) - articles - unread, "unread": unread}


def merge(pieces: Iterable[Path], output: Path) -> int:
    """Write WikiExtractor's articles to one file, one a line and an empty line after each; return how many."""
    count = 0
    with written(output) as file:
        for path in pieces:
            for lines in _documents(path):
                if text := " ".join(line.strip() for line in lines if line.strip()):
                    file.write(text.encode() + b"\n\n")
                    count += 1
        if not count:
            raise DataError(f"no article for {output}: WikiExtractor's files hold <doc …> and </doc> around each")
    return count


def _documents(path: Path) -> Iterator[list[str]]:
    """The lines of each document, without the title that is its first line."""
    lines: list[str] | None = None
    with reading(path), path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            if line.startswith("<doc id="):
                lines = []
            elif line.startswith("</doc>") and lines is not None:
                yield lines[1:]
                lines = None
            elif lines is not None:
                lines.append(line)
    if lines is not None:
        raise DataError(f"{path} ends inside an article: it was not written to its end")


def format_books(folder: Path, output: Path) -> int:
    """Write every .txt file under `folder` as one line, in the order of their names; return how many."""
    count = 0
    with written(output) as file:
        for path in sorted(folder.rglob("*.txt")):
            if text := " ".join(read_text(path, encoding="utf-8-sig").split()):
                file.write(text.encode() + b"\n\n")
                count += 1
        if not count:
            raise DataError(f"no book in {folder}: one .txt file a book is expected there")
    return count
