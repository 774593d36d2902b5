"""Raw pieces of one file, as hubs with a limit on file sizes hold them: refused with the command that joins them.

They are no splits: only the first one starts with a header.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from glm5_vllm.gguf.errors import GGUFError

# NAME.gguf.part1of2, NAME.gguf-split-a, NAME.gguf.part-00001-of-00002
PIECE_NAME = re.compile(
    r"(?P<whole>.+\.gguf)[.-](?:part|split)[-_.]?(?P<piece>\d+|[a-z]{1,2})(?:[-_]?of[-_]?(?P<count>\d{1,5}))?"
)
# from here on the command counts instead of naming each piece
_MANY = 4


def refuse_pieces_in(folder: Path) -> None:
    """Raise GGUFError if `folder` holds a raw piece."""
    for path in sorted(folder.iterdir()):
        refuse_piece(path)


def refuse_piece(path: Path) -> None:
    """Raise GGUFError if the file at `path` is a raw piece by its name."""
    piece = PIECE_NAME.fullmatch(path.name)
    if piece is None or not path.exists():
        return
    found = [each for each in map(PIECE_NAME.fullmatch, _names(path.parent)) if each]
    pieces = [each for each in found if each["whole"] == piece["whole"]]
    # numbers may come without zeros in front
    pieces.sort(key=lambda each: (len(each["piece"]), each["piece"]))
    count = int(piece["count"] or len(pieces))
    missing = count - len(pieces)
    join = f"cat {_listed(pieces)} > {shlex.quote(piece['whole'])}"
    raise GGUFError(
        f"{path.name} is a raw piece of {piece['whole']}",
        f"{len(pieces)} of {count} pieces are here",
        expected="the joined file",
        remedy=f"Fetch the other {missing}, then join all of them in order with cat"
        if missing > 0
        else f"Join them: {join}",
    )


def _names(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


def _listed(pieces: list[re.Match[str]]) -> str:
    """The pieces in order, as words for bash."""
    first, last = pieces[0]["piece"], pieces[-1]["piece"]
    if len(pieces) < _MANY or not first.isdigit() or int(last) - int(first) != len(pieces) - 1:
        return " ".join(shlex.quote(piece[0]) for piece in pieces)
    # bash keeps the zeros in front of the first number
    name, (start, stop) = pieces[0][0], pieces[0].span("piece")
    after = shlex.quote(name[stop:]) if name[stop:] else ""
    return f"{shlex.quote(name[:start])}{{{first}..{last}}}{after}"
