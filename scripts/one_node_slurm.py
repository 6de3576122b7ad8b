"""A Slurm cluster of this machine alone, for as long as a command runs: to try out what a real one will do.

python scripts/one_node_slurm.py                                            # a shell in which sbatch and squeue work
python scripts/one_node_slurm.py python train.py -m hydra/launcher=slurm task=uea/basic_motions scale=smoke seed=0,1

Needs Slurm and MUNGE (Debian, Ubuntu: apt-get install slurm-wlm munge), no root and no configuration. Everything it
makes is in a temporary folder and gone with it; jobs that still run are cancelled.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")
SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/sbin")

# Two partitions on the one node: what waits in `urgent` takes the place of what runs in `main`, which is queued again
# after `grace` seconds. linuxproc and task/none need no control groups.
CONFIGURATION = """
ClusterName=one-node
SlurmctldHost={host}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire={requeue_delay}
SlurmctldPort={controller_port}
SlurmdPort={node_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
JobRequeue=1
KillWait={kill_wait}
ReturnToService=2
MailProg=/bin/true
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES PriorityTier=1 GraceTime={grace} MaxTime=INFINITE State=UP
PartitionName=urgent Nodes={host} PriorityTier=2 PreemptMode=OFF MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    """Programs of Slurm and MUNGE that are not installed."""
    return [name for name in PROGRAMS if _path(name) is None]


@contextmanager
def cluster(*, cpus: int | None = None, grace: int = 30, kill_wait: int = 5) -> Iterator[dict[str, str]]:
    """Inside the block a cluster of this machine runs; gives the environment in which Slurm's commands reach it.

    `cpus` are those that the node claims to have (default: those of the machine); grace: seconds that a preempted job
    of the partition `main` may go on; kill_wait: seconds between SIGTERM and SIGKILL. Raises RuntimeError where a
    program is missing or does not start.
    """
    if lacking := missing():
        raise RuntimeError(f"{', '.join(lacking)} not found; install Slurm and MUNGE: apt-get install slurm-wlm munge.")
    folder = Path(tempfile.mkdtemp(prefix="subquad-slurm-"))
    folder.chmod(0o755)  # MUNGE's socket must be reachable, and its folder writable by nobody else
    daemons: list[subprocess.Popen[bytes]] = []
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_", "SQUEUE_"))}
    environment["SLURM_CONF"] = str(folder / "slurm.conf")
    try:
        _configure(folder, cpus or os.cpu_count() or 1, grace, kill_wait)

        def start(*command: str) -> None:
            log = (folder / f"{command[0]}.log").open("wb")
            words = ["setpriv", "--pdeathsig", "TERM", str(_path(command[0])), *command[1:]]
            daemons.append(subprocess.Popen(words, stdout=log, stderr=log, env=environment, start_new_session=True))
            log.close()

        places = [f"--{name}={folder}/munge.{name.removesuffix('-file')}" for name in
                  ("key-file", "pid-file", "log-file", "seed-file", "socket")]  # fmt: skip
        start("munged", "--foreground", *places)
        _wait(lambda: (folder / "munge.socket").exists(), daemons, folder)
        start("slurmctld", "-D", "-i", "-v")
        _wait(lambda: _says(environment, "scontrol", "ping", text="UP"), daemons, folder)
        start("slurmd", "-D", "-N", socket.gethostname().partition(".")[0])
        _wait(lambda: _says(environment, "sinfo", "-h", "-o", "%T", text="idle"), daemons, folder)
        yield environment
    finally:
        _stop(daemons, environment)
        shutil.rmtree(folder, ignore_errors=True)


def _configure(folder: Path, cpus: int, grace: int, kill_wait: int) -> None:
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    with socket.socket() as one, socket.socket() as other:  # both open at once, so that they differ
        ports = []
        for each in (one, other):
            each.bind(("", 0))
            ports.append(each.getsockname()[1])
    import pwd

    filled = CONFIGURATION.format(
        folder=folder, host=socket.gethostname().partition(".")[0], user=pwd.getpwuid(os.getuid()).pw_name,
        controller_port=ports[0], node_port=ports[1], cpus=cpus, memory=pages * page // 2**20 // 2, grace=grace,
        kill_wait=kill_wait, requeue_delay=5,
    )  # fmt: skip
    (folder / "slurm.conf").write_text(filled)


def _wait(ready: Callable[[], bool], daemons: Sequence["subprocess.Popen[bytes]"], folder: Path) -> None:
    deadline = time.monotonic() + 30
    while not ready():
        if time.monotonic() > deadline or any(daemon.poll() is not None for daemon in daemons):
            last = sorted(folder.glob("*.log"), key=lambda path: path.stat().st_mtime)[-1]
            raise RuntimeError(f"The cluster does not start; {last.name} ends with:\n{last.read_text()[-2000:]}")
        time.sleep(0.1)


def _says(environment: Mapping[str, str], *command: str, text: str) -> bool:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode == 0 and text in done.stdout


def _stop(daemons: Sequence["subprocess.Popen[bytes]"], environment: Mapping[str, str]) -> None:
    """Cancels all jobs and ends the daemons, the last one first."""
    if daemons and daemons[-1].poll() is None:
        user = str(os.getuid())
        subprocess.run(["scancel", "-u", user, "-s", "KILL"], env=environment, capture_output=True, check=False)
        subprocess.run(["scancel", "-u", user], env=environment, capture_output=True, check=False)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and _says(environment, "squeue", "-h", "-o", "job", text="job"):
            time.sleep(0.1)
    for daemon in reversed(daemons):
        daemon.terminate()
        try:
            daemon.wait(timeout=10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _path(program: str) -> str | None:
    return shutil.which(program, path=os.pathsep.join((os.environ.get("PATH", ""), *SYSTEM_FOLDERS)))


def main() -> int:
    """Runs the command of the command line, or a shell, inside a cluster."""
    command = sys.argv[1:] or [os.environ.get("SHELL", "/bin/sh")]
    if command[0] in ("-h", "--help"):
        print((__doc__ or "").strip())
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with cluster() as environment, subprocess.Popen(command, env=environment) as process:
            while True:
                try:
                    return process.wait()
                except KeyboardInterrupt:
                    continue  # the command has it too, and decides
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
