"""Wikitext to prose: paragraphs stay; headings, lists, tables, references, formulas, pictures and templates go.

BERT's authors took "only the text passages" of Wikipedia and left out "lists, tables, and headers" (Devlin et al.,
2018, section 3.1). The work is shared: what goes as a whole (references, templates, tables) is cut by expressions that
look for the innermost pair first; the rest (links, styles, tags, entities, headings) is parsed by mwparserfromhell.
Parsing whole pages with it takes four times as long, since much of a page is what goes.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import mwparserfromhell
from mwparserfromhell import nodes

from corpus.templates import words_of

RULES = 1
"""Counted up when the text of an article comes out otherwise, so that articles made before are made again."""

_GONE = (
    "ref", "references", "gallery", "math", "chem", "ce", "timeline", "syntaxhighlight", "source", "score", "imagemap",
    "hiero", "graph", "mapframe", "maplink", "templatestyles", "categorytree", "inputbox", "includeonly", "table",
    "pre", "indicator", "section",
)  # fmt: skip
_GONE_TAGS = frozenset(_GONE)

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_NOWIKI = re.compile(r"<nowiki\s*>(.*?)</nowiki\s*>|<nowiki\s*/>", re.DOTALL | re.IGNORECASE)
_GONE_TAG = re.compile(
    rf"</(?P<closing>{'|'.join(_GONE)})\s*>|<(?P<opening>{'|'.join(_GONE)})\b[^<>]*?(?P<empty>/?)>", re.IGNORECASE
)
# A pair with none of its kind inside; single braces may occur in it.
_TEMPLATE = re.compile(r"\{\{((?:[^{}]|\{(?!\{)|\}(?!\}))*)\}\}")
_TABLE = re.compile(r"\{\|(?:(?!\{\||\|\}).)*\|\}", re.DOTALL)
_DEEPEST = 60  # MediaWiki itself expands templates to a depth of 40
_BEHAVIOUR = re.compile(r"__[A-Z]{3,}__")

# A line that still holds any of these was not understood: better a paragraph less than markup in the text.
_LEFT = re.compile(r"\{\{|\}\}|\{\||\|\}|\[\[|\]\]|'''|<!--|</?[a-zA-Z][a-zA-Z0-9]*[^<>]*>|\w+=\"[^\"]*\" *\||^[|!]")
_HOLLOW = re.compile(r"[(\[][\s,;:–/]*[)\]]")  # what a template leaves that stood in brackets
_BEFORE_MARK = re.compile(r"\s+([,.;:!?)])(?=\s|$)")
_AFTER_BRACKET = re.compile(r"\(\s*[,;:]?\s+")
_CONTROL = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0), 0xFFFD, 0x200B, 0xFEFF, 0x200E, 0x200F, 0xAD]) | {9: " "}

# Characters that the author wrote as entities or in <nowiki> are text: they pass as noncharacters of Unicode.
_PROTECTED = {ord(character): 0xFDD0 + index for index, character in enumerate("<>[]{}|!='")}
_LITERAL = {code: character for character, code in _PROTECTED.items()}

_BREAK = "\n"
_LISTED = "\x00"  # stands at the beginning of a list item; no dump holds it, XML forbids it
_HEADED = "\x01"  # and at the beginning of a heading, its level after it

_REFERENCES = {
    "references", "notes", "footnotes", "citations", "sources", "bibliography", "further reading", "external links",
    "see also", "works cited", "notes and references", "references and notes", "literature", "publications",
    "discography", "filmography", "gallery",
}  # fmt: skip
"""Sections that are lists by nature; here and there a sentence stands in one, never prose."""

_NAMESPACES_GONE = {
    "file", "image", "media", "category", "datei", "fichier", "archivo", "immagine", "文件", "分类", "portal",
    "special",
}  # fmt: skip
_INTERLANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z]+)*")


def prose(text: str) -> list[str]:
    """Return the prose of a page without markup and with single spaces, a line of the page an item.

    Most authors write a paragraph in one line.

    Args:
        text: wikitext as a dump holds it.
    """
    lines: list[str] = []
    skipped_level = 0
    for line in "".join(_texts(mwparserfromhell.parse(_stripped(text)).nodes)).split(_BREAK):
        if line.startswith(_HEADED):
            level = int(line[1])
            if not skipped_level or level <= skipped_level:
                skipped_level = level if line[2:].strip().lower() in _REFERENCES else 0
        elif not skipped_level and _LISTED not in line and (tidy := _tidied(line)):
            lines.append(tidy)
    return lines


def _stripped(text: str) -> str:
    """Cut what goes as a whole."""
    text = _COMMENT.sub("", text)
    text = _NOWIKI.sub(lambda m: _literal(m[1] or ""), text)
    text = _without_elements(text)
    text = _repeatedly(_TEMPLATE, words_of, text)
    return _BEHAVIOUR.sub("", _repeatedly(_TABLE, "", text))


def _without_elements(text: str) -> str:
    """Cut elements of _GONE with all that is in them; a tag without its partner goes alone. Takes linear time."""
    opened: list[tuple[str, int]] = []
    depth: Counter[str] = Counter()
    cuts: list[tuple[int, int]] = []
    for tag in _GONE_TAG.finditer(text):
        name = (tag["closing"] or tag["opening"]).lower()
        cuts.append(tag.span())
        if tag["closing"] and depth[name]:
            before = ""
            while before != name:
                before, start = opened.pop()
                depth[before] -= 1
            while cuts and cuts[-1][0] >= start:
                cuts.pop()
            cuts.append((start, tag.end()))
        elif tag["opening"] and not tag["empty"]:
            opened.append((name, tag.start()))
            depth[name] += 1
    parts, end = [], 0
    for start, stop in cuts:
        parts.append(text[end:start])
        end = stop
    return "".join(parts) + text[end:]


def _repeatedly(pattern: re.Pattern[str], by: str | Callable[[re.Match[str]], str], text: str) -> str:
    """Replace from the inside out, to a depth that no page has on purpose."""
    for _ in range(_DEEPEST):
        text, count = pattern.subn(by, text)
        if not count:
            break
    return text


def _literal(text: str) -> str:
    """What <nowiki> protects: as entities, which the parser turns back at the end."""
    return re.sub(r"[\[\]{}|<>'=*#:;&]", lambda m: f"&#{ord(m[0])};", text)


# --- what the parser leaves -------------------------------------------------------------------------------------------


def _texts(parsed: Iterable[nodes.Node]) -> Iterator[str]:
    for node in parsed:
        if isinstance(node, nodes.Text):
            yield node.value
        elif isinstance(node, nodes.Wikilink):
            yield from _link(node)
        elif isinstance(node, nodes.Tag):
            yield from _tag(node)
        elif isinstance(node, nodes.ExternalLink):
            if node.title is not None:  # an address alone is no word
                yield from _texts(node.title.nodes)
        elif isinstance(node, nodes.HTMLEntity):
            yield _entity(node)
        elif isinstance(node, nodes.Heading):
            yield f"{_BREAK}{_HEADED}{node.level}{''.join(_texts(node.title.nodes))}{_BREAK}"


def _entity(node: nodes.HTMLEntity) -> str:
    said = html.unescape(str(node))
    return " " if said in "\xa0\u2002\u2003\u2009\n" else said.translate(_PROTECTED)


def _link(node: nodes.Wikilink) -> Iterator[str]:
    title = html.unescape(str(node.title)).strip()
    namespace, colon, _ = title.partition(":")
    if colon and (namespace.lower() in _NAMESPACES_GONE or (_INTERLANGUAGE.fullmatch(namespace) and node.text is None)):
        return
    if node.text is None:
        yield title.removeprefix(":")
    elif said := "".join(_texts(node.text.nodes)).strip(" "):
        yield said
    else:  # the pipe trick: [[Mercury (planet)|]] reads Mercury
        yield re.sub(r"\s*\([^()]*\)$|,.*$", "", title.rpartition(":")[2])


def _tag(node: nodes.Tag) -> Iterator[str]:
    name = str(node.tag).strip().lower()
    if name in ("li", "dd", "dt"):
        yield _LISTED
        if node.wiki_markup is None and node.contents is not None:
            yield from _texts(node.contents.nodes)
    elif name == "br":
        yield " "
    elif name == "hr" or name in _GONE_TAGS or node.contents is None:
        yield ""
    elif name in ("p", "div", "blockquote", "center", "poem"):
        yield _BREAK
        yield from _texts(node.contents.nodes)
        yield _BREAK
    elif name in ("ul", "ol", "dl"):
        yield ""
    else:
        yield from _texts(node.contents.nodes)


def _tidied(line: str) -> str:
    """One paragraph: single spaces, no brackets around nothing; empty where markup is left or no letter is."""
    line = line.translate(_CONTROL).replace("''", "")
    if _LEFT.search(line):
        return ""
    line = line.translate(_LITERAL)
    while (without := _HOLLOW.sub("", line)) != line:
        line = without
    line = _AFTER_BRACKET.sub("(", _BEFORE_MARK.sub(r"\1", " ".join(line.split())))
    return line if any(map(str.isalpha, line)) else ""
