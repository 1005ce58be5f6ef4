"""Write Jane Austen's six novels as text files, for `headscape train --text`.

    apt-get download r-cran-janeaustenr && dpkg -x r-cran-janeaustenr*.deb austen
    python scripts/make_austen.py austen/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb books

The package holds the texts of Project Gutenberg, which are in the public domain: 4.0 million bytes, line breaks and
chapter headings kept.
"""

import sys
from pathlib import Path

from make_samples import r_objects, r_strings


def main() -> None:
    source, target = map(Path, sys.argv[1:3])
    target.mkdir(parents=True, exist_ok=True)
    for book in map(r_strings, r_objects(source)):
        name = "-".join(book[0].lower().replace("&", "and").split())
        (target / f"{name}.txt").write_text("\n".join(book) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
