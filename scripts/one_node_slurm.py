"""Runs a command with a temporary Slurm cluster on this machine, to try out sweeps on Slurm.

python scripts/one_node_slurm.py                                            # a shell in which sbatch and squeue work
python scripts/one_node_slurm.py python train.py -m hydra/launcher=slurm task=uea/basic_motions scale=smoke seed=0,1

Needs Slurm and MUNGE (Debian, Ubuntu: apt-get install slurm-wlm munge), but no root rights and no configuration. All
its files are in a temporary folder, which is removed at the end; jobs that are still running are cancelled.
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

# Two partitions share the nodes: jobs of `urgent` preempt jobs of `main`, which are requeued after `grace` seconds.
# linuxproc, task/none and task/affinity do not need control groups. A lost node counts as down after ten seconds.
CONFIGURATION = """
ClusterName=one-node
SlurmctldHost={host}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire={requeue_delay}
SlurmctldPort={controller_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin={task_plugin}
TaskPluginParam={binding}
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
SlurmdTimeout=10
MailProg=/bin/true
PartitionName=main Nodes=ALL Default=YES PriorityTier=1 GraceTime={grace} MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=ALL PriorityTier=2 PreemptMode=OFF MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    """Programs of Slurm and MUNGE that are not installed."""
    return [name for name in PROGRAMS if _path(name) is None]


@contextmanager
def cluster(
    *, cpus: int | None = None, grace: int = 30, kill_wait: int = 5, nodes: int = 1, settings: Sequence[str] = ()
) -> Iterator[dict[str, str]]:
    """Runs a cluster on this machine inside the block; yields the environment for Slurm's commands.

    Args:
        cpus: number of CPUs that each node reports. Default: those of the machine; each task is then bound to its own.
        grace: seconds until a preempted job of the partition `main` is ended.
        kill_wait: seconds between SIGTERM and SIGKILL.
        nodes: number of nodes, each a slurmd. Several are called node1, node2, ..., names without an address.
        settings: further lines of slurm.conf.

    Raises:
        RuntimeError: a program is missing or does not start.
    """
    if programs := missing():
        raise RuntimeError(
            f"{', '.join(programs)} not found; install Slurm and MUNGE: apt-get install slurm-wlm munge."
        )
    folder = Path(tempfile.mkdtemp(prefix="subquad-slurm-"))
    folder.chmod(0o755)  # MUNGE's socket must be reachable, and its folder writable by nobody else
    daemons: list[subprocess.Popen[bytes]] = []
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_", "SQUEUE_"))}
    environment["SLURM_CONF"] = str(folder / "slurm.conf")
    host = socket.gethostname().partition(".")[0]
    names = [host] if nodes == 1 else [f"node{number}" for number in range(1, nodes + 1)]
    try:
        _configure(folder, host, names, cpus, settings, grace=grace, kill_wait=kill_wait)

        def start(*command: str) -> None:
            log = (folder / f"{command[0]}.log").open("ab")
            daemon = ["setpriv", "--pdeathsig", "TERM", str(_path(command[0])), *command[1:]]
            daemons.append(subprocess.Popen(daemon, stdout=log, stderr=log, env=environment, start_new_session=True))
            log.close()

        files = [f"--{name}={folder}/munge.{name.removesuffix('-file')}" for name in
                 ("key-file", "pid-file", "log-file", "seed-file", "socket")]  # fmt: skip
        start("munged", "--foreground", *files)
        _wait(lambda: (folder / "munge.socket").exists(), daemons, folder)
        start("slurmctld", "-D", "-i", "-v")
        _wait(lambda: _prints(environment, "scontrol", "ping", text="UP"), daemons, folder)
        for name in names:
            start("slurmd", "-D", "-N", name)
        idle = "\n".join(["idle"] * nodes)
        _wait(lambda: _prints(environment, "sinfo", "-hNp", "main", "-o", "%T", text=idle), daemons, folder)
        yield environment
    finally:
        _stop(daemons, environment)
        shutil.rmtree(folder, ignore_errors=True)


def _configure(
    folder: Path, host: str, names: Sequence[str], cpus: int | None, settings: Sequence[str], **numbers: int
) -> None:
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    controller_port, *ports = _free_ports(1 + len(names))
    import pwd

    configuration = CONFIGURATION.format(
        folder=folder, host=host, user=pwd.getpwuid(os.getuid()).pw_name, controller_port=controller_port,
        task_plugin="task/none" if cpus else "task/affinity", binding="none" if cpus else "autobind=cores",
        requeue_delay=5, **numbers,
    )  # fmt: skip
    lines = [
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus or os.cpu_count() or 1} "
        f"RealMemory={pages * page // 2**20 // 2 // len(names)} State=UNKNOWN"
        for name, port in zip(names, ports, strict=True)
    ]
    (folder / "slurm.conf").write_text("\n".join([configuration, *lines, *settings, ""]))


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]  # open at the same time, so that the ports differ
    for opened in sockets:
        opened.bind(("", 0))
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


def _wait(ready: Callable[[], bool], daemons: Sequence["subprocess.Popen[bytes]"], folder: Path) -> None:
    deadline = time.monotonic() + 30
    while not ready():
        if time.monotonic() > deadline or any(daemon.poll() is not None for daemon in daemons):
            log = sorted(folder.glob("*.log"), key=lambda path: path.stat().st_mtime)[-1]
            raise RuntimeError(f"The cluster does not start; {log.name} ends with:\n{log.read_text()[-2000:]}")
        time.sleep(0.1)


def _prints(environment: Mapping[str, str], *command: str, text: str) -> bool:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode == 0 and text in done.stdout


def _stop(daemons: Sequence["subprocess.Popen[bytes]"], environment: Mapping[str, str]) -> None:
    """Cancels all jobs and stops the daemons in reverse order."""
    if daemons and daemons[-1].poll() is None:
        user = str(os.getuid())
        subprocess.run(["scancel", "-u", user, "-s", "KILL"], env=environment, capture_output=True, check=False)
        subprocess.run(["scancel", "-u", user], env=environment, capture_output=True, check=False)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and _prints(environment, "squeue", "-h", "-o", "job", text="job"):
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
    """Runs the given command, or a shell, with a cluster."""
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
                    continue  # the command receives it too and handles it
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
