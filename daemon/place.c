#include "daemon/place.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* The first launcher whose `ranks` variable is set is believed. In a Slurm batch script outside of any srun step
 * SLURM_PROCID is set, too, but the step's size is not. */
static const struct launcher {
    const char *rank, *ranks, *local_rank, *local_ranks;
    const char *hosts; /* number of hosts, where local_ranks is not known */
} launchers[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", NULL},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL, "SLURM_STEP_NUM_NODES"},
};

/* `missing` when the variable is not set. */
static int read_number(const char *name, uint32_t missing, uint32_t *number, struct error *error)
{
    const char *text = name ? getenv(name) : NULL;
    *number = missing;
    if (!text) return 0;
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end || errno || value > INT32_MAX)
        return error_set(error, STATUS_UNAVAILABLE, "the launcher's variable %s=%s is not a number", name, text);
    *number = (uint32_t)value;
    return 0;
}

static const struct launcher *find_launcher(void)
{
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++)
        if (getenv(launchers[i].ranks)) return &launchers[i];
    return NULL;
}

int place_find(struct place *place, struct error *error)
{
    *place = (struct place){.ranks = 1, .local_ranks = 1, .one_host = true};
    const struct launcher *launcher = find_launcher();
    if (!launcher) {
        if (getenv("PMIX_RANK"))
            return error_set(
                error, STATUS_UNAVAILABLE,
                "the launcher says PMIX_RANK=%s but not how many ranks there are: use mpirun or srun --mpi=pmix",
                getenv("PMIX_RANK"));
        return 0;
    }
    place->launched = true;
    uint32_t hosts;
    int status;
    if ((status = read_number(launcher->rank, 0, &place->rank, error)) ||
        (status = read_number(launcher->ranks, 1, &place->ranks, error)) ||
        (status = read_number(launcher->local_rank, place->rank, &place->local_rank, error)) ||
        (status = read_number(launcher->local_ranks, 0, &place->local_ranks, error)) ||
        (status = read_number(launcher->hosts, 0, &hosts, error)))
        return status;
    if (place->rank >= place->ranks)
        return error_set(error, STATUS_UNAVAILABLE, "the launcher says rank %u of %u ranks (%s, %s)", place->rank,
                         place->ranks, launcher->rank, launcher->ranks);
    place->one_host = place->ranks == 1 || place->local_ranks == place->ranks || hosts == 1;
    if (place->one_host) place->local_ranks = place->ranks;
    return 0;
}

void place_unbind(void)
{
    cpu_set_t all;
    memset(&all, 0xff, sizeof all);
    sched_setaffinity(0, sizeof all, &all); /* the kernel leaves what the cpuset allows */
}

uint32_t place_allowed_cores(void)
{
    cpu_set_t bound, allowed;
    if (sched_getaffinity(0, sizeof bound, &bound)) return 1;
    place_unbind();
    int cores = sched_getaffinity(0, sizeof allowed, &allowed) ? 1 : CPU_COUNT(&allowed);
    sched_setaffinity(0, sizeof bound, &bound);
    return (uint32_t)cores;
}

bool place_has_terminal(const struct place *place)
{
    if (!place->launched) return isatty(STDOUT_FILENO);
    /* Open MPI gives each rank a terminal of its own and passes on what comes out. */
    char path[64], target[64];
    snprintf(path, sizeof path, "/proc/%d/fd/1", (int)getppid());
    ssize_t length = readlink(path, target, sizeof target - 1);
    target[length > 0 ? length : 0] = '\0';
    return !strncmp(target, "/dev/pts/", 9) || !strncmp(target, "/dev/tty", 8);
}

void place_tune_transport(const struct place *place)
{
    if (place->local_ranks > place_allowed_cores()) setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
}

/* PMIX_NAMESPACE is made of mpirun's process id and the host's name, which jobs in two containers may share; the port
 * its server listens on is one job's. */
bool place_shared_memory_path(const struct place *place, char *path, size_t size)
{
    const char *space = getenv("PMIX_NAMESPACE"), *server = getenv("PMIX_SERVER_URI2");
    const char *port = server ? strrchr(server, ':') : NULL;
    if (!place->launched || place->ranks == 1 || !place->one_host || !space || strchr(space, '/') || !port ||
        strchr(port, '/') || getenv("OMPI_MCA_btl_vader_backing_directory") || access("/dev/shm", W_OK | X_OK))
        return false;
    int length = snprintf(path, size, "/dev/shm/gaccd-%u-%s-%s", (unsigned)getuid(), space, port + 1);
    return length > 0 && (size_t)length < size;
}

/* A job that is refused ends the waiting by the launcher's signal; a launcher that died as soon as it had started us
 * has had none for us, nor is it watched. */
static bool wait_for_directory(const char *path)
{
    const struct timespec millisecond = {.tv_nsec = 1000000};
    struct stat facts;
    for (int i = 0; i < 10000 && !place_launcher_is_gone(); i++) {
        if (!lstat(path, &facts)) return S_ISDIR(facts.st_mode) && facts.st_uid == getuid();
        nanosleep(&millisecond, NULL);
    }
    return false;
}

void place_shared_memory_use(const struct place *place, const char *path)
{
    if (place->rank == 0 && mkdir(path, 0700) && errno != EEXIST) return;
    if (wait_for_directory(path)) setenv("OMPI_MCA_btl_vader_backing_directory", path, 1);
}

bool place_session_directory(char *path, size_t size, pid_t *owner)
{
    /* TOP/pid.N on the host of mpirun, whose process id is N; elsewhere it belongs to a daemon that cleans up itself.
     */
    const char *text = getenv("OMPI_MCA_orte_jobfam_session_dir");
    const char *name = text ? strrchr(text, '/') : NULL;
    int pid;
    if (!name || sscanf(name, "/pid.%d", &pid) != 1 || pid <= 1) return false;
    *owner = pid;
    int length = snprintf(path, size, "%s", text);
    return length > 0 && (size_t)length < size;
}

pid_t place_launcher(void)
{
    char path[PATH_MAX];
    pid_t owner;
    return place_session_directory(path, sizeof path, &owner) && owner == getppid() ? owner : 0;
}

bool place_launcher_is_gone(void)
{
    char path[PATH_MAX];
    pid_t owner;
    return place_session_directory(path, sizeof path, &owner) && place_is_gone(owner);
}

/* The rank of a process that `launcher` has started and that has not ended, by this variable; false: it is none. */
static bool is_rank_of(pid_t launcher, const char *name, const char *process, uint32_t *rank)
{
    const size_t length = strlen(name);
    char path[64], *variable = NULL;
    size_t room = 0;
    int parent = 0;
    snprintf(path, sizeof path, "/proc/%.20s/stat", process);
    FILE *file = fopen(path, "re");
    if (!file) return false;
    const bool is_child =
        getdelim(&variable, &room, ')', file) > 0 && fscanf(file, " %*c %d", &parent) == 1 && parent == launcher;
    fclose(file);
    snprintf(path, sizeof path, "/proc/%.20s/environ", process);
    file = is_child ? fopen(path, "re") : NULL;
    bool found = false;
    while (file && !found && getdelim(&variable, &room, 0, file) > 0)
        found = !strncmp(variable, name, length) && sscanf(variable + length, "=%" SCNu32, rank) == 1;
    if (file) fclose(file);
    free(variable);
    return found;
}

/* Process ids by rank, [ranks], of those that this launcher has started on this host; 0: there is none. free() it.
 * NULL: not known, or out of memory. */
static pid_t *find_processes(const struct place *place, pid_t launcher)
{
    const struct launcher *by = find_launcher();
    uint32_t rank;
    pid_t *processes = by ? calloc(place->ranks, sizeof *processes) : NULL;
    DIR *all = processes ? opendir("/proc") : NULL;
    for (const struct dirent *entry; all && (entry = readdir(all));)
        if (isdigit((unsigned char)entry->d_name[0]) && is_rank_of(launcher, by->rank, entry->d_name, &rank) &&
            rank < place->ranks)
            processes[rank] = (pid_t)atoi(entry->d_name);
    if (all) closedir(all);
    return processes;
}

bool place_lost_rank(pid_t launcher, uint32_t *lost)
{
    struct place place;
    pid_t *processes = place_find(&place, NULL) || !place.one_host ? NULL : find_processes(&place, launcher);
    for (*lost = 0; processes && *lost < place.ranks && processes[*lost];) ++*lost;
    const bool found = processes && *lost < place.ranks;
    free(processes);
    return found;
}

bool place_is_gone(pid_t process)
{
    int fd = pidfd_open(process, 0);
    if (fd < 0) return errno == ESRCH;
    struct pollfd end = {.fd = fd, .events = POLLIN}; /* readable once it has ended */
    bool gone = poll(&end, 1, 0) == 1;
    close(fd);
    return gone;
}
