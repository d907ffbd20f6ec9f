"""Wikitext to prose, on cases written by hand and on real articles."""

from __future__ import annotations

import re

import pytest
from corpus.wikitext import prose


@pytest.mark.parametrize(
    ("wikitext", "said"),
    [
        ("'''Bold''', ''italic'' and '''''both'''''.", ["Bold, italic and both."]),
        ("A [[link]], a [[page|named]] one, [[plural]]s and [[Mercury (planet)|]].",
         ["A link, a named one, plurals and Mercury."]),
        ("See [http://x.org the site] and http://y.org or [http://z.org].", ["See the site and or."]),
        ("Text.<ref>A note.</ref> More<ref name=x /> of it.<ref name=\"y\">{{cite|a=[[b]]}}</ref>",
         ["Text. More of it."]),
        ("{{Infobox|a={{nested|b={{c}}}}|d=[[e]]}}\nProse.", ["Prose."]),
        ("Before.\n{| class=\"wikitable\"\n|-\n! Head\n|-\n| cell || {| \n| inner\n|}\n|}\nAfter.",
         ["Before.", "After."]),
        ("== Heading ==\nOne.\n=== Deeper ===\nTwo.", ["One.", "Two."]),
        ("One.\n== See also ==\nText here.\n=== Deeper ===\nAnd here.\n== History ==\nTwo.", ["One.", "Two."]),
        ("Said:\n* an item\n** deeper\n# numbered\n: indented\n; term\nDone.", ["Said:", "Done."]),
        ("[[File:a.jpg|thumb|left|A [[caption]] with (brackets).]]Prose.", ["Prose."]),
        ("Prose.\n[[Category:Things]]\n[[de:Dinge]]\n[[:Category:Things]] stays.",
         ["Prose.", "Category:Things stays."]),
        ("Fish &amp; chips &ndash; 5&nbsp;km &lt;b&gt;", ["Fish & chips – 5 km <b>"]),
        ("A<!-- gone\n\n -->B <!-- to the end", ["AB"]),
        ("Sum <math>x^2 \\text{if } {{y}}</math> here.", ["Sum here."]),
        ("<div>In a <span style=\"x\">box</span>.</div>\n<gallery>\nFile:a.jpg|b\n</gallery>", ["In a box."]),
        ("It is {{convert|3|to|5|km|mi}} long, {{convert|12|km2|sqmi|abbr=on}} wide.",
         ["It is 3 to 5 km long, 12 km2 wide."]),
        ("The {{lang|fr|mot [[juste|exact]]}} in {{nowrap|a {{sic|row}}}}{{ndash}}{{as of|2010|3|lc=y}}.",
         ["The mot exact in a row–As of March 2010."]),
        ("Ada ({{IPAc-en|a}}; {{lang-la|Ada}}) was.", ["Ada was."]),
        ("__NOTOC__\n<nowiki>'''plain''' [[text]]</nowiki> here", ["'''plain''' [[text]] here"]),
        ("An infobox never closed {{Infobox\n| a = b\nA clean line.", ["A clean line."]),
        ("#REDIRECT [[Elsewhere]]", []),
        ("* only\n* a list", []),
        ("A.<ref>{{cite|a=b</ref name\"c\"> d}}</ref> B.", ["A. B."]),
        ("A <ref>lost tag. B</math> C <ref name=x>n<ref>o</ref></ref>D.", ["A lost tag. B C D."]),
        ("", []),
    ],
)  # fmt: skip
def test_prose_is_what_a_reader_would_read_aloud(wikitext: str, said: list[str]) -> None:
    assert prose(wikitext) == said


MARKUP = re.compile(
    r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}|'''|''|<ref|</|<!--|&nbsp;|\bthumb\||\|thumb|^[*#:;=|!]", re.MULTILINE
)


def test_real_articles_keep_their_sentences_and_lose_their_markup(articles: dict[str, list[str]]) -> None:
    # As the pages read in a browser.
    assert articles["Aardwolf"][0].startswith("The aardwolf (Proteles cristata) is a small, insectivorous mammal")
    assert any("named after André-Marie Ampère (1775–1836)" in line for line in articles["Ampere"])
    assert not any(map(MARKUP.search, (line for lines in articles.values() for line in lines)))
    assert not any("Retrieved" in line or "ISBN" in line for lines in articles.values() for line in lines)
    assert {title for title, lines in articles.items() if not lines} <= {"Asia Minor (disambiguation)"}
    assert sum(len(line.split()) for line in articles["Albedo"]) > 2000  # of some 2,500


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "hostile",
    [
        "{{" * 3000,
        "{|" * 3000,
        "<ref>" * 200_000,
        "</ref>" * 200_000,
        "{{a|" * 9000 + "}}" * 9000,
        "[[" * 3000,
        "{{a|" * 2000 + "}}" * 2000,
        "<div>" * 3000,
    ],
)
def test_unclosed_markup_ends(hostile: str) -> None:
    assert prose(hostile + "\nProse.")[-1:] in (["Prose."], [])
