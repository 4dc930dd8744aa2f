"""Damaged files: each loader takes a sound file with random damage for what it is, or says what is wrong with it."""

import random
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tune_policies import InvalidResourcesError
from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.files.terminal import TextConsole, empty_table
from tune_policies.values.sanitize import one_line

from .sound_files import SoundFile, sound_files

MOST_S: Final = 5.0
_MOST_CHARACTERS: Final = 20_000

_TOKENS: Final = (
    *(b"null", b"true", b"-1", b"0", b"1e308", b"1e999", b".nan", b"NaN", b"-0.0", b"9" * 400, b"0x" + b"f" * 99),
    *(
        b"[",
        b"]",
        b"{",
        b"}",
        b"[[[[",
        b'"',
        b"'",
        b":",
        b": ",
        b",",
        b"\n",
        b"\n\n",
        b"\t",
        b"- ",
        b"# ",
        b"|\n",
        b">-\n",
    ),
    *(b"&a ", b"*a", b"<<: *inner", b"!!python/object/apply:os.system [x]", b"!!binary aGk=", b"--- ", b"%YAML 9.9\n"),
    *(b"\x00", b"\x1b[2J", b"\xff", b"\xed\xa0\x80", "\u202e".encode(), "\u2028".encode(), b"\\ud800", b"{{ .x }}"),
)
"""What means something to a parser, or should mean nothing."""


class Found(NamedTuple):
    """How a loader took damaged files.

    Attributes:
        name: Of the kind of file.
        num_read: How many were taken for sound.
        num_refused: How many were refused with a message.
        longest_s: The longest that one took, in seconds of the process.
        failures: What nobody expects: by number of the file, another error, or a message without the file's name.
    """

    name: str
    num_read: int
    num_refused: int
    longest_s: float
    failures: tuple[str, ...]


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Return the content with one to four damages."""
    for _ in range(rng.randint(1, 4)):
        content = _damaged_once(content, rng)
    return content


def _damaged_once(content: bytes, rng: random.Random) -> bytes:
    size = len(content)
    start = rng.randrange(size + 1)
    end = min(size, start + rng.choice((1, 1, 2, 4, 8, 64, size)))
    match rng.randrange(7):
        case 0 if start < size:  # a bit flips
            return content[:start] + bytes([content[start] ^ 1 << rng.randrange(8)]) + content[start + 1 :]
        case 1:  # the end is missing
            return content[:start]
        case 2:  # a part is missing
            return content[:start] + content[end:]
        case 3:  # a part is there twice
            return content[:end] + content[start:end] + content[end:]
        case 4:  # two parts have changed places
            middle = rng.randint(start, end)
            return content[:start] + content[middle:end] + content[start:middle] + content[end:]
        case 5:  # something stands in the place of a word
            words = content.split(b" ")
            words[rng.randrange(len(words))] = rng.choice(_TOKENS)
            return b" ".join(words)
        case _:
            return content[:start] + rng.choice(_TOKENS) + content[start:]


def try_damaged(name: str, file: SoundFile, numbers: Sequence[int], seed: int) -> Found:
    """Damage a file once for each number, and let its loader read it."""
    num_read, longest_s, failures = 0, 0.0, []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, "damaged.yaml")
        for number in numbers:
            path.unlink(missing_ok=True)
            path.write_bytes(damaged(file.text.encode(), random.Random(f"{seed} {name} {number}")))
            start = time.process_time()
            why = _why_unexpected(file, path)
            took_s = time.process_time() - start
            longest_s = max(longest_s, took_s)
            num_read += why is None
            if why is None or why == "":
                why = f"took {took_s:.1f} s" if took_s > MOST_S else ""
            if why:
                failures.append(f"{name}, file {number}: {why}")
    num_refused = len(numbers) - num_read - len(failures)
    return Found(name, num_read, num_refused, longest_s, tuple(failures))


def _why_unexpected(file: SoundFile, path: Path) -> str | None:
    """Return what is wrong with how the file was taken; empty: refused as it should be; ``None``: it was read."""
    try:
        file.load(path)
    except InvalidResourcesError as error:
        text = str(error)
        is_named = path.name in text or "policy-of-a-profile.yaml" in text or "trial" in text
        if is_named and len(text) < _MOST_CHARACTERS and "\n\n" not in text:
            return ""
        return f"the message names no file, or is no paragraph: {one_line(text[:200])}"
    except Exception as error:  # noqa: BLE001  # it is what is looked for
        return f"{type(error).__name__}: {one_line(str(error)[:200])}"
    return None


def measure_mutations(kinds: Sequence[str], number: int, seed: int) -> bool:
    """Print a row for each kind of file, and each failure; return whether there is none."""
    files = sound_files()
    found = list(_each(kinds or [*files], files, number, seed))
    table = empty_table(
        f"{number:,} damaged files for each loader", "File", "Read", "Refused", "Longest (s)", "Failures"
    )
    for each in found:
        row = (f"{each.num_read:,}", f"{each.num_refused:,}", f"{each.longest_s:.2f}", str(len(each.failures)))
        table.add_row(each.name, *row)
    TextConsole(width=120).print(table)
    failures = [text for each in found for text in each.failures]
    for text in failures[:50]:
        print(f"* {one_line(text)}")
    print(f"{describe_machine('pyyaml')}\ncommand: {own_command()}")
    return not failures


def _each(kinds: Sequence[str], files: dict[str, SoundFile], number: int, seed: int) -> Iterator[Found]:
    for name in kinds:
        yield try_damaged(name, files[name], range(number), seed)
