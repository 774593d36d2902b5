"""Chooses the model among the files of a source: every split of one quantisation, tokenizer and config.

Refuses early: no set, several sets, missing splits, pointer files, files without digest. Next: ../plan.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from glm5_service.errors import SettingsError
from glm5_service.foreign import plain
from glm5_service.settings.staging import StagingSettings
from glm5_service.staging.reasons import Reason, StagingError
from glm5_service.staging.records import SPLIT_NAME, Digest, Listing, RemoteFile
from glm5_service.staging.sources import open_source
from glm5_service.staging.sources.base import Source
from glm5_service.staging.sources.checksums import SUMS_NAME, parse_sums

COMPANIONS = frozenset(
    {
        "added_tokens.json",
        "chat_template.jinja",
        "chat_template.json",
        "config.json",
        "generation_config.json",
        "merges.txt",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "vocab.json",
    }
)
# the smallest GGUF that says anything is larger; a Git LFS pointer is about 130 bytes
SMALLEST_GGUF_BYTES = 256
# a file system takes 255; the longest name made from it is that of a journal
LONGEST_NAME_BYTES = 200


@dataclass(frozen=True)
class Offer:
    """A listing and the source that each of its files is read from."""

    listing: Listing
    sources: Mapping[str, Source]


def make_offer(settings: StagingSettings) -> Offer:
    """Ask the sources; raises StagingError, Transient."""
    if settings.source is None:
        raise SettingsError("staging.source", "not set", expected="the address of a model")
    source = open_source(settings.source, settings)
    found = _with_sums(source, source.entries())
    ggufs = _choose_set([file for file in found if file.is_gguf], settings.quantisation, source.label)
    companions = _companions(found, ggufs)
    chosen = {file.name: (source, file) for file in map(_flat, [*ggufs, *companions])}
    if settings.tokenizer_source is not None:
        second = open_source(settings.tokenizer_source, settings)
        companions = _companions(_with_sums(second, second.entries()), [])
        if not companions:
            raise StagingError(
                Reason.NOT_FOUND,
                f"tokenizer and config in {second.label}",
                "none",
                expected="tokenizer.json, config.json and the like at its root",
            )
        for file in map(_flat, companions):
            chosen[file.name] = (second, file)
    files = []
    for name in sorted(chosen):
        holder, file = chosen[name]
        files.append(_checked(holder.complete(file), holder, settings))
    return Offer(Listing(source.label, tuple(files)), {name: holder for name, (holder, _) in chosen.items()})


def _with_sums(source: Source, files: list[RemoteFile]) -> list[RemoteFile]:
    """The files with the digests a SHA256SUMS beside them states; a source's own digest wins."""
    listed = next((file for file in files if file.name == SUMS_NAME and file.size), None)
    if listed is None or all(file.digest for file in files if file.is_gguf):
        return files
    sums = parse_sums(source.read_small(source.complete(listed)), source.label)
    return [
        replace(file, digest=Digest("sha256", sums[file.name]))
        if file.digest is None and file.name in sums
        else file
        for file in files
    ]


def _choose_set(files: list[RemoteFile], quantisation: str | None, label: str) -> list[RemoteFile]:
    """All splits of the one set that is asked for."""
    if quantisation:
        files = _of_quantisation(files, quantisation)
    sets: dict[str, dict[int, RemoteFile]] = {}
    for file in files:
        match = SPLIT_NAME.match(file.name)
        key, number = (
            (f"{match['stem']}-of-{match['count']}", int(match["number"])) if match else (file.name, 0)
        )
        sets.setdefault(key, {})[number] = file
    what = f"GGUF files{f' of {quantisation}' if quantisation else ''} in {label}"
    if not sets:
        raise StagingError(Reason.NOT_FOUND, what, "none", expected="one model")
    if len(sets) > 1:
        raise StagingError(Reason.AMBIGUOUS, what, ", ".join(sorted(sets)[:8]), expected="one model")
    key, splits = next(iter(sets.items()))
    if 0 not in splits:
        count = int(key.rpartition("-")[2])
        missing = sorted(set(range(1, count + 1)) - set(splits))
        if missing or len(splits) != count:
            raise StagingError(
                Reason.INCOMPLETE, f"splits of {key}", f"{missing} missing", expected=f"1 to {count}"
            )
    return [splits[number] for number in sorted(splits)]


def _of_quantisation(files: list[RemoteFile], quantisation: str) -> list[RemoteFile]:
    """Files of the quantisation named; the exact label wins over a word of the name, and this over a part of a word.

    So Q2_K is neither Q2_K_L nor UD-Q2_K where Q2_K itself is there.
    """
    asked = re.escape(quantisation)
    for pattern in (
        rf"(?<![a-z0-9_])(?<!ud-)(?<!i1-){asked}(?![a-z0-9_])",
        rf"(?<![a-z0-9_]){asked}(?![a-z0-9_])",
        asked,
    ):
        found = [file for file in files if re.search(pattern, file.name, re.IGNORECASE)]
        if found:
            return found
    return []


def _companions(files: list[RemoteFile], ggufs: list[RemoteFile]) -> list[RemoteFile]:
    """Tokenizer and config of the GGUF's own folder, else of the root."""
    home = str(PurePosixPath(ggufs[0].name).parent) if ggufs else "."
    best: dict[str, RemoteFile] = {}
    for folder in (".", home):
        for file in files:
            path = PurePosixPath(file.name)
            if path.name in COMPANIONS and str(path.parent) == folder:
                best[path.name] = file
    return list(best.values())


def _flat(file: RemoteFile) -> RemoteFile:
    """A published model is one folder; the source's folders end here."""
    name = PurePosixPath(file.name).name
    if name in ("", ".", "..") or plain(name) is None or len(name.encode()) > LONGEST_NAME_BYTES:
        raise StagingError(
            Reason.REFUSED,
            "file name at the source",
            file.name,
            expected=f"printable characters, at most {LONGEST_NAME_BYTES} bytes",
        )
    return replace(file, name=name)


def _checked(file: RemoteFile, source: Source, settings: StagingSettings) -> RemoteFile:
    if file.is_gguf and file.size < SMALLEST_GGUF_BYTES:
        raise StagingError(
            Reason.NOT_A_MODEL,
            f"size of {file.name}",
            f"{file.size} bytes",
            expected="a GGUF, not a pointer to one",
        )
    if file.digest is None and source.remote and settings.require_digest:
        raise StagingError(
            Reason.NO_DIGEST, f"digest of {file.name} at {source.label}", "none", expected="a SHA-256"
        )
    return file
