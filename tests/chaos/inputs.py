"""Files from outside with random edits, and hostile overrides, are accepted or refused in a sentence.

Hypothesis chooses them, and shrinks the edits.
"""

import os
import pickle
import random
import resource
import shutil
import signal
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from chaos.twin import OK, Bench, Verdict

EXAMPLES = 100
"""Files or lists of overrides of a case."""

_SETTINGS = settings(
    max_examples=EXAMPLES, database=None, deadline=None, phases=(Phase.generate, Phase.shrink), print_blob=False,
    report_multiple_bugs=False,     suppress_health_check=list(HealthCheck),
)  # fmt: skip
_PIECES = (
    b"", b"\n", b"\r\n", b"\t", b",", b":", b" ", b"(", b")", b"[", b"]", b"{", b"}", b'"', b"'", b"\0", b"\xff",
    b"\xef\xbb\xbf", b"nan", b"inf", b"-1", b"1e999", b"9" * 30, b"0", b"1", b"?", b"null", b"true", b"[]", b"{}",
    b"@data", b"@classLabel", b"@classLabel true", b"@dimensions 3", b"@univariate true", b"@timeStamps true",
    b"@equalLength", b"(1,2)", b"[MAX", b"[SM 1 2 ]", b"b'", b"\\x", b"\\", b"rows:", b"cells:", b"printed:", b"&a",
    b"*a", b"${x}", b"!!python/object:os.system", b"mean: true", b"seeds: 0", b"- ", b"question_id", "é漢".encode(),
    b"\xed\xa0\x80", b"a" * 2000, b"PAR1",
)  # fmt: skip
_EDITS = st.lists(
    st.tuples(
        st.sampled_from(("insert", "replace", "delete", "repeat", "cut")), st.integers(0, 2**20), st.integers(0, 40),
        st.sampled_from(_PIECES) | st.binary(max_size=6),
    ),
    min_size=1, max_size=6,
)  # fmt: skip


def edited(content: bytes, edits: list[tuple[str, int, int, bytes]]) -> bytes:
    """A file after random edits."""
    for how, place, length, piece in edits:
        place %= len(content) + 1
        end = place + (0 if how == "insert" else length)
        if how == "cut":
            content = content[:place]
        elif how == "repeat":
            content = content[:place] + content[place:end] * 3 + content[end:]
        else:
            content = content[:place] + (b"" if how == "delete" else piece) + content[end:]
    return content


def _ts(folder: Path) -> Callable[[], Any]:
    from subquad.data.time_series import ts_files

    ts_files.write_synthetic(folder, dataset="Own", kind="classification", train=6, test=4)
    return lambda: ts_files.parse(ts_files.Source(folder / "Own_TRAIN.ts", folder / "Own_TEST.ts"), "classification")


def _ts_regression(folder: Path) -> Callable[[], Any]:
    from subquad.data.time_series import ts_files

    ts_files.write_synthetic(folder, dataset="Own", kind="regression", train=6, test=4)
    return lambda: ts_files.parse(ts_files.Source(folder / "Own_TRAIN.ts", folder / "Own_TEST.ts"), "regression")


def _listops(folder: Path) -> Callable[[], Any]:
    from subquad.data.listops import listops_release

    listops_release.write_synthetic(folder)
    return lambda: listops_release.read_release(folder, listops_release.SYNTHETIC_SIZES, 201)


def _vqa(folder: Path) -> Callable[[], Any]:
    from subquad.data.vqa import synthetic_vqa, vqa_files

    folder.mkdir()
    synthetic_vqa._write_texts(folder, "train2014", [1, 2])
    synthetic_vqa._write_texts(folder, "val2014", [3])
    return lambda: [vqa_files.read_split(folder, split, genuine=False) for split in ("train2014", "val2014")]


def _aan(folder: Path) -> Callable[[], Any]:
    from subquad.data.text.byte_pairs import BytePairs

    folder.mkdir(exist_ok=True)
    BytePairs.write_synthetic(folder)
    data = BytePairs(root=str(folder), folder=str(folder), batch_size=4, seed=0)
    data.synthetic = True  # any number of rows
    return data._make


def _glue(name: str, folder: Path) -> Callable[[], Any]:
    from subquad.data.text import glue_files

    glue_files.write_synthetic(folder, name)
    paths = glue_files.files(folder, name)
    return lambda: [glue_files.read(paths[split], name, split, genuine=False) for split in paths]


def _parquet(folder: Path) -> Callable[[], Any]:
    import pandas as pd

    from subquad.data.text import glue_files

    (folder / "sst2").mkdir(parents=True)
    frame = pd.DataFrame({"sentence": [f"film {i}" for i in range(8)], "label": [i % 2 for i in range(8)]})
    for split in ("train", "validation"):
        frame.to_parquet(folder / "sst2" / f"{split}-0.parquet")
    paths = glue_files.files(folder, "sst2")
    return lambda: [glue_files.read(paths[split], "sst2", split, genuine=False) for split in paths]


def _table(folder: Path) -> Callable[[], Any]:
    from subquad.config.choices import CONFIGS
    from subquad.results import table

    folder.mkdir(exist_ok=True)
    for name in ("dba/2", "primal_dual/9", "ecoformer/1"):
        if (source := CONFIGS / "table" / f"{name}.yaml").exists():
            shutil.copyfile(source, folder / name.replace("/", "-"))
    return lambda: [table.load(path, f"own/{path.name}") for path in sorted(folder.iterdir())]


def _record(folder: Path, bench: Bench) -> Callable[[], Any]:
    from subquad import records
    from subquad.results.scan import scan_runs

    run = folder / "runs" / bench.run(bench.base / "done").name
    shutil.copytree(bench.run(bench.base / "done"), run, ignore=shutil.ignore_patterns("checkpoints", "*.png", "*.log"))
    return lambda: (scan_runs(folder / "runs"), [records.read_evaluation(run, {"eval_batch_size": 5})])


READERS: dict[str, Callable[..., Callable[[], Any]]] = {
    "ts": _ts, "ts_regression": _ts_regression, "listops": _listops, "vqa": _vqa, "aan": _aan,
    "glue_sst2": partial(_glue, "sst2"), "glue_qqp": partial(_glue, "qqp"), "parquet": _parquet, "table": _table,
    "record": _record,
}  # fmt: skip


def _hang(*_: Any) -> None:
    raise AssertionError("it took more than 20 seconds")


def _fuzzed(name: str, number: int, bench: Bench, folder: Path) -> Verdict:
    """The verdict on a reader of files; limits the memory of this process."""
    from subquad.utils.errors import UserError

    reader = READERS[name](folder, bench) if name == "record" else READERS[name](folder)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    intact = {path: path.read_bytes() for path in files}
    reader()
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
    signal.signal(signal.SIGALRM, _hang)

    @seed(number)
    @_SETTINGS
    @given(st.integers(0, len(files) - 1), _EDITS)
    def check(chosen: int, edits: list[tuple[str, int, int, bytes]]) -> None:
        path = files[chosen]
        path.write_bytes(edited(intact[path], edits))
        signal.alarm(20)
        try:
            reader()
        except UserError as error:
            if "\n" in str(error).strip():
                raise AssertionError(f"more than one line: {str(error)[:200]!r}") from None
        except (Exception, RecursionError) as error:
            raise AssertionError(f"{path.name} after {edits}: {type(error).__name__}: {str(error)[:150]}") from error
        finally:
            signal.alarm(0)
            path.write_bytes(intact[path])

    try:
        check()
    except AssertionError as error:
        return Verdict("unclear", str(error)[:500])
    return OK


def _words(name: str, number: int, bench: Bench, folder: Path) -> Verdict:
    """As `_fuzzed`, for the words of a command line: the overrides of a run or the arguments about tables."""
    from config import hostile

    from subquad.cli.command import prepare_process

    folder.mkdir()
    os.chdir(folder)
    prepare_process()
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
    signal.signal(signal.SIGALRM, _hang)
    base = hostile.BASES[number % len(hostile.BASES)]
    draws = hostile.table_arguments() if name == "arguments" else hostile.overrides(base)

    @seed(number)
    @_SETTINGS
    @given(draws)
    def check(drawn: list[str]) -> None:
        signal.alarm(60)
        try:
            if name == "arguments":
                assert hostile.table_verdict(drawn) in ("composed", "refused")
            else:
                hostile.verdict(base, drawn, folder, build=name == "overrides")
        except Exception as error:
            raise AssertionError(f"{base} {drawn}: {type(error).__name__}: {str(error)[:150]}") from error
        finally:
            signal.alarm(0)

    try:
        check()
    except AssertionError as error:
        return Verdict("unclear", str(error)[:500])
    return OK


def fuzz(name: str, judge: Callable[..., Verdict], rng: random.Random, bench: Bench) -> Verdict:
    """A hundred inputs of one kind, in a process of their own."""
    number = rng.randrange(2**32)
    with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile() as told:
        pid = os.fork()
        if pid == 0:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            try:
                verdict = judge(name, number, bench, Path(folder) / "files")
            except BaseException as error:
                verdict = Verdict("unclear", f"{type(error).__name__}: {error}"[:500])
            Path(told.name).write_bytes(pickle.dumps(tuple(verdict)))
            os._exit(0)
        os.waitpid(pid, 0)
        content = Path(told.name).read_bytes()
        return Verdict(*pickle.loads(content)) if content else Verdict("unclear", "the process died")


KINDS = {
    f"fuzz.{name}": partial(fuzz, name, judge)
    for judge, names in ((_fuzzed, READERS), (_words, ("compositions", "overrides", "arguments")))
    for name in names
}
