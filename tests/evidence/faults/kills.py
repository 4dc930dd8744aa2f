"""Ends at any moment: whoever writes a file is killed, has no room, or has a rival, and the file is whole all the same.

A process that has all imported is forked for each writer, writes again and again, and is killed at a random moment.
"""

import os
import random
import resource
import signal
import subprocess
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from tune_policies import InvalidResourcesError
from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.files.terminal import TextConsole, empty_table
from tune_policies.values.sanitize import one_line

from .writers import NUM_VERSIONS, Writer, writers

_TMPFS_BYTES: Final = 16 * 1024


class Killed(NamedTuple):
    """What kills did to a file.

    Attributes:
        name: What was written.
        num_kills: How many processes were killed while they wrote.
        num_absent: After how many the file was not there, as before the first write.
        num_halves: How many files with half of a text were left beside it.
        failures: When it was not whole.
    """

    name: str
    num_kills: int
    num_absent: int
    num_halves: int
    failures: tuple[str, ...]


def kill_writers(writer: Writer, number: int, seed: int, *, rivals: int = 1) -> Killed:
    """Kill ``rivals`` processes that write one file, so many times, and look at the file each time."""
    rng = random.Random(f"{seed} {writer.name}")
    num_absent, failures = 0, []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / writer.file
        start = time.monotonic()
        for version in range(NUM_VERSIONS):
            writer.write(folder, version)
        longest_s = 2 * (time.monotonic() - start) / NUM_VERSIONS
        for kill in range(number):
            with _written_again_and_again(writer, folder, rivals):
                time.sleep(rng.uniform(0, longest_s))
            if not path.exists():
                num_absent += 1
            elif why := _why_not_whole(writer, path):
                failures.append(f"{writer.name}, kill {kill}: {why}")
            writer.write(folder, kill % NUM_VERSIONS)  # which no lock and no half may stop
        halves = [each for each in folder.iterdir() if each != path and not each.name.endswith(".lock")]
    return Killed(writer.name, number, num_absent, len(halves), tuple(failures))


@contextmanager
def _written_again_and_again(writer: Writer, folder: Path, rivals: int) -> Iterator[None]:
    """Let processes write in the block, from their first write on, and kill them at its end."""
    ready, tell = os.pipe()
    children = []
    for rival in range(rivals):
        child = os.fork()
        if child == 0:
            _write_for_ever(writer, folder, rival, tell)
        children.append(child)
    os.close(tell)
    try:
        for _ in children:
            os.read(ready, 1)
        yield
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)  # not reaped yet, so the number is nobody else's
            os.waitpid(child, 0)
        os.close(ready)


def _write_for_ever(writer: Writer, folder: Path, rival: int, tell: int) -> None:
    parent = os.getppid()
    try:
        os.write(tell, b".")
        version = rival
        while os.getppid() == parent:
            with suppress(InvalidResourcesError):  # of a rival that was first
                writer.write(folder, version % NUM_VERSIONS)
            version += 1
    except Exception:  # noqa: BLE001  # nobody else hears of it
        traceback.print_exc()
    finally:
        os._exit(1)


def _why_not_whole(writer: Writer, path: Path) -> str:
    try:
        writer.check(path)
    except Exception as error:  # noqa: BLE001  # it is what is looked for
        return f"{type(error).__name__}: {one_line(str(error)[:200])}"
    return ""


@contextmanager
def little_room() -> Iterator[Path]:
    """Give a folder in which a few small files fit.

    Raises:
        subprocess.CalledProcessError: This user may mount nothing.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = ["-t", "tmpfs", "-o", f"size={_TMPFS_BYTES}", "tmpfs", folder]
        subprocess.run(["mount", *options], check=True, capture_output=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True, capture_output=True)


@contextmanager
def small_files() -> Iterator[None]:
    """Let no file of this process grow beyond some bytes in the block."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def why_lost_on_a_full_disk(writer: Writer, folder: Path) -> str:
    """Write until there is no room; return what is wrong then, or empty: what was there is whole, and nothing else is.

    The folder is one with little room.
    """
    path = folder / writer.file
    (folder / "filling").write_bytes(b"x" * (_TMPFS_BYTES - 8192))
    for version in range(100):
        before = path.read_bytes() if path.exists() else None
        try:
            writer.write(folder, version % NUM_VERSIONS)
        except (InvalidResourcesError, OSError) as error:
            if not isinstance(error, InvalidResourcesError) or "No space left" not in str(error):
                return f"no message: {error!r}"
            break
        except UserWarning as error:
            return str(error)
        (folder / f"more-{version}").write_bytes(b"x" * 1024)
    else:
        return "there was room all the time"
    if before is not None and path.exists() and path.read_bytes() != before:
        return "it was changed"
    names = {each.name for each in folder.iterdir() if not each.name.startswith(("more-", "filling"))}
    return "" if names <= {writer.file} else f"left behind: {names - {writer.file}}"


def measure_kills(number: int, seed: int) -> bool:
    """Print a row for each writer, and each failure; return whether there is none."""
    table = empty_table(f"{number} kills of each writer", "Writes", "Kills", "Not there", "Halves", "Failures")
    failures: list[str] = []
    for rivals in (1, 2):
        for writer in writers():
            found = kill_writers(writer, number, seed, rivals=rivals)
            failures += found.failures
            name = found.name if rivals == 1 else f"{found.name}, by two at once"
            counts = (found.num_kills * rivals, found.num_absent, found.num_halves, len(found.failures))
            table.add_row(name, *map(str, counts))
    TextConsole(width=120).print(table)
    for text in failures[:50]:
        print(f"* {one_line(text)}")
    print(f"{describe_machine()}\ncommand: {own_command()}")
    return not failures
