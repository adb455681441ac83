"""The explorer: a compiled program as one HTML file, which needs no server, no network and nothing installed.

program -> subject.describe -> JSON -> page.Page -> HTML

`subject` says what a program is as JSON values, `page` puts them beside the script and the style, which are
in `assets/`.
"""
