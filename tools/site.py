"""Build the documentation as a site in build/site/html, without a network, and check it.

    python -m tools.site             build and check
    python -m tools.site --serve     build, check, and serve on 127.0.0.1:8000

Pages are the Markdown files of the repository and the Python reference (tools/reference.py). Before
Zensical converts them to HTML, links to files that are no pages become links to the repository,
Mermaid diagrams become SVG, and formulas (``math`` blocks and ``$`...`$``) become MathML. So an
opened page loads nothing from another host. ``llms.txt`` lists the pages for language models.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from latex2mathml.converter import convert

from tools import reference
from tools.standalone_page import PAGES, standalone_page

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "site"
BESIDE_DOCS = {
    "overview.md": "README.md",  # a page README.md would become index.html
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "conduct.md": "CODE_OF_CONDUCT.md",
    "measurements.md": "bench/RESULTS.md",
}
"""Files that are not in docs/, by the path of their page in the site."""

READER = "read.html"
"""The page of the service that reads certificates, which is also a page of the site."""

CONFIG = tomllib.loads((ROOT / "docs/zensical.toml").read_text(encoding="utf-8"))["project"]
REPOSITORY = f"{CONFIG['extra']['repository']}/blob/main"

FENCE = re.compile(
    r"^(?P<ticks>```+)(?P<language>[\w-]*)[^\n]*\n(?P<body>.*?)^(?P=ticks)[ ]*$",
    re.MULTILINE | re.DOTALL,
)
LINK = re.compile(r"(?P<before>!?\[[^\]]*\]\()(?P<target>[^)\s]+)(?P<after>\))")
INLINE = re.compile(r"(?P<math>\$`(?P<formula>[^`]+)`\$)|(?P<code>`[^`\n]+`)|" + LINK.pattern)
COMMENT = re.compile(r"^<!-- .*? -->\n", re.MULTILINE)
SOURCE_FILE = re.compile(r"\(docs/(?P<page>[\w/-]+)\.md\)")


class Broken(Exception):
    """The site has faults; the message lists them."""


def sources() -> dict[str, Path]:
    """Return the Markdown file of every page, by the path of the page in the site."""
    docs = ROOT / "docs"
    found = {path.relative_to(docs).as_posix(): path for path in sorted(docs.rglob("*.md"))}
    return found | {name: ROOT / path for name, path in BESIDE_DOCS.items()}


def page_text(name: str, source: Path, pages: dict[str, Path], *, images: Path) -> str:
    """Return the Markdown of a page for Zensical. Copy its images to the folder ``images``."""
    place_of = {path.resolve(): page for page, path in pages.items()}
    place_of[PAGES / READER] = READER

    def image(target: str) -> str:
        path = (source.parent / unquote(target)).resolve()
        if not path.is_file():
            raise Broken(f"{source.relative_to(ROOT)}: the image {target} is not a file here")
        images.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, images / path.name)
        return posixpath.relpath(f"images/{path.name}", posixpath.dirname(name))

    def link(target: str) -> str:
        file, mark, fragment = target.partition("#")
        if re.match(r"[a-z]+:", target) or not file:
            return target
        path = (source.parent / unquote(file)).resolve()
        if path in place_of:
            return posixpath.relpath(place_of[path], posixpath.dirname(name)) + mark + fragment
        if path == (ROOT / "docs/references.bib").resolve():
            return posixpath.relpath("references.md", posixpath.dirname(name)) + mark + fragment
        if not path.is_relative_to(ROOT) or not path.exists():
            raise Broken(f"{source.relative_to(ROOT)}: {target} does not exist")
        return f"{REPOSITORY}/{path.relative_to(ROOT).as_posix()}{mark}{fragment}"

    def inline(found: re.Match[str]) -> str:
        if found["math"]:
            return formula(found["formula"], display="inline")
        if found["code"]:
            return found["code"]
        to = image if found["before"].startswith("!") else link
        return found["before"] + to(found["target"]) + found["after"]

    def prose(text: str) -> str:
        return INLINE.sub(inline, COMMENT.sub("", text))

    text = source.read_text(encoding="utf-8")
    parts, end = [], 0
    for found in FENCE.finditer(text):
        parts += [prose(text[end : found.start()]), block(found)]
        end = found.end()
    return "".join([*parts, prose(text[end:])])


def block(found: re.Match[str]) -> str:
    """Return a fenced block for Zensical: diagrams as SVG, formulas as MathML, code unchanged."""
    if found["language"] == "mermaid":
        svg = _run("mmdr", "--format", "svg", stdin=found["body"])
        drawing = re.sub(r">\s+<", "><", svg[svg.index("<svg") :])
        said = escape(diagram_in_words(found["body"]))
        return f'<figure class="diagram" role="img" aria-label="{said}">{drawing}</figure>'
    if found["language"] == "math":
        return f'<div class="formula">{formula(found["body"].strip(), display="block")}</div>'
    return found[0]


def diagram_in_words(mermaid: str) -> str:
    """Return the arrows of a Mermaid diagram as text, for people who do not see the drawing.

    >>> diagram_in_words("stateDiagram-v2\\n  [*] --> OPEN\\n  OPEN --> CLOSED: Expired\\n")
    'Diagram: start to OPEN; OPEN to CLOSED, Expired.'
    """
    arrows = [line.strip() for line in mermaid.splitlines() if "-->" in line]
    words = [
        re.sub(r"\s*-->\s*\[\*\]", " to the end", re.sub(r"^\[\*\]", "start", arrow))
        for arrow in arrows
    ]
    return "Diagram: " + "; ".join(words).replace(" --> ", " to ").replace(": ", ", ") + "."


def formula(latex: str, *, display: str) -> str:
    """Return a formula as MathML. Raise ``Broken`` if it has LaTeX that cannot be converted.

    >>> formula(r"x^2", display="inline").partition("<mrow>")[2]
    '<msup><mi>x</mi><mn>2</mn></msup></mrow></math>'
    """
    mathml = convert(latex.replace("{aligned}", "{align*}"), display=display)
    if left := re.search(r"<mi>(?:&|\\[a-zA-Z]+)</mi>|linebreak", mathml):
        raise Broken(f"{latex}: latex2mathml cannot convert {left[0]}")
    return mathml


def _run(program: str, *arguments: str, stdin: str = "", folder: Path = ROOT) -> str:
    """Return the output of a program of this environment. Raise ``Broken`` if it fails."""
    ended = subprocess.run(
        [str(Path(sys.executable).parent / program), *arguments],
        input=stdin,
        cwd=folder,
        env=os.environ | {"NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        plain = re.sub(r"\x1b\[[\d;]*m", "", ended.stdout + ended.stderr)
        raise Broken(plain.partition("Traceback")[0].strip())
    return ended.stdout


def reference_pages() -> Iterator[tuple[str, str]]:
    """Yield the path and the Markdown of the pages of the Python reference, the list first."""
    rows = "".join(
        f"| [`{package}`](reference/{package}.md) | {title} |\n"
        for package, title in reference.PACKAGES.items()
    )
    yield (
        "reference.md",
        "# Python API\n\nGenerated from the docstrings. [The library](library.md) is an "
        f"introduction with examples.\n\n| package | contents |\n|---|---|\n{rows}",
    )
    for package in reference.PACKAGES:
        text = SOURCE_FILE.sub(r"([\g<page>](../\g<page>.md))", reference.page(package))
        yield f"reference/{package}.md", text


def references_page() -> str:
    """Return the bibliography as a page: key, authors, title, where and when it appeared."""
    text = (ROOT / "docs/references.bib").read_text(encoding="utf-8")
    entries = []
    for entry in re.finditer(r"^@\w+\{(?P<key>\w+),(?P<fields>.*?)^\}", text, re.M | re.S):
        fields = dict(re.findall(r"(\w+)\s*=\s*[{\"](.+?)[}\"],?\s*$", entry["fields"], re.M))
        where = ", ".join(
            fields[name]
            for name in ("journal", "booktitle", "eprint", "note", "year")
            if name in fields
        )
        words = re.sub(r"[{}\\]", "", f"{fields.get('author', '')}. *{fields['title']}*. {where}.")
        entries.append(f"- **[{entry['key']}]** {words}\n")
    return "# References\n\nThe papers that docstrings and proofs cite.\n\n" + "".join(entries)


def listed() -> Iterator[tuple[str, str]]:
    """Yield the title and the path of every page in the navigation, in its order."""
    waiting = list(CONFIG["nav"])
    while waiting:
        ((title, inside),) = waiting.pop(0).items()
        if isinstance(inside, str):
            yield title, inside
        else:
            waiting[:0] = inside


def write_pages(folder: Path) -> None:
    """Write the Markdown of all pages, and the files that pages use, for Zensical."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = sources()
    texts = {
        name: page_text(name, source, pages, images=folder / "pages/images")
        for name, source in pages.items()
    }
    texts |= dict(reference_pages()) | {"references.md": references_page()}
    in_navigation = {path for _, path in listed()}
    if lost := {
        name for name in texts if name not in in_navigation and not name.startswith("reference/")
    }:
        raise Broken(f"docs/zensical.toml does not list {', '.join(sorted(lost))} in nav")
    reader = standalone_page(READER, home="index.html", home_title="Documentation")
    for name, text in (texts | {"llms.txt": llms_text(texts), READER: reader}).items():
        path = folder / "pages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for name in (*CONFIG["extra_css"], *CONFIG["extra_javascript"]):
        shutil.copy(ROOT / "docs" / name, folder / "pages")
    shutil.copy(ROOT / "docs/zensical.toml", folder)


def llms_text(texts: dict[str, str]) -> str:
    """Return the list of pages in the form of llmstxt.org, with the first sentence of each."""
    lines = [f"# {CONFIG['site_name']}", "", f"> {CONFIG['site_description']}.", ""]
    for part in CONFIG["nav"]:
        ((title, inside),) = part.items()
        lines += [f"## {title}", ""]
        waiting = list(inside)
        while waiting:
            ((name, path),) = waiting.pop(0).items()
            if isinstance(path, list):
                waiting[:0] = path
            else:
                html = path.removesuffix(".md") + ".html"
                lines.append(f"- [{name}]({html}): {first_sentence(texts[path])}")
        lines.append("")
    return "\n".join(lines)


def first_sentence(text: str) -> str:
    """Return the first sentence of a page after its title, without markup.

    >>> first_sentence("# Title\\n\\nSee [this](page.md) `now`. And that.")
    'See this now.'
    """
    ignored = r"^#.*$|^\s*<.*$|^\d{4}-\d\d-\d\d, .*$|^\*\*Context\.\*\* "  # of a design note
    body = re.sub(ignored, "", text, flags=re.MULTILINE).strip()
    paragraph = LINK.sub(lambda found: found["before"].strip("![]("), body.split("\n\n")[0])
    words = " ".join(re.sub(r"[`*]", "", paragraph).split())
    return re.split(r"(?<=[.!?]) ", words)[0]


def build(folder: Path) -> Path:
    """Build the site in the folder, and return its folder of HTML pages.

    Raise ``Broken`` with the warnings of Zensical and the faults of the pages if there are any.
    """
    write_pages(folder)
    _run("zensical", "build", "--clean", "--strict", folder=folder)
    if found := faults(folder / "html"):
        raise Broken("\n".join(found))
    return folder / "html"


class _Page(HTMLParser):
    """The ids, links and loaded files of an HTML page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag in {"a", "area"} and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in {"canonical", "prev", "next"}:
            self.loaded.append(given.get("href", ""))
        elif "src" in given:
            self.loaded.append(given["src"])


def faults(html: Path) -> list[str]:
    """Return what is wrong with the built pages: dead links, and files of other hosts."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(html.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        where = path.relative_to(html)
        found += [f"{where} loads {one}" for one in page.loaded if urlsplit(one).netloc]
        for target in [*page.links, *page.loaded]:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc or where.name == "404.html":
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = there / "index.html" if there.is_dir() else there
            if not there.exists():
                found.append(f"{where}: {target} does not exist")
            elif there in pages and unquote(parts.fragment) not in pages[there].ids | {"", "__top"}:
                found.append(f"{where}: {target} names no heading")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the site in build/site/html.")
    parser.add_argument("--serve", action="store_true", help="serve it on 127.0.0.1:8000")
    serve = parser.parse_args().serve
    try:
        html = build(BUILD)
    except Broken as error:
        print(f"site: {error}", file=sys.stderr)
        return 1
    print(f"{html.relative_to(ROOT)}/index.html: {len(list(html.rglob('*.html')))} pages")
    if serve:
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(html))
        print("Serving on http://127.0.0.1:8000 until Ctrl-C.")
        http.server.ThreadingHTTPServer(("127.0.0.1", 8000), handler).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
