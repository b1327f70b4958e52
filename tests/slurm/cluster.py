"""A Slurm of one node on loopback: munged, slurmctld and slurmd of its own, with every file in one directory."""
import os
import shutil
import socket
import subprocess
import time

import harness

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "scancel", "srun", "squeue")
PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"
CPUS = 8


def missing():
    """Why there can be none here; empty if there can."""
    absent = [program for program in PROGRAMS if not shutil.which(program, path=PATH)]
    if absent:
        return f"there is no {absent[0]} (Debian: slurmctld slurmd slurm-client munge)"
    return "" if os.getuid() == 0 else "slurmd needs root"


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Cluster:
    def __init__(self, directory, environment):
        self.directory = directory
        os.mkdir(directory, 0o755)
        self.environment = {**environment, "PATH": PATH, "SLURM_CONF": self.path("slurm.conf")}
        self.daemons = []

    def path(self, name):
        return os.path.join(self.directory, name)

    def configuration(self):
        host = socket.gethostname().split(".")[0]
        for name in ("state", "spool"):
            os.mkdir(self.path(name))
        return f"""ClusterName=gacc
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={self.path("munge.socket")},cred_expire=5
StateSaveLocation={self.path("state")}
SlurmdSpoolDir={self.path("spool")}
SlurmctldPidFile={self.path("slurmctld.pid")}
SlurmdPidFile={self.path("slurmd.pid")}
SlurmctldLogFile={self.path("slurmctld.log")}
SlurmdLogFile={self.path("slurmd.log")}
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
JobRequeue=1
ReturnToService=2
KillWait=10
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0
NodeName={host} NodeAddr=127.0.0.1 CPUs={CPUS} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=NO State=UP
"""

    def start(self):
        with open(self.path("munge.key"), "wb") as file:
            file.write(os.urandom(128))
        os.chmod(self.path("munge.key"), 0o400)
        with open(self.path("slurm.conf"), "w") as file:
            file.write(self.configuration())
        self.daemon("munged", "--foreground", "--force", "--socket", self.path("munge.socket"), "--key-file", self.path("munge.key"),
                    "--pid-file", self.path("munged.pid"), "--log-file", self.path("munged.log"),
                    "--seed-file", self.path("munge.seed"))
        harness.until(lambda: os.path.exists(self.path("munge.socket")), 10, "munged")
        self.daemon("slurmctld", "-D")
        self.daemon("slurmd", "-D")
        harness.until(lambda: "idle" in self.call("sinfo", "-h", "-o", "%T"), 30, "an idle node")

    def daemon(self, *command):
        with open(self.path(command[0] + ".out"), "w") as out:
            self.daemons.append(subprocess.Popen([shutil.which(command[0], path=PATH), *command[1:]], env=self.environment,
                                                 stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT))

    def stop(self):
        """Jobs that a failed test has left go first: their slurmstepd would outlive the daemons."""
        self.call("scancel", "--user=root")
        harness.until_empty(lambda: self.call("squeue", "-h"), 20)
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def call(self, *command, cwd=None, **environment):
        done = subprocess.run(command, env={**self.environment, **environment}, cwd=cwd, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=30)
        return done.stdout.strip() if done.returncode == 0 else "failed: " + done.stderr.strip()

    def state(self, job):
        """RUNNING, COMPLETED, …, and how often it was put back into the queue."""
        facts = dict(word.split("=", 1) for word in self.call("scontrol", "-o", "show", "job", job).split() if "=" in word)
        return facts["JobState"], int(facts["Restarts"])

    def wait(self, job, limit):
        """The state in which the job ended for good."""
        end = time.monotonic() + limit
        while (state := self.state(job)[0]) in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED"):
            if time.monotonic() > end:
                raise AssertionError(f"job {job} is {state} after {limit} s")
            time.sleep(0.1)
        return state
