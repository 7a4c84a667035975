"""Leaderboard files → static pages: `specbench site`.

`entries.py` reads rows, groups and ranks them; a module for each page says what it shows (`index.py`, `row_page.py`,
`plane.py`, `predicted.py`, `published.py`), the templates draw it, and `folder.py` puts a whole site in the place of an
earlier one.
"""
