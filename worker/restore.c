/* A rank's state out of a checkpoint: its ranges, from whichever files hold them. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/checkpoint.h"
#include "worker/device.h"
#include "worker/memory.h"
#include "worker/safetensors.h"
#include "worker/session_internal.h"

#define BLOCK 65536u /* elements read at a time */

/* A moment of this rank while it is gathered. */
struct moment {
    const char *letter; /* what its tensors' names begin with */
    bool second;        /* v */
    uint64_t count;     /* elements of this rank */
    wide *values;       /* [count], the host's; NULL: no optimizer has it */
    bool *stored;       /* [segments]: of which files have something; of both moments the same */
    uint64_t found;     /* elements */
};

static void store(const struct session *session, wide *to, uint64_t first, const double *values, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        if (session->wide_type == DTYPE_FP64)
            ((double *)to)[first + i] = values[i];
        else
            ((float *)to)[first + i] = (float)values[i];
}

/* Canonical elements of `part`, which `tensor` holds from `base` on, to element `at` of the moment. */
static int read_part(const struct session *session, struct safetensors *file, const struct safetensors_tensor *tensor,
                     uint64_t base, struct range part, struct moment *moment, uint64_t at, struct error *error)
{
    double *values = malloc(BLOCK * sizeof *values);
    if (!values) return error_set(error, STATUS_INTERNAL, "out of memory for a checkpoint");
    int result = 0;
    for (uint64_t begin = part.begin; begin < part.end && !result; begin += BLOCK) {
        const uint64_t count = part.end - begin < BLOCK ? part.end - begin : BLOCK;
        result = safetensors_read(file, tensor, begin - base, count, values, error);
        if (!result) store(session, moment->values, at + begin - part.begin, values, count);
        if (!result) moment->found += count;
    }
    free(values);
    return result;
}

/* What is stored belongs to whole tensors, of which this file may hold a part. */
static void note_stored(struct session *session, struct range stored, uint64_t since, bool *is_stored)
{
    for (size_t i = 0; i < session->layout.count; i++) {
        struct segment *segment = &session->layout.segments[i];
        const struct tensor *tensor = &session->model->table.tensors[segment->tensor];
        if (tensor->begin >= stored.end || tensor->begin + tensor->size <= stored.begin) continue;
        segment->since = since;
        is_stored[i] = true;
    }
}

static int read_tensor(struct session *session, struct safetensors *file, const struct safetensors_tensor *tensor,
                       struct moment *moment, struct error *error)
{
    struct range stored;
    uint64_t since = 0;
    const size_t length = strlen(moment->letter);
    if (strncmp(tensor->name, moment->letter, length) ||
        sscanf(tensor->name + length, ".%" SCNu64 "-%" SCNu64 ".since.%" SCNu64, &stored.begin, &stored.end, &since) <
            2 ||
        stored.end < stored.begin || tensor->elements != stored.end - stored.begin)
        return 0;
    int result = 0;
    note_stored(session, stored, since, moment->stored);
    for (size_t i = 0; i < session->piece_count && !result; i++) {
        const struct piece *own = &session->pieces[i];
        const struct range part = range_of_both(stored, (struct range){own->begin, own->end});
        const uint64_t at = moment->second ? own->moments.v : own->moments.m;
        if (at != NO_MOMENT && part.begin < part.end)
            result =
                read_part(session, file, tensor, stored.begin, part, moment, at + (part.begin - own->begin), error);
    }
    return result;
}

static int read_file(struct session *session, const char *path, struct moment *moments, struct error *error)
{
    struct safetensors *file;
    int result = safetensors_open(&file, path, error);
    if (result) return result;
    for (size_t i = 0; i < safetensors_count(file) && !result; i++)
        for (int m = 0; m < 2 && !result; m++)
            if (moments[m].values) result = read_tensor(session, file, safetensors_at(file, i), &moments[m], error);
    safetensors_close(file);
    return result;
}

/* Tensors of which no file has a moment were frozen when they were written: theirs begin now, at zero. Returns what of
 * them this rank has. */
static struct moments_at begin_unfrozen(struct session *session, const bool *stored, uint64_t steps)
{
    struct moments_at begun = {0};
    for (size_t i = 0; i < session->layout.count; i++) {
        struct segment *segment = &session->layout.segments[i];
        const struct tensor *tensor = &session->model->table.tensors[segment->tensor];
        if (stored[i]) continue;
        segment->since = steps;
        for (size_t p = 0; p < session->piece_count; p++) {
            const struct piece *own = &session->pieces[p];
            const struct range part = range_of_both((struct range){own->begin, own->end},
                                                    (struct range){tensor->begin, tensor->begin + tensor->size});
            if (own->frozen || part.begin >= part.end) continue;
            if (own->moments.m != NO_MOMENT) begun.m += part.end - part.begin;
            if (own->moments.v != NO_MOMENT) begun.v += part.end - part.begin;
        }
    }
    return begun;
}

/* Momentum that a job did not have before begins at zero; moments that are needed must all be there. */
static int check_found(const struct session *session, const struct moment *moment, uint64_t begun,
                       const char *directory, struct error *error)
{
    const uint64_t needed = moment->count - begun;
    const bool begins = moment->found == 0 && session->optimizer.count.v == 0; /* sgd */
    if (!moment->values || moment->found == needed || moment->found == moment->count || begins) return 0;
    return error_set(error, STATUS_DATA, "%s: holds %" PRIu64 " of this rank's %" PRIu64 " elements of the moment %s",
                     directory, moment->found, needed, moment->letter);
}

/* Room for a moment on the host; where the backend's memory is the host's, the moment itself. */
static int open_moment(struct session *session, struct moment *moment, bool second, wide *kept, struct error *error)
{
    void *room = kept;
    const struct moments_at *count = &session->optimizer.count;
    *moment = (struct moment){.letter = second ? "v" : "m", .second = second, .count = second ? count->v : count->m};
    if (!kept) return 0;
    int result = session->kernels->table->on_host
                     ? 0
                     : memory_new(&room, moment->count, dtype_size(session->wide_type), "a moment on its way", error);
    moment->values = result ? NULL : room;
    return result;
}

static void close_moment(struct session *session, struct moment *moment, wide *kept, bool is_good)
{
    if (!moment->values) return;
    if (is_good)
        session->kernels->table->upload(session->kernels, kept, moment->values,
                                        moment->count * dtype_size(session->wide_type));
    if (moment->values != kept) free(moment->values);
}

static int restore_moments(struct session *session, const Gacc__V1__Restore *restore, struct error *error)
{
    wide *kept[] = {session->optimizer.m, session->optimizer.v};
    struct moment moments[2];
    char path[PATH_MAX + 128];
    bool *stored = calloc(session->layout.count + 1, sizeof *stored);
    int result = stored ? 0 : error_set(error, STATUS_INTERNAL, "out of memory for a checkpoint");
    for (int m = 0; m < 2; m++) {
        int opened = open_moment(session, &moments[m], m == 1, kept[m], result ? NULL : error);
        if (!result) result = opened;
        moments[m].stored = stored;
    }
    for (size_t i = 0; i < restore->n_optimizer_files && !result; i++) {
        snprintf(path, sizeof path, "%s/%.100s", restore->directory, restore->optimizer_files[i]);
        result = read_file(session, path, moments, error);
    }
    const struct moments_at begun =
        result ? (struct moments_at){0} : begin_unfrozen(session, stored, restore->optimizer_steps);
    free(stored);
    for (int m = 0; m < 2 && !result; m++)
        result = check_found(session, &moments[m], m ? begun.v : begun.m, restore->directory, error);
    if (!result) result = session_list_parts(session, error); /* moments have got their ages */
    for (int m = 0; m < 2; m++) close_moment(session, &moments[m], kept[m], !result);
    return result ? result : device_wait(session->kernels, error);
}

int checkpoint_restore(struct session *session, const Gacc__V1__Restore *restore, struct error *error)
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/%s", restore->directory, CHECKPOINT_MODEL);
    int result = 0;
    if (restore->optimizer_steps >= session->layout.until)
        result = session_reopen_layout(session, restore->optimizer_steps, error);
    if (!result) result = session_initialise(session, path, error);
    return result ? result : restore_moments(session, restore, error);
}
