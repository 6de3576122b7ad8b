"""Runs of two processes. As a program: one of the two, which trains several runs one after another.

    LOCAL_RANK=<0 or 1> python tests/processes.py <file of JSON>

The file holds the first of the ports to meet at, and for each run its words and the number of steps after which both
processes raise, or null. Importing torch takes longer than all of these runs.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

WORLD = 2


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def train_together(place: Path, runs: Sequence[tuple[Sequence[str], int | None]]) -> None:
    """Trains runs by two processes, each run in both; `place` is a new folder for what they say."""
    place.mkdir(parents=True)
    listed = place / "runs.json"
    listed.write_text(json.dumps([[list(words), after, free_port()] for words, after in runs]))
    started = []
    for rank in range(WORLD):
        places = {"LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        with (place / f"{rank}.txt").open("w") as said:
            command = [sys.executable, __file__, str(listed)]
            started.append(subprocess.Popen(command, env=os.environ | places, stdout=said, stderr=said))
    for process in started:
        process.wait(timeout=240)
    said = "".join((place / f"{rank}.txt").read_text() for rank in range(WORLD))
    assert [process.returncode for process in started] == [0] * WORLD, said


def main(listed: Path) -> None:
    from runs import compose_run, crash, trained  # heavy

    for words, after, port in json.loads(listed.read_text()):
        os.environ["MASTER_PORT"] = str(port)
        try:
            with nullcontext() if after is None else crash(after):
                trained(compose_run(words))
        except SystemExit as end:  # how the second process ends a run
            assert not end.code, end.code
        except RuntimeError as error:
            assert after is not None, error
            from torch import distributed

            if distributed.is_initialized():
                distributed.destroy_process_group()


def environment(data: Path, outputs: Path) -> Mapping[str, str]:
    """Where runs of the command line go."""
    return {"SUBQUAD_DATA": str(data), "SUBQUAD_OUTPUTS": str(outputs)}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
