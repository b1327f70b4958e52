/*
 * The GPU backend on its device: opening it, memory, recorded work, and the module's table.
 */
#include "kernels/cuda/cuda.h"

#include <nvtx3/nvToolsExt.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/module.h"

/* --- errors ------------------------------------------------------------------------------------------------------- */

static struct cuda *cuda_of(struct kernels *kernels)
{
    return (struct cuda *)kernels;
}

struct cuda *cuda_enter(struct kernels *kernels)
{
    struct cuda *cuda = cuda_of(kernels);
    cuda_note(cuda, cudaSetDevice(cuda->device), "cudaSetDevice");
    return cuda;
}

void cuda_fail(struct cuda *cuda, const char *format, ...)
{
    if (cuda->failure[0]) return;
    char text[CUDA_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    snprintf(cuda->failure, sizeof cuda->failure, "GPU %d: %s", cuda->device, text);
}

bool cuda_note(struct cuda *cuda, cudaError_t result, const char *call)
{
    if (result == cudaSuccess) return true;
    cuda_fail(cuda, "%s: %s (%s)", call, cudaGetErrorString(result), cudaGetErrorName(result));
    return false;
}

/* NULL, or what has failed so far. */
static const char *failure_of(const struct cuda *cuda)
{
    return cuda->failure[0] ? cuda->failure : NULL;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static void *cuda_allocate(struct kernels *kernels, size_t bytes)
{
    struct cuda *cuda = cuda_enter(kernels);
    void *memory = NULL;
    const size_t size = bytes ? bytes : 1;
    if (cudaMalloc(&memory, size) != cudaSuccess) {
        cudaGetLastError(); /* it is the caller's to tell */
        return NULL;
    }
    cuda_note(cuda, cudaMemsetAsync(memory, 0, size, cuda->stream), "allocate");
    return memory;
}

static void cuda_release(struct kernels *kernels, void *memory)
{
    if (memory) cuda_note(cuda_enter(kernels), cudaFree(memory), "release");
}

static void cuda_clear(struct kernels *kernels, void *memory, size_t bytes)
{
    struct cuda *cuda = cuda_enter(kernels);
    if (bytes) cuda_note(cuda, cudaMemsetAsync(memory, 0, bytes, cuda->stream), "clear");
}

static void cuda_copy(struct kernels *kernels, void *to, const void *from, size_t bytes)
{
    struct cuda *cuda = cuda_enter(kernels);
    if (bytes && to != from)
        cuda_note(cuda, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda->stream), "copy");
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

/* For the event, or, where it is NULL, for all that was asked for. What waits for a peer that is gone does not end by
 * itself: whoever watches is asked again and again. */
static void wait_for(struct cuda *cuda, cudaEvent_t event, const char *what)
{
    cudaError_t state;
    if (!cuda->watch.check) {
        cuda_note(cuda, event ? cudaEventSynchronize(event) : cudaStreamSynchronize(cuda->stream), what);
        return;
    }
    while ((state = event ? cudaEventQuery(event) : cudaStreamQuery(cuda->stream)) == cudaErrorNotReady) {
        char why[CUDA_TEXT];
        if (!failure_of(cuda) && !cuda->watch.check(cuda->watch.context, why)) cuda_fail(cuda, "%s", why);
        sched_yield();
    }
    cuda_note(cuda, state, what);
}

/* Goes on to the ring's next part, once the copies out of it have run. */
static void next_part(struct cuda *cuda)
{
    struct cuda_upload *u = &cuda->upload;
    cuda_note(cuda, cudaEventRecord(u->copied[u->part], cuda->stream), "upload");
    u->part = (u->part + 1) % CUDA_UPLOAD_PARTS;
    u->used = 0;
    wait_for(cuda, u->copied[u->part], "upload");
}

static void cuda_upload(struct kernels *kernels, void *to, const void *from, size_t bytes)
{
    const size_t alignment = 256; /* of pieces within a part */
    struct cuda *cuda = cuda_enter(kernels);
    struct cuda_upload *u = &cuda->upload;
    for (size_t done = 0, count; done < bytes; done += count) {
        if (u->used == CUDA_UPLOAD_PART_BYTES) next_part(cuda);
        count = bytes - done < CUDA_UPLOAD_PART_BYTES - u->used ? bytes - done : CUDA_UPLOAD_PART_BYTES - u->used;
        char *staged = u->memory + u->part * CUDA_UPLOAD_PART_BYTES + u->used;
        memcpy(staged, (const char *)from + done, count);
        cuda_note(cuda, cudaMemcpyAsync((char *)to + done, staged, count, cudaMemcpyHostToDevice, cuda->stream),
                  "upload");
        u->used += (count + alignment - 1) / alignment * alignment;
    }
}

static const char *cuda_wait(struct kernels *kernels)
{
    struct cuda *cuda = cuda_enter(kernels);
    wait_for(cuda, NULL, "the device's work");
    return failure_of(cuda);
}

static const char *cuda_download(struct kernels *kernels, void *to, const void *from, size_t bytes)
{
    struct cuda *cuda = cuda_enter(kernels);
    if (bytes) cuda_note(cuda, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, cuda->stream), "download");
    return cuda_wait(kernels);
}

static bool cuda_memory_left(struct kernels *kernels, uint64_t *left, uint64_t *all)
{
    size_t free_bytes, total;
    if (!cuda_note(cuda_enter(kernels), cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo")) return false;
    *left = free_bytes;
    *all = total;
    return true;
}

/* --- recorded work -------------------------------------------------------------------------------------------------
 */

struct recording {
    cudaGraphExec_t graph;
};

static void cuda_record(struct kernels *kernels)
{
    struct cuda *cuda = cuda_enter(kernels);
    cuda->failed_before = failure_of(cuda);
    cuda_note(cuda, cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal), "record");
}

/* What failed between record and here is no failure of the device: the caller runs the work unrecorded. */
static struct recording *cuda_recorded(struct kernels *kernels)
{
    struct cuda *cuda = cuda_enter(kernels);
    cudaGraph_t graph = NULL;
    struct recording *recording = malloc(sizeof *recording);
    const bool whole = cuda->failed_before || !failure_of(cuda);
    const bool ended = cudaStreamEndCapture(cuda->stream, &graph) == cudaSuccess && whole;
    const bool made = ended && recording && cudaGraphInstantiate(&recording->graph, graph, 0) == cudaSuccess;
    if (graph) cudaGraphDestroy(graph);
    if (made) return recording;
    cudaGetLastError();
    if (!whole) cuda->failure[0] = '\0';
    free(recording);
    return NULL;
}

static void cuda_replay(struct kernels *kernels, struct recording *recording)
{
    struct cuda *cuda = cuda_enter(kernels);
    cuda_note(cuda, cudaGraphLaunch(recording->graph, cuda->stream), "replay");
}

static void cuda_recording_close(struct kernels *kernels, struct recording *recording)
{
    if (!recording) return;
    cuda_note(cuda_enter(kernels), cudaGraphExecDestroy(recording->graph), "recording_close");
    free(recording);
}

/* --- ranges ------------------------------------------------------------------------------------------------------- */

static void cuda_range_end(struct kernels *kernels)
{
    struct cuda *cuda = cuda_of(kernels);
    if (cuda->range_open) nvtxRangePop();
    cuda->range_open = false;
}

static void cuda_range_begin(struct kernels *kernels, const char *name)
{
    cuda_range_end(kernels);
    nvtxRangePushA(name);
    cuda_of(kernels)->range_open = true;
}

/* --- open and close ------------------------------------------------------------------------------------------------
 */

static void cuda_close(struct kernels *kernels)
{
    struct cuda *cuda = cuda_enter(kernels);
    cuda_range_end(kernels);
    if (cuda->stream) cudaStreamSynchronize(cuda->stream);
    cuda_products_close(cuda);
    for (size_t i = 0; i < CUDA_UPLOAD_PARTS; i++)
        if (cuda->upload.copied[i]) cudaEventDestroy(cuda->upload.copied[i]);
    cudaFreeHost(cuda->upload.memory);
    cudaFree(cuda->workspace);
    cudaFree(cuda->scratch);
    if (cuda->stream) cudaStreamDestroy(cuda->stream);
    free(cuda);
}

static const struct kernel_table common_table = {
    .name = "cuda",
    .close = cuda_close,
    .on_host = false,
    .allocate = cuda_allocate,
    .release = cuda_release,
    .clear = cuda_clear,
    .copy = cuda_copy,
    .upload = cuda_upload,
    .download = cuda_download,
    .wait = cuda_wait,
    .memory_left = cuda_memory_left,
    .record = cuda_record,
    .recorded = cuda_recorded,
    .replay = cuda_replay,
    .recording_close = cuda_recording_close,
    .range_begin = cuda_range_begin,
    .range_end = cuda_range_end,
};

static bool take_resources(struct cuda *cuda)
{
    bool ok = cuda_note(cuda, cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking), "a stream") &&
              cuda_note(cuda, cudaMalloc(&cuda->scratch, CUDA_SCRATCH_BYTES), "scratch memory") &&
              cuda_note(cuda, cudaMalloc(&cuda->workspace, CUDA_WORKSPACE_BYTES), "workspace memory") &&
              cuda_note(cuda,
                        cudaHostAlloc((void **)&cuda->upload.memory, CUDA_UPLOAD_PARTS * CUDA_UPLOAD_PART_BYTES,
                                      cudaHostAllocDefault),
                        "pinned memory");
    for (size_t i = 0; ok && i < CUDA_UPLOAD_PARTS; i++)
        ok = cuda_note(cuda, cudaEventCreateWithFlags(&cuda->upload.copied[i], cudaEventDisableTiming), "an event");
    return ok;
}

static bool open_device(struct cuda *cuda, struct kernels_failure *why)
{
    if (cuda_note(cuda, cudaSetDevice(cuda->device), "cudaSetDevice") &&
        cuda_note(cuda, cudaDeviceGetAttribute(&cuda->multiprocessors, cudaDevAttrMultiProcessorCount, cuda->device),
                  "cudaDeviceGetAttribute") &&
        take_resources(cuda)) {
        cuda_fill_kernels(cuda);
        if (!cuda_products_open(cuda, why)) return false;
        /* a first kernel: not every device runs the code that is in the module */
        cuda_clear(&cuda->head, cuda->scratch, sizeof(double));
        cuda->table.add(&cuda->head, cuda->scratch, cuda->scratch, 1, cuda->scratch, 1);
        cuda_note(cuda, cudaStreamSynchronize(cuda->stream), "a first kernel");
    }
    if (!failure_of(cuda)) return true;
    why->unavailable = true; /* so far it is the device that is not to be had */
    snprintf(why->text, sizeof why->text, "%s", cuda->failure);
    return false;
}

struct kernels *cuda_kernels_open(const struct kernels_options *options, int device, struct kernels_failure *why)
{
    struct cuda *cuda = calloc(1, sizeof *cuda);
    if (!cuda) {
        *why = (struct kernels_failure){.text = "out of memory"};
        return NULL;
    }
    cuda->table = common_table;
    cuda->head = (struct kernels){&cuda->table, options->compute_type, options->threads};
    cuda->device = device;
    if (open_device(cuda, why)) return &cuda->head;
    cuda_close(&cuda->head);
    return NULL;
}

/* --- devices ------------------------------------------------------------------------------------------------------ */

static bool unavailable(struct kernels_failure *why, cudaError_t result)
{
    why->unavailable = true;
    snprintf(why->text, sizeof why->text, "no GPU: %s (%s)", cudaGetErrorString(result), cudaGetErrorName(result));
    return false;
}

bool cuda_device_count(int *count, struct kernels_failure *why)
{
    const cudaError_t result = cudaGetDeviceCount(count);
    if (result != cudaSuccess) return unavailable(why, result);
    return *count > 0 || unavailable(why, cudaErrorNoDevice);
}

bool cuda_device_describe(int device, struct cuda_device_info *info, struct kernels_failure *why)
{
    struct cudaDeviceProp properties;
    const cudaError_t result = cudaGetDeviceProperties(&properties, device);
    if (result != cudaSuccess) return unavailable(why, result);
    *info = (struct cuda_device_info){
        .capability = 10 * properties.major + properties.minor,
        .multiprocessors = properties.multiProcessorCount,
        .memory = properties.totalGlobalMem,
    };
    snprintf(info->name, sizeof info->name, "%s", properties.name);
    memcpy(info->uuid, properties.uuid.bytes, sizeof info->uuid);
    return true;
}
