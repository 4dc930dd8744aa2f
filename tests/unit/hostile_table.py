"""Load hostile files in a separate process that measures the CPU time and the peak memory of each loader.

``python -m tests.unit.hostile_table FORM …`` prints a line of JSON for each combination of loader and form.
"""

import gzip
import json
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tune_policies import InvalidResourcesError, load_decision, load_policy
from tune_policies.benchmarks.decide.price_file import load_prices
from tune_policies.benchmarks.record.packing_record import read_throughput
from tune_policies.benchmarks.record.run_set_file import read_run_set
from tune_policies.files.yaml_documents import DocumentError
from tune_policies.kuberay import load_capacity, load_catalog
from tune_policies.kuberay.lint.linting import lint_file
from tune_policies.kuberay.reading.load_cluster import find_cluster
from tune_policies.policies.policy_file import load_runtime_env
from tune_policies.trainers.gpu_memory.framework_overhead import load_overheads
from tune_policies.trainers.usage.gpu_memory_records import read_usage
from tune_policies.trainers.usage.load_usage import read_record
from tune_policies.values.sanitize import indented

NAME = "hostile.yaml"
LARGE = {}
"""A cache of the contents of large files, keyed by the name of the form."""
MOST_S = 5.0
MOST_BYTES = 500_000_000
MOST_GROWN_BYTES = 20_000_000
"""The maximum size of a file that grows. On a busy machine, it could grow by gigabytes before it is opened."""
HANGS_AFTER_S = 30


def load_profile(path):
    return load_policy(beside(path, f"{{kind: GpuMemoryPolicy, profile: {path.name}}}"))


def load_decided(path):
    return load_policy(beside(path, f"{{kind: BenchmarkedPolicy, decision: {path.name}}}"))


def beside(path, text):
    policy = path.with_name("policy-beside.yaml")
    policy.write_text(text)
    return policy


def lint(path):
    findings = lint_file(path)
    if any(each.severity == "error" for each in findings):
        raise InvalidResourcesError("\n".join(f"{each.source}: {each.message}" for each in findings))


def read_results(path, *names):
    """Read the file as part of a run folder, once under each of these names."""
    for name in names:
        folder = path.with_name(f"run-{name}")
        folder.mkdir(exist_ok=True)
        (folder / name).symlink_to(path)
        with suppress(InvalidResourcesError):  # a folder without a readable file is not a run
            read_usage(folder)


def read_tune(path):
    read_results(path, "result.json", "error.txt")


def read_train(path):
    read_results(path, "gpu_memory-0-1.json", "checkpoint_manager_snapshot.json")


def read_run_record(path):
    folder = path.with_name("run")
    folder.mkdir(exist_ok=True)
    record = folder / "resource_usage.json"
    record.symlink_to(path)
    if not record.exists():  # a run folder without a record is valid
        raise InvalidResourcesError(f"{path} is not there")
    try:
        read_record(folder)
    except InvalidResourcesError as error:
        raise InvalidResourcesError(str(error).replace(str(record), str(path))) from error


def read_overheads(path):
    folder = path.with_name("cache")
    folder.mkdir(exist_ok=True)
    record = folder / "gpu-overheads.json"
    record.symlink_to(path)
    os.environ["TUNE_POLICIES_CACHE"] = str(folder)
    load_overheads()


class Loader(NamedTuple):
    """A loader. ``may_pass`` is whether the loader may accept or skip a hostile file."""

    load: object
    may_pass: bool = False


LOADERS = {
    "policy": Loader(load_policy),
    "profile of a policy": Loader(load_profile),
    "decision of a policy": Loader(load_decided),
    "decision": Loader(load_decision),
    "catalogue": Loader(load_catalog),
    "capacity": Loader(load_capacity),
    "prices": Loader(load_prices),
    "run set": Loader(read_run_set),
    "record of throughput": Loader(read_throughput),
    "record of a run": Loader(read_run_record),
    "manifest": Loader(find_cluster),
    "manifest, by lint": Loader(lint, may_pass=True),  # another kind of manifest is reported only as a note
    "runtime environment": Loader(load_runtime_env, may_pass=True),  # any mapping is valid
    "run of Tune": Loader(read_tune, may_pass=True),
    "run of Train": Loader(read_train, may_pass=True),
    "overheads": Loader(read_overheads, may_pass=True),
}


# Hostile files that are special files:


def device(path):
    path.symlink_to("/dev/zero")


def full_device(path):
    path.symlink_to("/dev/full")


def memory_of_this_process(path):
    path.symlink_to("/proc/self/mem")


def pipe(path):
    os.mkfifo(path)


def unix_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def huge(path):
    with path.open("wb") as file:
        file.truncate(2**40)


def as_large_as_is_read(path):
    with path.open("wb") as file:
        file.truncate(64 * 2**20)


def folder(path):
    path.mkdir()


def link_to_nowhere(path):
    path.symlink_to("nowhere")


def link_to_itself(path):
    path.symlink_to(path.name)


def link_to_a_file_of_words(path):
    path.with_name("secret").write_text("root:hunter2hunter2\nnobody:x\n")
    path.symlink_to("secret")


# Hostile files in other encodings or with misleading text:


def noise(path):
    path.write_bytes(bytes(range(256)) * 9)


def empty(path):
    path.write_bytes(b"")


def zeros(path):
    path.write_bytes(b"\0" * 10_000)


def utf_16(path):
    path.write_bytes("kind: CpuPolicy\n".encode("utf-16"))


def utf_32(path):
    path.write_bytes("kind: CpuPolicy\n".encode("utf-32"))


def latin_1(path):
    path.write_bytes("kind: CpuPolicy\nlabels: {a: größe}\n".encode("latin-1"))


def half_a_character(path):
    path.write_bytes(b"kind: CpuPolicy\nname: \xe2\x82")


def overlong_characters(path):
    path.write_bytes(b"kind: \xc0\xaf\xf5\x80\x80\x80")


def half_of_a_pair(path):
    path.write_bytes(b'{"kind": "\xed\xa0\x80"}')


def half_of_a_pair_escaped(path):
    path.write_text('{"kind": "CpuPolicy\\ud800"}')


def control_characters(path):
    path.write_bytes(b"kind: Cpu\x1b[2JPolicy\x07\x08\n")


def control_characters_escaped(path):
    path.write_text('{"kind": "Cpu\\u001b[2JPolicy\\u009b\\r\\n::add-mask::a\\u0000", "\\u001b]0;title\\u0007": 1}')


def other_direction(path):
    path.write_text('kind: "Cpu\u202eyciloP\u2066"\n"\u202enodes\u202c": 1\n')


def same_look(path):
    path.write_text("kınd: CpuPolicy\nkind\u200b: GpuPolicy\n")  # noqa: RUF001


def packed(path):
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(200):
            file.write(b"0" * 2**20)


def packed_and_cut_off(path):
    path.write_bytes(gzip.compress(os.urandom(100_000))[:50_000])


# Hostile files that are small but expand to large data:


def merges(path):
    lines = ["k0: &k0 {a0: 1, b0: 2}", *(f"k{n}: &k{n} {{<<: [*k{n - 1}, *k{n - 1}], a{n}: 1}}" for n in range(1, 40))]
    path.write_text("\n".join(lines))


def aliases(path):
    lines = ["k0: &k0 [a, b]", *(f"k{n}: &k{n} [*k{n - 1}, *k{n - 1}, *k{n - 1}]" for n in range(1, 40))]
    path.write_text("\n".join(lines))


def alias_of_itself(path):
    path.write_text("&a [*a]")


def deep_json(path):
    path.write_text('{"a":' * 900 + "1" + "}" * 900)


def deeper_json(path):
    path.write_text('{"a":' * 1_000_000)


def deep_yaml(path):
    path.write_text("- " * 5000 + "a")


def deep_flow(path):
    path.write_text("{a: " * 100_000)


def many_keys(path):
    path.write_text("".join(f"key{number}: {number}\n" for number in range(30_000)))


def many_keys_in_json(path):
    path.write_text("{" + ",".join(f'"key{number}": 0' for number in range(120_000)) + "}")


def many_documents(path):
    path.write_text("--- a\n" * 30_000)


PARTS = '"schema_version": 1, "kind": "FirstFeasiblePolicy", '
LISTS = ("nodes", "policies", "node_types", "measurements", "workloads", "instances", "runs", "samples", "spans")
"""Names of list fields in the various kinds of files."""


def in_all_lists(text, number):
    each = "[" + ",".join([text] * (number // len(LISTS))) + "]"
    fields = PARTS + ", ".join(f'"{name}": {each}' for name in LISTS)
    return f'{{"tune_policies": {{{fields}}}, {fields}}}'


def many_wrong_parts(path):
    path.write_text(in_all_lists("0", 40_000))


def many_empty_parts(path):
    path.write_text(in_all_lists("{}", 20_000))


def still_more_wrong_parts(path):
    path.write_text(in_all_lists("0", 1_900_000 // 2))


def still_more_empty_parts(path):
    path.write_text(in_all_lists("{}", 950_000 // 2))


def too_many_lists(path):
    path.write_text('{"nodes": [' + ",".join(["[]"] * 2_010_000) + "]}")


def too_many_lines(path):
    path.write_text("- a\n" * 200_000)


# Values:


def twice(path):
    path.write_text('{"kind": "CpuPolicy", "cpus": 1, "cpus": 8}')


def twice_below(path):
    path.write_text('{"kind": "CappedPolicy", "inner": {"kind": "CpuPolicy", "cpus": 1, "cpus": 8}}')


def no_number(path):
    path.write_text('{"kind": "CpuPolicy", "cpus": NaN}')


def no_number_in_yaml(path):
    path.write_text("kind: CpuPolicy\ncpus: .nan\nmemory: .inf\n")


def too_large_a_number(path):
    path.write_text('{"kind": "CpuPolicy", "cpus": 1e999}')


def too_long_a_number(path):
    path.write_text('{"kind": "CpuPolicy", "cpus": ' + "9" * 100_000 + "}")


def long_number_in_yaml(path):
    path.write_text(f"kind: CpuPolicy\ncpus: 0x{'f' * 100_000}\nmemory: {'1_' * 50_000}1\n")


def long_text(path):
    path.write_text('"' + "a" * 9_000_000 + '"')


def long_key(path):
    key = "a" * 2_000_000
    path.write_text(f"{key}: 1\n{key}: 2")


def runs_python(path):
    path.write_text(f"!!python/object/apply:os.system ['touch {path}.ran']\n")


def runs_python_below(path):
    path.write_text(f"kind: CpuPolicy\ncpus: !!python/object/new:os.system ['touch {path}.ran']\n")


def of_a_template(path):
    path.write_text("kind: {{ .Values.kind }}\n{{- range $x := list 1 2 }}\ncpus: 1\n{{- end }}\n")


def pickled(path):
    path.write_bytes(b"cposix\nsystem\n(S'touch " + str(path).encode() + b".ran'\ntR.")


# Concurrent writers:


def grows(path):
    path.write_text("kind: [\n")

    def write():
        if path.stat().st_size < MOST_GROWN_BYTES:
            with path.open("a") as file:
                file.write("# more\n" * 1000)

    return write


def appears_and_disappears(path):
    path.write_text("kind: [\n")

    def swap():
        other = path.with_name("other")
        for make in (pipe, folder, link_to_nowhere, device, utf_16, empty):
            with suppress(OSError):
                make(other)
                if path.is_dir() and not path.is_symlink():
                    path.rmdir()
                other.replace(path) if not other.is_dir() else (path.unlink(missing_ok=True), other.rename(path))

    return swap


FORMS = {
    each.__name__: each
    for each in (
        *(device, full_device, memory_of_this_process, pipe, unix_socket, huge, as_large_as_is_read, folder),
        *(link_to_nowhere, link_to_itself, link_to_a_file_of_words),
        *(noise, empty, zeros, utf_16, utf_32, latin_1, half_a_character, overlong_characters, half_of_a_pair),
        *(half_of_a_pair_escaped, control_characters, control_characters_escaped, other_direction, same_look),
        *(packed, packed_and_cut_off, merges, aliases, alias_of_itself, deep_json, deeper_json, deep_yaml, deep_flow),
        *(many_keys, many_keys_in_json, many_documents, many_wrong_parts, many_empty_parts, still_more_wrong_parts),
        *(still_more_empty_parts, too_many_lists, too_many_lines, twice, twice_below, no_number, no_number_in_yaml),
        *(too_large_a_number, too_long_a_number, long_number_in_yaml, long_text, long_key),
        *(runs_python, runs_python_below, of_a_template, pickled, grows, appears_and_disappears),
    )
}
HEAVY = {
    *("as_large_as_is_read", "many_keys", "many_keys_in_json", "many_documents", "many_wrong_parts"),
    *("many_empty_parts", "still_more_wrong_parts", "still_more_empty_parts", "too_many_lists", "too_many_lines"),
}
"""Forms of large files. The tests of these forms are slow."""
OF_RACES = {"appears_and_disappears"}
"""Forms whose file changes repeatedly, so that a loader may read a valid file."""


@contextmanager
def written_meanwhile(write):
    """Call ``write`` repeatedly in another thread while the body of the ``with`` statement runs."""
    is_over = threading.Event()

    def keep_replacing():
        while not is_over.is_set():
            write()

    thread = threading.Thread(target=keep_replacing)
    if write is not None:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        if write is not None:
            thread.join()


def tried(name, form):
    """Load a file of this form with the named loader, and return the outcome, the CPU time and the peak memory."""
    folder = Path(tempfile.mkdtemp())
    path = folder / NAME
    writer = made(form, path)
    before = None if writer else file_state(path)
    messages, kind, start = [], "read", time.process_time()
    signal.alarm(HANGS_AFTER_S)
    try:
        with warnings.catch_warnings(record=True) as caught, written_meanwhile(writer):
            warnings.simplefilter("always")
            LOADERS[name].load(path)
        messages = [str(each.message) for each in caught]
    except InvalidResourcesError as error:
        messages, kind = [str(error)], "line" if isinstance(error, DocumentError) else "error"
    except Exception as error:  # noqa: BLE001  # an unexpected error is a finding
        messages, kind = [f"{type(error).__name__}: {error}"[:1000]], "raised"
    finally:
        signal.alarm(0)
    seconds = time.process_time() - start
    is_as_before = writer is not None or (file_state(path) == before and not path.with_name(f"{NAME}.ran").exists())
    shutil.rmtree(folder)
    return {
        "loader": name,
        "form": form,
        "kind": kind,
        "messages": [each[:20_000] for each in messages],
        "shown": [indented(each)[:20_000] for each in messages],
        "seconds": seconds,
        "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "is_as_before": is_as_before,
    }


def made(form, path):
    """Create the file, and return a function that changes it concurrently, or ``None`` if the file does not change.

    The content of large files is cached.
    """
    if form in LARGE:
        path.write_bytes(LARGE[form])
        return None
    writer = FORMS[form](path)
    if path.is_file() and not path.is_symlink() and 2**15 < path.stat().st_blocks * 512 < 2**24:
        LARGE[form] = path.read_bytes()
    return writer


def file_state(path):
    found = path.lstat()
    content = path.read_bytes() if path.is_file() and not path.is_symlink() and found.st_size < 2**21 else None
    return found.st_mode, found.st_size, found.st_mtime_ns, content


def hang(*_):
    raise TimeoutError(f"no answer within {HANGS_AFTER_S} s")


def main(forms):
    signal.signal(signal.SIGALRM, hang)
    for name in LOADERS:
        if child := os.fork():  # fork for each loader, because the peak memory of a process never decreases
            os.waitpid(child, 0)
            continue
        for form in forms:
            print(json.dumps(tried(name, form)), flush=True)
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
