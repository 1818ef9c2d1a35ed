"""One self-contained document around data: scripts, style sheet and policy. Knows nothing of what the data says.

All text that comes from data travels as JSON and is put into the page by its scripts as text, never as markup. The
page's own policy lets it run its script and its style sheet and load nothing at all.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path

import msgspec

from bucketlab import units
from bucketlab.documents import written_whole


@dataclass(frozen=True)
class Page:
    """A whole document, and what a server that sends its own policy must let it run."""

    html: str
    script_sha256: str  # base64


def write_page(page: Page, path: Path) -> None:
    """A whole file or none. Raises OSError where it cannot be written."""
    with written_whole(path) as temporary:
        temporary.write_text(page.html, encoding="utf-8")


def assemble(data: msgspec.Struct, title: str, scripts: Sequence[str]) -> Page:
    """The document around the data.

    Args:
        data: that the scripts read as JSON.
        title: of the document.
        scripts: files of this package, in the order in which they build on one another.
    """
    script = "(() => {\n" + '"use strict";\n' + "\n".join(_asset(name) for name in scripts) + "\n})();\n"
    style = _asset("page.css")
    script_sha256, style_sha256 = _sha256(script), _sha256(style)
    policy = (
        f"default-src 'none'; script-src 'sha256-{script_sha256}'; style-src 'sha256-{style_sha256}'; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "POLICY": policy,
        "TITLE": escape(units.shown(title), quote=False),
        "STYLE": style,
        "DATA": safe_json(data),
        "SCRIPT": script,
    }
    html = ""
    # Split once: what is put in may itself contain such marks.
    for piece in _asset("page.html").split("@@"):
        html += parts.get(piece, piece)
    return Page(html=html, script_sha256=script_sha256)


def safe_json(value: object) -> str:
    """JSON that may stand inside a script element: nothing in it can end the element or begin another."""
    text = msgspec.json.encode(value).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
