"""What the site has beside docs/: the pages that lie elsewhere, the reference, and links that fit both views.

A hook of MkDocs. Pages are written for the repository's view, so their links are paths of the repository. On the site a
link to a page leads to that page, and a link to any other file leads to a page that shows the file.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections import defaultdict
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PUBLIC = ROOT / "tests" / "public_api.txt"
OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "azureml/README.md", "docker/README.md", "recipes/**/*.md")
"""Pages that lie outside of docs/, in glob's notation."""

GROUPS = {
    "Train": ("ontrain", "ontrain.errors", "ontrain.training"),
    "On a device": ("ontrain.training.api", "ontrain.training.artifacts", "ontrain.training.onnxblock"),
    "Run, check, save": ("ontrain.session", "ontrain.checkpoint", "ontrain.distributed", "ontrain.cli"),
    "Graphs": ("ontrain.graph", "ontrain.capture", "ontrain.autodiff", "ontrain.functions", "ontrain.optim",
               "ontrain.passes", "ontrain.providers"),
}  # fmt: skip
"""Where the reference lists a module: under the longest name of a group that begins its own."""

_WITH_HEADING = "{show_root_heading: true, show_root_toc_entry: true, show_root_full_path: false, heading_level: 3}"
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_FENCED = re.compile(r"^( {0,3}```).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_INLINE_CODE = re.compile(r"(`[^`\n]+`)")
_WITHIN_LIST = re.compile(r"^ {1,3}(?:```|\|).*$", re.MULTILINE)
_NOT_RENDERED = re.compile(r"<p>(?:[^<]|<(?!/p>))*\n(?:- |\| |\d+\. )", re.DOTALL)
_LANGUAGES = {".py": "python", ".sh": "bash", ".yml": "yaml", ".mjs": "javascript", ".html": "html", ".toml": "toml"}


def page_of(path: str) -> str:
    """Return a page's place on the site from its place in the repository."""
    return "index.md" if path == "README.md" else path.removeprefix("docs/")


def pages_outside() -> list[str]:
    """Return the repository's paths of the pages that lie outside of docs/."""
    paths = {path.relative_to(ROOT).as_posix() for pattern in OUTSIDE for path in ROOT.glob(pattern)}
    return sorted(path for path in paths if "node_modules" not in path)


def public_names() -> dict[str, list[str]]:
    """Return the public names of each public module."""
    names: dict[str, list[str]] = defaultdict(list)
    for line in PUBLIC.read_text().split():
        module, _, name = line.rpartition(".")
        names[module].append(name)
    for module, known in list(names.items()):
        if module.startswith("ontrain.training"):  # lr_scheduler and others that users name have pages of their own
            inner = [f"{module}.{name}" for name in known if is_module(module, name)]
            names.update({name: exported(name) for name in inner if name not in names})
    return dict(names)


def is_module(module: str, name: str) -> bool:
    """Whether a module's public name is a module inside it, and no function or class of that name."""
    elsewhere = (
        node for node in ast.walk(_parsed(module)) if isinstance(node, ast.ImportFrom) and node.module != module
    )
    imported = {alias.asname or alias.name for node in elsewhere for alias in node.names}
    return source_of(f"{module}.{name}") is not None and name not in imported


def source_of(module: str) -> Path | None:
    """Return the file of a module, or None where the name is no module."""
    place = ROOT / "src" / Path(*module.split("."))
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


def _parsed(module: str) -> ast.Module:
    file = source_of(module)
    if file is None:
        raise PluginError(f"{module} is in {PUBLIC.name}, and no file is there")
    return ast.parse(file.read_text())


def exported(module: str) -> list[str]:
    """Return a module's `__all__`, without importing the module."""
    for node in _parsed(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise PluginError(f"{module} has no __all__")


def adopted(module: str) -> list[str]:
    """Return the public names of a module that are onnxruntime's own objects: its documentation says what they do."""
    for node in _parsed(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_UPSTREAM":
            return list(ast.literal_eval(node.value))
    return []


def summary(module: str) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(_parsed(module)) or "").partition("\n")[0]


def group_of(module: str) -> str:
    """Return the group of the reference that lists a module."""
    found = [(len(prefix), group) for group, prefixes in GROUPS.items() for prefix in prefixes
             if module == prefix or module.startswith(prefix + ".")]  # fmt: skip
    return max(found)[1]


def reference_page(module: str, names: list[str]) -> str:
    """Return a page of the reference: what is in the module, and its submodules in a table."""
    submodules = [name for name in names if is_module(module, name)]
    # The reader of sources takes a function for the file of its name.
    namesakes = [name for name in names if name not in submodules and source_of(f"{module}.{name}")]
    theirs = adopted(module)
    members = [name for name in names if name not in submodules + namesakes + theirs]
    lines = [f"# {module}", "", f"::: {module}", "    options:"]
    lines += ["      members:", *(f"        - {name}" for name in members)] if members else ["      members: false"]
    for name in namesakes:
        lines += ["", f"::: {module}.{name}.{name}", f"    options: {_WITH_HEADING}"]
    if theirs:
        lines += ["", "## onnxruntime's own", "", "These names are the objects of the installed onnxruntime.", ""]
        lines += [f"- `{module}.{name}`" for name in theirs if name in names]
    if submodules:
        lines += ["", "## Modules", "", "| module | |", "|---|---|"]
        lines += [f"| `{module}.{name}` | {summary(f'{module}.{name}')} |" for name in submodules]
    return "\n".join(lines) + "\n"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the reference's pages into the navigation."""
    groups: dict[str, list[str]] = {group: [] for group in GROUPS}
    for module in sorted(public_names()):
        groups[group_of(module)].append(f"reference/{module}.md")
    sections = ["reference/index.md", *({group: pages} for group, pages in groups.items())]
    config.nav = [
        {"Reference": sections} if isinstance(entry, dict) and "Reference" in entry else entry
        for entry in config.nav or []
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside of docs/, the reference, and the files that pages link to."""
    for path in pages_outside():
        files.append(File.generated(config, page_of(path), content=(ROOT / path).read_text()))
    names = public_names()
    index = [
        "# Reference",
        "",
        "The public names, from their docstrings. What is not here may change without notice.",
        "",
    ]
    for group in GROUPS:
        index += [f"## {group}", "", "| module | |", "|---|---|"]
        index += [f"| [`{m}`]({m}.md) | {summary(m)} |" for m in sorted(names) if group_of(m) == group]
        index.append("")
    files.append(File.generated(config, "reference/index.md", content="\n".join(index)))
    for module, exports in names.items():
        files.append(File.generated(config, f"reference/{module}.md", content=reference_page(module, exports)))
    for path in sorted(_linked_files()):
        files.append(_shown(config, path))
    return files


def _linked_files() -> set[str]:
    """Return the files and folders, no pages, that pages link to."""
    pages = [*pages_outside(), *(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md"))]
    targets = set()
    for path in pages:
        prose = _FENCED.sub("", (ROOT / path).read_text())
        for match in _LINK.finditer(prose):
            target = _repository_path(path, match[2].partition("#")[0])
            if target is not None and _destination(target).startswith("files/"):
                targets.add(target)
    return targets


def _repository_path(page: str, target: str) -> str | None:
    """Return the path in the repository that a page's link means; None for an address or an anchor."""
    if not target or re.match(r"[a-z]+:", target):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def _destination(path: str) -> str:
    """Return the place on the site of a file of the repository."""
    here = ROOT / path
    if here.is_dir() and (here / "README.md").is_file():
        path = f"{path}/README.md"
    if path.endswith(".md"):
        return page_of(path)
    return f"files/{path}" if here.suffix in (".svg", ".png") else f"files/{path}.md"


def _shown(config: MkDocsConfig, path: str) -> File:
    """Return a page that shows a file, or the files of a folder; pictures as they are."""
    here = ROOT / path
    if not here.exists():
        raise PluginError(f"a page links to {path}, and nothing is there")
    place = _destination(path)
    if not place.endswith(".md"):
        return File.generated(config, place, abs_src_path=str(here))
    content = f"# {path}\n"
    if here.is_file():
        content += _block(here)
    else:
        for file in sorted(file for file in here.rglob("*") if file.suffix in (*_LANGUAGES, ".txt", ".json")):
            if "node_modules" not in file.parts:
                content += f"\n## {file.relative_to(here)}\n{_block(file)}"
    return File.generated(config, place, content=content, inclusion=InclusionLevel.NOT_IN_NAV)


def _block(file: Path) -> str:
    text = file.read_text()
    shown = text if len(text) <= 100_000 else text[:10_000] + "\n…\n"
    return f"\n~~~~~~ {{.{_LANGUAGES.get(file.suffix, 'text')}}}\n{shown}\n~~~~~~\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    here = page.file.src_uri
    if here.startswith(("reference/", "files/")):
        return markdown
    if within_list := _WITHIN_LIST.search(markdown):
        raise PluginError(f"{here}: a block of code or a table within a list ends the list here: {within_list[0]!r}")
    outside = {page_of(path): path for path in pages_outside()}
    path = outside.get(here, f"docs/{here}")

    def led(match: re.Match[str]) -> str:
        target, hash_, anchor = match[2].partition("#")
        wanted = _repository_path(path, target)
        if wanted is None:
            return match[0]
        place = posixpath.relpath(_destination(wanted), posixpath.dirname(here) or ".")
        return f"{match[1]}{place}{hash_}{anchor}{match[3]}"

    def prose(text: str) -> str:
        pieces = _INLINE_CODE.split(text)
        return "".join(piece if i % 2 else _LINK.sub(led, piece) for i, piece in enumerate(pieces))

    result, end = "", 0
    for fence in _FENCED.finditer(markdown):
        result += prose(markdown[end : fence.start()]) + fence[0]
        end = fence.end()
    return result + prose(markdown[end:])


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a reference that lacks a public name."""
    for module, names in public_names().items():
        html = Path(config.site_dir, "reference", f"{module}.html").read_text()
        lacking = [name for name in names if not re.search(rf'id="[\w.]*\.{name}"|>{module}\.{name}<', html)]
        if lacking:
            raise PluginError(f"the reference of {module} lacks {', '.join(lacking)}")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Refuse a list or table that the repository's view shows as such and the site as running text."""
    if wrong := _NOT_RENDERED.search(html):
        raise PluginError(f"{page.file.src_uri}: a blank line is missing before a list or table: {wrong[0][-120:]!r}")
    return html
