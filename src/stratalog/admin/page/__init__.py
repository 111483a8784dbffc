"""`stats --html`: one page on what logs hold and what cleaning them would save.

    figures.py      gathers: counts, a dry run of cleaning, what is dirty, what retention would take
    pinned.py       a partition as it is at one moment, whatever its live owner does meanwhile
    content.py      figures -> the sentences, bars and rows that the page shows              pure
    bars.py         its drawings; `words.py`: its numbers and foreign texts                  pure
    render.py       content -> HTML, through `page.html.j2` and `page.css`
    target.py       the file: written aside and renamed, never into the logs that are read

The page is one file without JavaScript: bars are inline SVG, colours follow the reader's light or
dark theme by CSS. What comes from logs is other people's bytes: the template escapes everything.
"""
