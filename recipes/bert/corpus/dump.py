"""Pages out of a MediaWiki XML dump, one at a time: memory stays the same whatever the size of the file.

Format: https://www.mediawiki.org/xml/export-0.11/ (and the versions before it, which differ in nothing read here).
"""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple, cast
from xml.etree import ElementTree

from harness.files import DataError

_BLOCK = 1 << 16
_NO_ELEMENT, _UNCLOSED_TOKEN, _PARTIAL = 3, 5, 6  # expat's codes for text that just stops


class CutOffError(DataError):
    """The dump ends before its end, or is damaged; the pages before that place have been yielded."""


class Page(NamedTuple):
    """A page's newest revision as the dump has it: `text` is wikitext."""

    id: str
    title: str
    namespace: str
    redirect: bool
    text: str

    @property
    def is_article(self) -> bool:
        return self.namespace == "0" and not self.redirect and bool(self.text)


def find_dump(folder: Path, name: str) -> Path:
    """Return the dump that a folder of downloads holds."""
    for ending in (".xml.bz2", ".xml", ".xml.gz"):
        if (path := folder / f"{name}{ending}").is_file():
            return path
    raise DataError(
        f"no dump at {folder / name}.xml.bz2: --action download fetches it, --input_files names one elsewhere"
    )


def pages(path: Path) -> Iterator[Page]:
    """Yield the pages of a dump in its order; its content tells .xml, .xml.bz2 (also multistream) and .xml.gz apart."""
    count, last = 0, "none"
    try:
        with _opened(path) as file:
            for page in _parsed(file, path):
                yield page
                count, last = count + 1, page.title
    except (EOFError, ElementTree.ParseError, gzip.BadGzipFile, OSError) as error:
        if count == 0 and isinstance(error, ElementTree.ParseError) and error.code != _NO_ELEMENT:
            raise DataError(f"{path} is no MediaWiki XML dump: {error}") from None
        ends = isinstance(error, EOFError) or getattr(error, "code", None) in (_NO_ELEMENT, _UNCLOSED_TOKEN, _PARTIAL)
        what = "ends in the middle" if ends else f"is damaged ({error})"
        raise CutOffError(f"the dump {path} {what} after {count:,} pages, the last of them {last!r}") from None


def _opened(path: Path) -> IO[bytes]:
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    if start[:3] == b"BZh":
        return bz2.open(path)
    if start[:2] == b"\x1f\x8b":
        return gzip.open(path)  # type: ignore[return-value]
    if start.lstrip(b"\xef\xbb\xbf \r\n\t")[:1] != b"<":
        raise DataError(f"{path} is no MediaWiki XML dump: neither XML nor bzip2 or gzip")
    return path.open("rb")


def _parsed(file: IO[bytes], path: Path) -> Iterator[Page]:
    parser: ElementTree.XMLPullParser[ElementTree.Element] = ElementTree.XMLPullParser(("start", "end"))
    root: ElementTree.Element | None = None
    while True:
        # read1 hands out what was unpacked before it meets the end of a cut file.
        block = file.read1(_BLOCK)  # type: ignore[attr-defined]
        if block:
            parser.feed(block)
        else:
            parser.close()
        for event, element in cast(Iterator[tuple[str, ElementTree.Element]], parser.read_events()):
            if root is None:
                root = element
                if _local(root.tag) != "mediawiki":
                    raise DataError(f"{path} is no MediaWiki XML dump: its root is <{_local(root.tag)}>")
            elif event == "end" and element.tag.endswith("page") and _local(element.tag) == "page":
                yield _page(element)
                root.clear()  # the page is the root's child: without this all of them would stay
        if not block:
            return


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def _page(element: ElementTree.Element) -> Page:
    fields = {_local(child.tag): child for child in element}
    revision = {_local(child.tag): child for child in fields.get("revision", ())}
    text = (revision["text"].text or "") if "text" in revision else ""
    model = revision["model"].text if "model" in revision else "wikitext"

    def value(name: str) -> str:
        return (fields[name].text or "") if name in fields else ""

    # Dumps before 2012 mark a redirect by its text alone.
    redirect = "redirect" in fields or text[:9].upper() == "#REDIRECT"
    return Page(value("id"), value("title"), value("ns") or "0", redirect, text if model == "wikitext" else "")
