#include "worker/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "proto/checksum.h"
#include "worker/device.h"
#include "worker/memory.h"
#include "worker/model_file.h"
#include "worker/safetensors.h"
#include "worker/session_internal.h"

#define BLOCK_BYTES (512u << 10) /* written and summed at a time */
#define FILE_NAME_MAX 64
#define MOMENT_NAME_MAX 96
#define WRITER_NICE 10 /* a tenth of the weight that 0 has */
#define PAUSES 39      /* … and a fortieth of its time */

enum { MASTER, FIRST_MOMENT, SECOND_MOMENT, COPIES };

/* What this thread and the rest of its process have had of the cores until some time; all in seconds. */
struct cores {
    double at, own, others;
};

struct checkpoint {
    struct session *session;
    void *copies[COPIES]; /* [kept], [m], [v], in host memory; NULL: no optimizer has such a moment */
    bool is_writing;
    bool is_beside; /* training has need of the cores, and goes on meanwhile */
    bool is_alone;  /* … but did not when this thread last looked */
    bool has_paused;
    struct cores seen;
    pthread_t thread;

    /* What is being written. */
    char directory[PATH_MAX];
    uint64_t optimizer_steps;
    double copy_seconds;
    struct checksum *checksum;
    Gacc__V1__WrittenRange *ranges; /* [range_count], with their pointers behind */
    size_t range_count, range_room;
};

static uint64_t elements_of(const struct session *session, int copy)
{
    if (copy == MASTER) return session->kept;
    return copy == FIRST_MOMENT ? session->optimizer.count.m : session->optimizer.count.v;
}

/* ---- what was written ---- */

static int note_range(struct checkpoint *checkpoint, const char *file, uint64_t begin, uint64_t end,
                      struct error *error)
{
    if (checkpoint->range_count == checkpoint->range_room) {
        const size_t room = 2 * checkpoint->range_room + 8;
        Gacc__V1__WrittenRange *longer = realloc(checkpoint->ranges, room * sizeof *longer);
        if (!longer) return error_set(error, STATUS_IO, "out of memory for a list of what was written");
        checkpoint->ranges = longer;
        checkpoint->range_room = room;
    }
    Gacc__V1__WrittenRange *range = &checkpoint->ranges[checkpoint->range_count];
    gacc__v1__written_range__init(range);
    range->file = strdup(file);
    range->begin = begin;
    range->end = end;
    range->checksum.data = malloc(CHECKSUM_BYTES);
    range->checksum.len = CHECKSUM_BYTES;
    checkpoint->range_count++;
    if (!range->file || !range->checksum.data)
        return error_set(error, STATUS_IO, "out of memory for a list of what was written");
    checksum_take(checkpoint->checksum, range->checksum.data);
    return 0;
}

static void forget_ranges(struct checkpoint *checkpoint)
{
    for (size_t i = 0; i < checkpoint->range_count; i++) {
        free(checkpoint->ranges[i].file);
        free(checkpoint->ranges[i].checksum.data);
    }
    checkpoint->range_count = 0;
}

/* ---- writing ---- */

/* A file of the checkpoint while this rank writes its ranges. */
struct output {
    struct checkpoint *checkpoint;
    const char *name;
    char path[PATH_MAX + FILE_NAME_MAX];
    int fd;
};

static int fail_at(const struct output *output, int number, struct error *error)
{
    return error_set_errno(error, STATUS_IO, number, "%s", output->path);
}

/* Every rank gives the shared file its size: to the one that comes later it changes nothing. */
static int open_output(struct output *output, struct checkpoint *checkpoint, const char *name, uint64_t bytes,
                       struct error *error)
{
    *output = (struct output){.checkpoint = checkpoint, .name = name};
    snprintf(output->path, sizeof output->path, "%s/%s", checkpoint->directory, name);
    output->fd = open(output->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (output->fd < 0) return fail_at(output, errno, error);
    return ftruncate(output->fd, (off_t)bytes) ? fail_at(output, errno, error) : 0;
}

/* bytes NULL: zeros. */
static int write_block(const struct output *output, const char *bytes, size_t count, uint64_t offset,
                       struct error *error)
{
    static const char zeros[BLOCK_BYTES];
    const char *from = bytes ? bytes : zeros;
    checksum_add(output->checkpoint->checksum, from, count);
    while (count > 0) {
        ssize_t done = pwrite(output->fd, from, count, (off_t)offset);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return fail_at(output, done ? errno : ENOSPC, error);
        from += done;
        offset += (uint64_t)done;
        count -= (size_t)done;
    }
    return 0;
}

static struct cores look_at_cores(void)
{
    struct cores now = {.at = seconds_now(), .own = seconds_of(CLOCK_THREAD_CPUTIME_ID)};
    now.others = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - now.own;
    return now;
}

/* Whether training waits, for this checkpoint perhaps. A pause leaves it the core, and tells; between blocks that were
 * written one behind the other it may have wanted the core and not got it, so that only its having had some tells. */
static void look_around(struct checkpoint *checkpoint)
{
    const struct cores was = checkpoint->seen, now = checkpoint->seen = look_at_cores();
    const double own = now.own - was.own, others = now.others - was.others;
    if (checkpoint->has_paused)
        checkpoint->is_alone = others < (now.at - was.at - own) / 2;
    else
        checkpoint->is_alone &= others < own;
}

/* A scheduler looks at its weights a few times in a step of some milliseconds, and a writer that never waits has whole
 * stretches between. So it waits by itself, behind what it had of the core since it did so last. */
static void give_way(struct checkpoint *checkpoint)
{
    if (!checkpoint->is_beside) return;
    const double began = checkpoint->seen.own;
    look_around(checkpoint);
    checkpoint->has_paused = !checkpoint->is_alone;
    if (checkpoint->is_alone) return;
    const double pause = PAUSES * (checkpoint->seen.own - began);
    const struct timespec length = {(time_t)pause, (long)(1e9 * fmod(pause, 1))};
    nanosleep(&length, NULL);
}

/* What is written begins its way to the disk, else fsync would spend all that work at once. */
static void start_sending(const struct output *output, size_t count, uint64_t offset)
{
    if (output->checkpoint->is_beside)
        (void)sync_file_range(output->fd, (off_t)offset, (off_t)count, SYNC_FILE_RANGE_WRITE);
}

/* One range of the file, which is noted. bytes NULL: zeros. */
static int write_range(const struct output *output, const void *bytes, uint64_t count, uint64_t offset,
                       struct error *error)
{
    int result = 0;
    if (count == 0) return 0;
    for (uint64_t at = 0; at < count && !result; at += BLOCK_BYTES) {
        const size_t part = count - at < BLOCK_BYTES ? (size_t)(count - at) : BLOCK_BYTES;
        result = write_block(output, bytes ? (const char *)bytes + at : NULL, part, offset + at, error);
        start_sending(output, part, offset + at);
        give_way(output->checkpoint);
    }
    return result ? result : note_range(output->checkpoint, output->name, offset, offset + count, error);
}

/* The first error of all, and of making it durable. */
static int close_output(const struct output *output, int result, struct error *error)
{
    if (output->fd < 0) return result;
    if (!result && fsync(output->fd)) result = fail_at(output, errno, error);
    if (close(output->fd) && !result) result = fail_at(output, errno, error);
    return result;
}

/* NaN and infinity never become the newest checkpoint. */
static int check_finite(const struct session *session, const void *values, const struct piece *own, struct error *error)
{
    const uint64_t count = own->end - own->begin;
    uint64_t i = 0;
    if (session->wide_type == DTYPE_FP64)
        while (i < count && isfinite(((const double *)values)[i])) i++;
    else
        while (i < count && isfinite(((const float *)values)[i])) i++;
    if (i == count) return 0;
    const struct tensor_table *table = &session->model->table;
    size_t tensor = 0;
    while (own->begin + i >= table->tensors[tensor].begin + table->tensors[tensor].size) tensor++;
    return error_set(error, STATUS_NUMERICS, "tensor %s is not finite: such parameters are not kept",
                     table->tensors[tensor].name);
}

static int write_model(struct checkpoint *checkpoint, struct error *error)
{
    const struct session *session = checkpoint->session;
    const size_t size = dtype_size(session->wide_type);
    const bool first = session->comm->rank == 0;
    struct model_file file;
    struct output output = {.fd = -1};
    int result = model_file_lay_out(&file, session->model, MODEL_STATE, session->wide_type, error);
    if (!result) result = open_output(&output, checkpoint, CHECKPOINT_MODEL, file.bytes, error);
    if (!result && first) result = write_range(&output, file.header, file.header_bytes, 0, error);
    for (size_t i = 0; i < session->piece_count && !result; i++) {
        const struct piece *own = &session->pieces[i];
        const void *values = element(checkpoint->copies[MASTER], own->at, session->wide_type);
        result = check_finite(session, values, own, error);
        if (!result)
            result = write_range(&output, values, (own->end - own->begin) * size, file.header_bytes + own->begin * size,
                                 error);
    }
    if (!result && first) result = write_range(&output, NULL, file.bytes - file.zeros_at, file.zeros_at, error);
    model_file_close(&file);
    return close_output(&output, result, error);
}

/* What a tensor of the file borrows. */
struct moment_range {
    char name[MOMENT_NAME_MAX];
    uint64_t elements;
};

/* One tensor for each trained piece of this rank, of each moment. */
static size_t list_moments(const struct checkpoint *checkpoint, struct safetensors_tensor *tensors,
                           struct moment_range *ranges)
{
    const struct session *session = checkpoint->session;
    size_t count = 0;
    for (int moment = FIRST_MOMENT; moment < COPIES; moment++)
        for (size_t i = 0; i < session->piece_count && checkpoint->copies[moment]; i++) {
            const struct piece *own = &session->pieces[i];
            if ((moment == FIRST_MOMENT ? own->moments.m : own->moments.v) == NO_MOMENT) continue;
            struct moment_range *range = &ranges[count];
            const int length = snprintf(range->name, sizeof range->name, "%s.%" PRIu64 "-%" PRIu64,
                                        moment == FIRST_MOMENT ? "m" : "v", own->begin, own->end);
            if (own->since > 0)
                snprintf(range->name + length, sizeof range->name - (size_t)length, ".since.%" PRIu64, own->since);
            range->elements = own->end - own->begin;
            tensors[count] = (struct safetensors_tensor){.name = range->name,
                                                         .type = safetensors_type_of(session->wide_type),
                                                         .dimensions = 1,
                                                         .shape = &range->elements};
            count++;
        }
    return count;
}

/* The moments' copies are one behind the other in the order of list_moments, each without a gap. */
static int write_moments(const struct output *output, size_t header_bytes, struct error *error)
{
    const struct checkpoint *checkpoint = output->checkpoint;
    uint64_t at = header_bytes;
    int result = 0;
    for (int moment = FIRST_MOMENT; moment < COPIES && !result; moment++) {
        if (!checkpoint->copies[moment]) continue;
        const uint64_t bytes = elements_of(checkpoint->session, moment) * dtype_size(checkpoint->session->wide_type);
        result = write_range(output, checkpoint->copies[moment], bytes, at, error);
        at += bytes;
    }
    return result;
}

static int write_optimizer(struct checkpoint *checkpoint, struct error *error)
{
    const struct session *session = checkpoint->session;
    const size_t most = 2 * session->piece_count;
    if (!checkpoint->copies[FIRST_MOMENT]) return 0;
    char name[FILE_NAME_MAX], *header = NULL;
    snprintf(name, sizeof name, "optimizer-%05" PRIu32 "-of-%05" PRIu32 ".safetensors", session->comm->rank,
             session->comm->ranks);
    struct safetensors_tensor *tensors = calloc(most, sizeof *tensors);
    struct moment_range *ranges = calloc(most, sizeof *ranges);
    struct output output = {.fd = -1};
    size_t header_bytes = 0;
    int result = tensors && ranges ? 0 : error_set(error, STATUS_IO, "out of memory for the moments' names");
    size_t count = result ? 0 : list_moments(checkpoint, tensors, ranges);
    if (!result) result = safetensors_header(tensors, count, &header, &header_bytes, error);
    uint64_t bytes = header_bytes;
    for (size_t i = 0; i < count && !result; i++) bytes += tensors[i].bytes;
    if (!result) result = open_output(&output, checkpoint, name, bytes, error);
    if (!result) result = write_range(&output, header, header_bytes, 0, error);
    if (!result) result = write_moments(&output, header_bytes, error);
    free(header);
    free(tensors);
    free(ranges);
    return close_output(&output, result, error);
}

/* Whoever comes first makes it, and the folder around it. */
static int make_directory(const struct checkpoint *checkpoint, struct error *error)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", checkpoint->directory);
    char *slash = strrchr(path, '/');
    if (slash) *slash = '\0';
    if (slash && mkdir(path, 0777) && errno != EEXIST) return error_set_errno(error, STATUS_IO, errno, "%s", path);
    if (mkdir(checkpoint->directory, 0777) && errno != EEXIST)
        return error_set_errno(error, STATUS_IO, errno, "%s", checkpoint->directory);
    return 0;
}

/* ---- telling ---- */

static int tell(struct checkpoint *checkpoint, const struct error *why, double write_seconds, struct error *error)
{
    Gacc__V1__Saved message = GACC__V1__SAVED__INIT;
    Gacc__V1__Failure failure = GACC__V1__FAILURE__INIT;
    message.optimizer_steps = checkpoint->optimizer_steps;
    message.copy_seconds = checkpoint->copy_seconds;
    message.write_seconds = write_seconds;
    Gacc__V1__WrittenRange **list = calloc(checkpoint->range_count + 1, sizeof *list);
    struct error no_memory;
    if (!list && !why) {
        error_set(&no_memory, STATUS_IO, "out of memory for a list of what was written");
        why = &no_memory;
    }
    if (why) {
        failure.status = (uint32_t)why->status;
        failure.text = (char *)(uintptr_t)why->text;
        message.failure = &failure;
    } else {
        for (size_t i = 0; i < checkpoint->range_count; i++) list[i] = &checkpoint->ranges[i];
        message.n_ranges = checkpoint->range_count;
        message.ranges = list;
    }
    struct control *control = checkpoint->session->control;
    int result = control->saved(control, &message, error);
    free(list);
    return result;
}

/* Beside training, which a core's full share would hold up by all of the writing in one step: less of it spreads it
 * over several. Where training waits, the core is idle and the writer has it whole. */
static void *write_all(void *context)
{
    struct checkpoint *checkpoint = context;
    setpriority(PRIO_PROCESS, (id_t)gettid(), WRITER_NICE); /* this thread's own, on Linux */
    const double began = seconds_now();
    checkpoint->seen = look_at_cores();
    checkpoint->is_alone = checkpoint->has_paused = false;
    struct error why = {0}, unheard; /* a coordinator that is gone ends this rank by other ways */
    checkpoint->checksum = checksum_begin();
    int result = checkpoint->checksum ? 0 : error_set(&why, STATUS_IO, "out of memory for a checksum");
    if (!result) result = make_directory(checkpoint, &why);
    if (!result) result = write_model(checkpoint, &why);
    if (!result) result = write_optimizer(checkpoint, &why);
    checksum_end(checkpoint->checksum);
    tell(checkpoint, result ? &why : NULL, seconds_now() - began, &unheard);
    forget_ranges(checkpoint);
    return NULL;
}

/* ---- the copy ---- */

static int open_checkpoint(struct session *session, struct error *error)
{
    if (session->checkpoint) return 0;
    struct checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
    if (!checkpoint) return error_set(error, STATUS_IO, "out of memory for a checkpoint");
    checkpoint->session = session;
    session->checkpoint = checkpoint;
    return 0;
}

static int copy_state(struct checkpoint *checkpoint, struct error *error)
{
    const struct session *session = checkpoint->session;
    const wide *state[COPIES] = {session->master, session->optimizer.m, session->optimizer.v};
    const size_t size = dtype_size(session->wide_type);
    int result = 0;
    for (int i = 0; i < COPIES && !result; i++) {
        const uint64_t elements = elements_of(session, i);
        if (!state[i]) continue;
        if (!checkpoint->copies[i])
            result = memory_new(&checkpoint->copies[i], elements, size, "a copy of the state", error);
        if (!result)
            result = device_download(session->kernels, checkpoint->copies[i], state[i], elements * size, error);
    }
    return result;
}

static int start_thread(struct checkpoint *checkpoint, struct error *error)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int number = pthread_create(&checkpoint->thread, NULL, write_all, checkpoint);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (number) return error_set_errno(error, STATUS_IO, number, "cannot start a thread to write the checkpoint");
    checkpoint->is_writing = true;
    return 0;
}

int checkpoint_begin(struct session *session, const Gacc__V1__Save *save, struct error *error)
{
    const double began = seconds_now();
    struct error why;
    int result = open_checkpoint(session, &why);
    struct checkpoint unmade = {.session = session}, *checkpoint = result ? &unmade : session->checkpoint;
    checkpoint_wait(session); /* it was told, and so ended */
    checkpoint->optimizer_steps = save->optimizer_steps;
    if (!result && snprintf(checkpoint->directory, sizeof checkpoint->directory, "%s", save->directory) >= PATH_MAX)
        result = error_set(&why, STATUS_IO, "%s: the path is too long", save->directory);
    if (!result) result = copy_state(checkpoint, &why);
    checkpoint->copy_seconds = seconds_now() - began;
    checkpoint->is_beside = !save->wait && session->kernels->table->on_host;
    if (!result) result = start_thread(checkpoint, &why);
    if (result) return tell(checkpoint, &why, 0, error);
    if (save->wait) checkpoint_wait(session);
    return 0;
}

void checkpoint_wait(struct session *session)
{
    struct checkpoint *checkpoint = session->checkpoint;
    if (!checkpoint || !checkpoint->is_writing) return;
    pthread_join(checkpoint->thread, NULL);
    checkpoint->is_writing = false;
}

void checkpoint_forget(struct session *session)
{
    struct checkpoint *checkpoint = session->checkpoint;
    if (!checkpoint) return;
    checkpoint_wait(session);
    session->checkpoint = NULL;
    for (int i = 0; i < COPIES; i++) free(checkpoint->copies[i]);
    free(checkpoint->ranges);
    free(checkpoint);
}
