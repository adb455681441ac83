"""What mkdocs is told while it builds the site: pages, pictures and styles made from the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pygments.formatters import HtmlFormatter
from reference import pages

REFERENCE = pages()
EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the generated pages at the end of the navigation."""
    config.nav.append({"Reference": [{title: f"reference/{title}.md"} for title in REFERENCE]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated files to those of docs/."""
    for title, text in REFERENCE.items():
        files.append(File.generated(config, f"reference/{title}.md", content=text))
    files.append(File.generated(config, "examples.md", content=examples()))
    files.append(File.generated(config, "code.css", content=code_styles()))
    return files


def examples() -> str:
    """Return the table of examples, and each of them whole."""
    text = re.sub(r"\((\w+)\.py\)", r"(#\1)", (EXAMPLES / "README.md").read_text(encoding="utf-8"))
    for path in sorted(EXAMPLES.glob("*.py")):
        code = path.read_text(encoding="utf-8")
        title = (ast.get_docstring(ast.parse(code)) or path.stem).split("\n")[0]
        text += f"\n## {title} {{ #{path.stem} }}\n\n```python\n{code}```\n"
    return text


def code_styles() -> str:
    """Return the colours of code on light and on dark paper."""
    light, dark = (HtmlFormatter(style=s).get_style_defs(".highlight") for s in ("friendly", "github-dark"))
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"
