"""Hooks of the documentation site: the same Markdown files work on GitHub and on the site.

Links in the repository are relative to the file they stand in. MkDocs knows only docs/, so these hooks add the pages
that live elsewhere (README.md is the home page) and rewrite every relative link:

- to a page or an image of the site: relative to the page;
- to any other file of the repository: to `repo_url`, or, if mkdocs.yml names none, plain text without a link;
- to nothing: left as it is, which fails `mkdocs build --strict`.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent.parent
HOME = {"README.md": "index.md"}
OUTSIDE = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "studies/README.md",
    "studies/*/README.md",
    "studies/*/*.png",
]
"""Files outside docs/ that are part of the site."""

_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)")
_ATTRIBUTE = re.compile(r'(?P<name>\b(?:href|src|srcset))="(?P<target>[^"]+)"')
_PICTURE = re.compile(
    r'<picture>\s*<source[^>]*srcset="(?P<dark>[^"]+)"[^>]*>\s*'
    r'<img(?P<before>[^>]*?)src="(?P<light>[^"]+)"(?P<after>[^>]*)>\s*</picture>'
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside docs/."""
    for pattern in OUTSIDE:
        for path in sorted(ROOT.glob(pattern)):
            source = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, HOME.get(source, source), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links; code is left alone."""
    markdown = _PICTURE.sub(_two_images, markdown)

    def markdown_link(match: re.Match[str]) -> str:
        target = _on_site(match["target"], page, config, files)
        return match["text"] if target is None else f"{match['image']}[{match['text']}]({target})"

    def attribute(match: re.Match[str]) -> str:
        # Browsers, not MkDocs, resolve these: relative to the page's address.
        target = _on_site(match["target"], page, config, files)
        return f'{match["name"]}="{_address(target, page, files)}"'

    def outside_code(text: str) -> str:
        return _ATTRIBUTE.sub(attribute, _LINK.sub(markdown_link, text))

    # A link's text may hold `code`: replace code by placeholders, rewrite, put it back.
    code: list[str] = []

    def hide(match: re.Match[str]) -> str:
        code.append(match[0])
        return f"\x00{len(code) - 1}\x00"

    return re.sub(r"\x00(\d+)\x00", lambda match: code[int(match[1])], outside_code(_CODE.sub(hide, markdown)))


def _two_images(match: re.Match[str]) -> str:
    """GitHub's <picture> for light and dark as two images that follow the theme's switch."""
    return "\n".join(
        f'<img{match["before"]}src="{match[scheme]}#only-{scheme}"{match["after"]}>' for scheme in ("light", "dark")
    )


def _repository_path(page: Page) -> str:
    """Where a page's Markdown is in the repository."""
    return Path(page.file.abs_src_path or "").relative_to(ROOT).as_posix()


def _on_site(target: str, page: Page, config: MkDocsConfig, files: Files) -> str | None:
    """The link that means `target`, a link in the repository; None if the site has no address for it."""
    path, hash_sign, anchor = target.partition("#")
    if "://" in target or target.startswith("mailto:") or not path:
        return target
    here = posixpath.dirname(_repository_path(page))
    path = posixpath.normpath(posixpath.join(here, path))
    found = ROOT / path
    if not found.exists():
        return target
    if found.is_dir() and (found / "README.md").exists():
        path = posixpath.join(path, "README.md")
    uri = HOME.get(path, path.removeprefix("docs/"))
    if files.get_file_from_path(uri) is not None:
        return posixpath.relpath(uri, posixpath.dirname(page.file.src_uri)) + hash_sign + anchor
    if not config.repo_url:
        return None
    return f"{config.repo_url.rstrip('/')}/{'tree' if found.is_dir() else 'blob'}/main/{path}{hash_sign}{anchor}"


def _address(target: str | None, page: Page, files: Files) -> str:
    """The address of an image or page, relative to the address of this page."""
    path, hash_sign, anchor = (target or "").partition("#")
    if not path or "://" in path:
        return target or "#"
    uri = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), path))
    file = files.get_file_from_path(uri)
    return target if file is None else file.url_relative_to(page.file) + hash_sign + anchor
