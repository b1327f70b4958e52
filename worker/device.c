#include "worker/device.h"

#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cuda/module.h"

struct gpu {
    struct device device; /* first */
    void *module;         /* dlopen's */
    const struct cuda_module *table;
    int number;
    struct cuda_device_info info;
};

/* Kernels of a module were opened in this process: nothing of CUDA's is unloaded before it ends. */
static atomic_bool has_run;

/* --- the module ---------------------------------------------------------------------------------------------- */

/* Where the module may lie, the second way by an installation. */
static const char *const places[] = {"", "../lib/gaccd/"};
enum { PLACES = sizeof places / sizeof *places };

/* The first place with such a file; -69 naming all when there is none. */
static int find_module(char *path, struct error *error)
{
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0) return error_set(error, STATUS_UNAVAILABLE, "the program's own file is not known");
    program[length] = '\0';
    const char *folder = dirname(program);
    for (size_t i = 0; i < PLACES; i++)
        if (snprintf(path, PATH_MAX, "%s/%s" CUDA_MODULE_FILE, folder, places[i]) < PATH_MAX && !access(path, F_OK))
            return 0;
    return error_set(error, STATUS_UNAVAILABLE, "there is no " CUDA_MODULE_FILE " in %s or its %s", folder, places[1]);
}

static int open_module(struct gpu *gpu, struct error *error)
{
    char path[PATH_MAX];
    int result = find_module(path, error);
    if (result) return result;
    gpu->module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!gpu->module) return error_set(error, STATUS_UNAVAILABLE, "%s", dlerror());
    gpu->table = dlsym(gpu->module, CUDA_MODULE_SYMBOL);
    if (!gpu->table) return error_set(error, STATUS_UNAVAILABLE, "%s is no module of gaccd", path);
    if (gpu->table->abi != CUDA_MODULE_ABI)
        return error_set(error, STATUS_UNAVAILABLE, "%s is of another gaccd: its interface is %d, not %d", path,
                         gpu->table->abi, CUDA_MODULE_ABI);
    return 0;
}

/* --- a GPU --------------------------------------------------------------------------------------------------- */

static struct kernels *gpu_open_kernels(const struct device *device, const struct kernels_options *options,
                                        struct error *error)
{
    const struct gpu *gpu = (const struct gpu *)device;
    struct kernels_failure why = {0};
    struct kernels *kernels = gpu->table->kernels_open(options, gpu->number, &why);
    if (kernels) atomic_store(&has_run, true);
    if (!kernels) error_set(error, why.unavailable ? STATUS_UNAVAILABLE : STATUS_INTERNAL, "%s", why.text);
    return kernels;
}

/* One rank alone needs no transport. */
static int gpu_open_comm(const struct device *device, struct comm **out, struct comm *host, struct kernels *kernels,
                         uint64_t parameters, struct error *error)
{
    const struct gpu *gpu = (const struct gpu *)device;
    if (host->ranks == 1) return comm_open_staged(out, host, kernels, parameters, error);
    return gpu->table->comm_open(out, host, kernels, parameters, error);
}

static void gpu_close(struct device *device)
{
    struct gpu *gpu = (struct gpu *)device;
    if (gpu->module && !atomic_load(&has_run)) dlclose(gpu->module);
    free(gpu);
}

static int open_gpu(struct gpu *gpu, const struct comm *comm, struct error *error)
{
    int count;
    struct kernels_failure why = {0};
    int result = open_module(gpu, error);
    if (result) return result;
    if (!gpu->table->device_count(&count, &why)) return error_set(error, STATUS_UNAVAILABLE, "%s", why.text);
    gpu->number = (int)(comm->local_rank % (uint32_t)count);
    if (!gpu->table->device_info(gpu->number, &gpu->info, &why))
        return error_set(error, STATUS_UNAVAILABLE, "%s", why.text);
    struct device *device = &gpu->device;
    device->open_kernels = gpu_open_kernels;
    device->open_comm = gpu_open_comm;
    snprintf(device->model, sizeof device->model, "%.*s", (int)sizeof device->model - 1, gpu->info.name);
    snprintf(device->name, sizeof device->name, "cuda %d, %s", gpu->number, device->model);
    return 0;
}

/* What a machine without NVIDIA's driver, or a container without its devices, does not have: there the module, which
 * brings hundreds of megabytes of libraries along, is not even opened unless it is asked for by name. */
static bool has_driver(void)
{
    static const char *const nodes[] = {"/dev/nvidiactl", "/dev/dxg", "/dev/nvhost-gpu"};
    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++)
        if (!access(nodes[i], F_OK)) return true;
    return false;
}

/* --- all ranks ----------------------------------------------------------------------------------------------- */

/* What a rank tells the others. */
struct word {
    struct error failure; /* status 0: it has a GPU */
    unsigned char uuid[sizeof((struct cuda_device_info *)0)->uuid];
};

static bool same_gpu(const struct word *a, const struct word *b)
{
    return !memcmp(a->uuid, b->uuid, sizeof a->uuid);
}

/* words: [ranks], the own one filled in. */
static int exchange(struct comm *comm, struct word *words, struct error *error)
{
    int result = 0;
    for (uint32_t rank = 0; rank < comm->ranks && !result; rank++)
        result = comm_broadcast(comm, &words[rank], sizeof *words, rank, error);
    return result;
}

static void warn_of_sharing(struct device *device, const struct word *words, uint32_t ranks)
{
    for (uint32_t b = 1; b < ranks; b++)
        for (uint32_t a = 0; a < b; a++)
            if (same_gpu(&words[a], &words[b])) {
                snprintf(device->warning, sizeof device->warning,
                         "warning: ranks %u and %u share a GPU (%s): each is slower for it, and all collectives go by "
                         "way of the host",
                         a, b, device->model);
                device->open_comm = NULL; /* NCCL refuses them */
                return;
            }
}

/* The first rank (in rank order) without a GPU, or `ranks`. */
static uint32_t first_without(const struct word *words, uint32_t ranks)
{
    uint32_t rank = 0;
    while (rank < ranks && words[rank].failure.status == STATUS_DONE) rank++;
    return rank;
}

static int agree(struct gpu *gpu, enum device_wanted wanted, struct comm *comm, struct word *words, bool *all,
                 struct error *error)
{
    struct word *own = &words[comm->rank];
    if (wanted == DEVICE_AUTO && !has_driver())
        error_set(&own->failure, STATUS_UNAVAILABLE, "there is no driver of a GPU");
    else
        open_gpu(gpu, comm, &own->failure);
    memcpy(own->uuid, gpu->info.uuid, sizeof own->uuid);
    int result = exchange(comm, words, error);
    if (result) return result;
    uint32_t without = first_without(words, comm->ranks);
    *all = without == comm->ranks;
    if (*all) warn_of_sharing(&gpu->device, words, comm->ranks);
    if (*all || wanted == DEVICE_AUTO) return 0;
    const struct error *failure = &words[without].failure;
    return error_set(error, failure->status, "rank %u: --device cuda: %s", without, failure->text);
}

enum device_wanted device_settle(enum device_wanted wanted)
{
    return wanted == DEVICE_AUTO && !has_driver() ? DEVICE_CPU : wanted;
}

int device_open(struct device **out, enum device_wanted wanted, struct comm *comm, struct error *error)
{
    *out = NULL;
    if (wanted == DEVICE_CPU) return 0;
    bool all = false;
    struct comm_counts counts = comm->counts;
    struct gpu *gpu = calloc(1, sizeof *gpu);
    struct word *words = calloc(comm->ranks, sizeof *words);
    int result = gpu && words ? agree(gpu, wanted, comm, words, &all, error)
                              : error_set(error, STATUS_INTERNAL, "out of memory for a device");
    free(words);
    comm->counts = counts; /* none of a step's */
    if (gpu) gpu->device.close = gpu_close;
    if (!result && all)
        *out = &gpu->device;
    else if (gpu)
        gpu_close(&gpu->device);
    return result;
}

void device_close(struct device *device)
{
    if (device && device->close) device->close(device);
}

/* --- what it has to say ---------------------------------------------------------------------------------------- */

static int result_of(const char *failure, struct error *error)
{
    return failure ? error_set(error, STATUS_INTERNAL, "%s", failure) : 0;
}

int device_wait(struct kernels *kernels, struct error *error)
{
    return result_of(kernels->table->wait(kernels), error);
}

int device_download(struct kernels *kernels, void *to, const void *from, size_t bytes, struct error *error)
{
    return result_of(kernels->table->download(kernels, to, from, bytes), error);
}
