"""Content -> one HTML file, by jinja2.

Invariants
- I1  Everything that is not the template's or the style sheet's own text is escaped.
- I2  The page loads nothing and runs nothing, and says so to the browser (its content policy allows
      the style sheet that is in it, and no more): a key that got past I1 would still be harmless.
- I3  The page is well-formed XML, too.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING

from stratalog import __version__
from stratalog.base.errors import MissingExtraError

if TYPE_CHECKING:
    from stratalog.admin.page.figures import Figures


def check_installed() -> None:
    """Raises `MissingExtraError` where `page_of` would, so that nobody waits for figures first."""
    try:
        import jinja2  # noqa: F401  wanted later
    except ImportError as error:
        raise MissingExtraError(
            f"the page's templates are not installed ({error}); pip install 'stratalog[report]'"
        ) from error


def page_of(figures: Figures, top: int) -> str:
    """The page. `top`: how many keys to name. Raises `MissingExtraError` without jinja2."""
    check_installed()
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    from stratalog.admin.page.content import content_of

    here = files("stratalog.admin.page")
    style = (here / "page.css").read_text(encoding="utf-8")
    template = (here / "page.html.j2").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return environment.from_string(template).render(
        page=content_of(figures, top),
        version=__version__,
        style=Markup(style),  # our own file
        style_digest=digest,
    )
