/*
 * A device for tests: the CPU's kernels on memory that the host cannot touch. It lies in an arena without access rights
 * but while the device works, every pointer that a kernel is given must lie in it, and work is done as late as the
 * contract of kernels.h permits: when the host waits. Work can be recorded. Its transport, where it has one, runs
 * beside the kernels, as early or as late as comm.h permits, and reads and writes whole parts.
 */
#ifndef GACC_TEST_FAKE_DEVICE_H
#define GACC_TEST_FAKE_DEVICE_H

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "worker/device.h"

#define FAKE_ARENA ((size_t)8 << 20)
#define FAKE_ARGUMENTS 160
#define FAKE_STARTED 256

struct fake_device {
    struct device device; /* first */
    size_t memory;        /* of each kernels' arena; 0: FAKE_ARENA */
    bool records;         /* recorded work is offered … */
    bool refuses_to_record;
    bool early;             /* its transport runs at once; else when it is joined */
    unsigned fails_at_wait; /* the n-th wait or download of every kernels fails, and all that follow; 0: none */
    atomic_uint recordings, replays, waits, uploads;
};

struct fake;

struct fake_call {
    void (*run)(struct fake *, const void *arguments);
    void *copy; /* of an upload's source; freed when it has run */
    _Alignas(16) unsigned char arguments[FAKE_ARGUMENTS];
};

struct recording {
    struct fake_call *calls;
    size_t count, room;
};

struct fake {
    struct kernels head;
    struct kernel_table table;
    struct kernels *cpu;
    struct fake_device *device;
    char *arena;
    size_t bytes, used;
    struct {
        char *at;
        size_t bytes;
    } blocks[64]; /* that were allocated */
    size_t block_count;
    unsigned waits;
    struct recording queue;    /* what was asked for and has not run */
    struct recording *writing; /* instead of the queue, while recording */
};

__attribute__((noreturn)) static inline void fake_refuse(const char *name, const char *why)
{
    fprintf(stderr, "fake device: %s: %s\n", name, why);
    abort();
}

/* --- the queue ----------------------------------------------------------------------------------------------- */

static inline void fake_append(struct recording *to, const struct fake_call *call)
{
    if (to->count == to->room) {
        to->room = 2 * to->room + 64;
        to->calls = realloc(to->calls, to->room * sizeof *to->calls);
        if (!to->calls) abort();
    }
    to->calls[to->count++] = *call;
}

static inline void fake_allow(const struct fake *fake, bool access)
{
    if (mprotect(fake->arena, fake->bytes, access ? PROT_READ | PROT_WRITE : PROT_NONE)) abort();
}

static inline void fake_flush(struct fake *fake)
{
    fake_allow(fake, true);
    for (size_t i = 0; i < fake->queue.count; i++) {
        const struct fake_call call = fake->queue.calls[i];
        call.run(fake, call.arguments);
        free(call.copy);
    }
    fake->queue.count = 0;
    fake_allow(fake, false);
}

static inline void fake_ask(struct fake *fake, void (*run)(struct fake *, const void *), const void *arguments,
                            size_t bytes, void *copy)
{
    struct fake_call call = {.run = run, .copy = copy};
    if (bytes > sizeof call.arguments) abort();
    memcpy(call.arguments, arguments, bytes);
    fake_append(fake->writing ? fake->writing : &fake->queue, &call);
}

/* --- memory -------------------------------------------------------------------------------------------------- */

static inline void fake_point(const struct fake *fake, const char *name, const void *at)
{
    const char *pointer = at;
    if (at && (pointer < fake->arena || pointer >= fake->arena + fake->bytes))
        fake_refuse(name, "a pointer of the host");
}

static inline void *fake_allocate(struct kernels *kernels, size_t bytes)
{
    struct fake *fake = (struct fake *)kernels;
    size_t rounded = (bytes + 511) / 256 * 256;
    if (fake->writing) fake_refuse("allocate", "while recording");
    if (rounded > fake->bytes - fake->used) return NULL;
    if (fake->block_count == sizeof fake->blocks / sizeof *fake->blocks) abort();
    char *at = fake->arena + fake->used;
    fake->used += rounded;
    fake->blocks[fake->block_count].at = at;
    fake->blocks[fake->block_count++].bytes = bytes;
    return at;
}

/* All of it inside one block as it was asked for. */
static inline void fake_span(const struct fake *fake, const char *name, const void *at, size_t bytes)
{
    const char *begin = at;
    for (size_t i = 0; i < fake->block_count; i++)
        if (begin >= fake->blocks[i].at && begin + bytes <= fake->blocks[i].at + fake->blocks[i].bytes) return;
    fake_refuse(name, "reaches beyond its block");
}

/* Nothing is used twice: what is used after its release shows. */
static inline void fake_release(struct kernels *kernels, void *memory)
{
    struct fake *fake = (struct fake *)kernels;
    fake_point(fake, "release", memory);
    fake_flush(fake);
}

struct fake_upload {
    void *to;
    size_t bytes;
    const void *copy;
};

static inline void fake_run_upload(struct fake *fake, const void *arguments)
{
    (void)fake;
    const struct fake_upload *upload = arguments;
    memcpy(upload->to, upload->copy, upload->bytes);
}

static inline void fake_upload(struct kernels *kernels, void *to, const void *from, size_t bytes)
{
    struct fake *fake = (struct fake *)kernels;
    if (fake->writing) fake_refuse("upload", "while recording");
    if (bytes == 0) return;
    fake_point(fake, "upload", to);
    fake->device->uploads++;
    void *copy = malloc(bytes);
    if (!copy) abort();
    memcpy(copy, from, bytes);
    const struct fake_upload upload = {to, bytes, copy};
    fake_ask(fake, fake_run_upload, &upload, sizeof upload, copy);
}

static inline const char *fake_wait(struct kernels *kernels)
{
    struct fake *fake = (struct fake *)kernels;
    if (fake->writing) fake_refuse("wait", "while recording");
    fake->device->waits++;
    fake_flush(fake);
    if (fake->device->fails_at_wait == 0 || ++fake->waits < fake->device->fails_at_wait) return NULL;
    return "the device failed";
}

static inline const char *fake_download(struct kernels *kernels, void *to, const void *from, size_t bytes)
{
    struct fake *fake = (struct fake *)kernels;
    if (bytes > 0) fake_point(fake, "download", from);
    const char *failure = fake_wait(kernels);
    if (failure || bytes == 0) return failure;
    fake_allow(fake, true);
    memcpy(to, from, bytes);
    fake_allow(fake, false);
    return NULL;
}

static inline bool fake_memory_left(struct kernels *kernels, uint64_t *left, uint64_t *all)
{
    const struct fake *fake = (struct fake *)kernels;
    *left = fake->bytes - fake->used;
    *all = fake->bytes;
    return true;
}

/* --- kernels: their arguments are checked, kept, and given to the CPU's when the time comes -------------------- */

/* An argument, if it is a pointer. */
static inline void fake_check_argument(const struct fake *fake, bool is_pointer, const void *argument)
{
    const void *pointer;
    if (!is_pointer) return;
    memcpy(&pointer, argument, sizeof pointer);
    fake_point(fake, "a kernel", pointer);
}

#define FAKE_IS_POINTER(x)                                                                             \
    _Generic((x), void * : 1, const void * : 1, double * : 1, const double * : 1, const int32_t * : 1, \
             struct gradient_check * : 1, default : 0)

#define FIELDS_3(A, B, C) \
    A a;                  \
    B b;                  \
    C c;
#define FIELDS_4(A, B, C, D) FIELDS_3(A, B, C) D d;
#define FIELDS_5(A, B, C, D, E) FIELDS_4(A, B, C, D) E e;
#define FIELDS_6(A, B, C, D, E, F) FIELDS_5(A, B, C, D, E) F f;
#define FIELDS_7(A, B, C, D, E, F, G) FIELDS_6(A, B, C, D, E, F) G g;
#define FIELDS_9(A, B, C, D, E, F, G, H, I) \
    FIELDS_7(A, B, C, D, E, F, G) H h;      \
    I i;
#define FIELDS_10(A, B, C, D, E, F, G, H, I, J) FIELDS_9(A, B, C, D, E, F, G, H, I) J j;
#define FIELDS_11(A, B, C, D, E, F, G, H, I, J, K) FIELDS_10(A, B, C, D, E, F, G, H, I, J) K k;

#define PARAMETERS_3(A, B, C) A a, B b, C c
#define PARAMETERS_4(A, B, C, D) PARAMETERS_3(A, B, C), D d
#define PARAMETERS_5(A, B, C, D, E) PARAMETERS_4(A, B, C, D), E e
#define PARAMETERS_6(A, B, C, D, E, F) PARAMETERS_5(A, B, C, D, E), F f
#define PARAMETERS_7(A, B, C, D, E, F, G) PARAMETERS_6(A, B, C, D, E, F), G g
#define PARAMETERS_9(A, B, C, D, E, F, G, H, I) PARAMETERS_7(A, B, C, D, E, F, G), H h, I i
#define PARAMETERS_10(A, B, C, D, E, F, G, H, I, J) PARAMETERS_9(A, B, C, D, E, F, G, H, I), J j
#define PARAMETERS_11(A, B, C, D, E, F, G, H, I, J, K) PARAMETERS_10(A, B, C, D, E, F, G, H, I, J), K k

#define EACH_3(X) X(a) X(b) X(c)
#define EACH_4(X) EACH_3(X) X(d)
#define EACH_5(X) EACH_4(X) X(e)
#define EACH_6(X) EACH_5(X) X(f)
#define EACH_7(X) EACH_6(X) X(g)
#define EACH_9(X) EACH_7(X) X(h) X(i)
#define EACH_10(X) EACH_9(X) X(j)
#define EACH_11(X) EACH_10(X) X(k)

#define GIVEN_3 a, b, c
#define GIVEN_4 GIVEN_3, d
#define GIVEN_5 GIVEN_4, e
#define GIVEN_6 GIVEN_5, f
#define GIVEN_7 GIVEN_6, g
#define GIVEN_9 GIVEN_7, h, i
#define GIVEN_10 GIVEN_9, j
#define GIVEN_11 GIVEN_10, k

#define KEPT_3 x->a, x->b, x->c
#define KEPT_4 KEPT_3, x->d
#define KEPT_5 KEPT_4, x->e
#define KEPT_6 KEPT_5, x->f
#define KEPT_7 KEPT_6, x->g
#define KEPT_9 KEPT_7, x->h, x->i
#define KEPT_10 KEPT_9, x->j
#define KEPT_11 KEPT_10, x->k

#define FAKE_CHECK_ONE(x) fake_check_argument(fake, FAKE_IS_POINTER(x), &(x));
#define FAKE(n, name, ...)                                                               \
    struct fake_##name {                                                                 \
        FIELDS_##n(__VA_ARGS__)                                                          \
    };                                                                                   \
    static inline void fake_run_##name(struct fake *fake, const void *arguments)         \
    {                                                                                    \
        const struct fake_##name *x = arguments;                                         \
        fake->cpu->table->name(fake->cpu, KEPT_##n);                                     \
    }                                                                                    \
    static inline void fake_##name(struct kernels *kernels, PARAMETERS_##n(__VA_ARGS__)) \
    {                                                                                    \
        struct fake *fake = (struct fake *)kernels;                                      \
        EACH_##n(FAKE_CHECK_ONE) const struct fake_##name kept = {GIVEN_##n};            \
        fake_ask(fake, fake_run_##name, &kept, sizeof kept, NULL);                       \
    }

#define TO void *
#define FROM const void *
FAKE(3, copy, TO, FROM, size_t)
FAKE(7, linear_forward, TO, TO, FROM, FROM, FROM, struct linear_shape, enum activation)
FAKE(7, linear_backward_input, TO, TO, FROM, FROM, FROM, struct linear_shape, enum activation)
FAKE(5, linear_backward_weight, TO, TO, FROM, FROM, struct linear_shape)
FAKE(5, add, TO, FROM, double, FROM, size_t)
FAKE(4, activation_forward, TO, FROM, enum activation, size_t)
FAKE(5, activation_backward, TO, FROM, FROM, enum activation, size_t)
FAKE(7, embedding_forward, TO, const int32_t *, FROM, FROM, size_t, size_t, size_t)
FAKE(7, embedding_backward, TO, TO, FROM, const int32_t *, size_t, size_t, size_t)
FAKE(10, layernorm_forward, TO, TO, TO, TO, FROM, FROM, FROM, FROM, size_t, size_t)
FAKE(11, layernorm_backward, TO, FROM, TO, TO, FROM, FROM, FROM, FROM, FROM, size_t, size_t)
FAKE(9, cross_entropy, TO, const int32_t *, const double *, FROM, size_t, size_t, size_t, size_t, double *)
FAKE(9, squared_error, TO, FROM, const double *, const double *, FROM, double, size_t, size_t, double *)
FAKE(6, linear_loss, const double *, const double *, FROM, size_t, size_t, double *)
FAKE(5, cast_rows, TO, const double *, const double *, size_t, size_t)
FAKE(3, cast, TO, FROM, size_t)
FAKE(3, accumulate, TO, FROM, size_t)
FAKE(4, check, struct gradient_check *, FROM, size_t, double)

struct fake_clear {
    void *memory;
    size_t bytes;
};

static inline void fake_run_clear(struct fake *fake, const void *arguments)
{
    const struct fake_clear *x = arguments;
    fake->cpu->table->clear(fake->cpu, x->memory, x->bytes);
}

static inline void fake_clear(struct kernels *kernels, void *memory, size_t bytes)
{
    const struct fake_clear kept = {memory, bytes};
    fake_point((struct fake *)kernels, "clear", memory);
    fake_ask((struct fake *)kernels, fake_run_clear, &kept, sizeof kept, NULL);
}

/* Numbers that a call points to are the caller's, and may be gone when it has returned. */
struct fake_drops {
    bool drops;
    struct dropout dropout;
};

static inline struct fake_drops fake_keep_dropout(const struct fake *fake, const struct dropout *dropout)
{
    if (!dropout) return (struct fake_drops){0};
    fake_point(fake, "dropout", dropout->key);
    fake_point(fake, "dropout", dropout->sequence);
    return (struct fake_drops){true, *dropout};
}

struct fake_dropout {
    void *out;
    const void *x;
    struct fake_drops drops;
    size_t batch, elements;
};

static inline void fake_run_dropout(struct fake *fake, const void *arguments)
{
    const struct fake_dropout *x = arguments;
    fake->cpu->table->dropout(fake->cpu, x->out, x->x, &x->drops.dropout, x->batch, x->elements);
}

static inline void fake_dropout(struct kernels *kernels, void *out, const void *x, const struct dropout *dropout,
                                size_t batch, size_t elements)
{
    struct fake *fake = (struct fake *)kernels;
    const struct fake_dropout kept = {out, x, fake_keep_dropout(fake, dropout), batch, elements};
    fake_point(fake, "dropout", out), fake_point(fake, "dropout", x);
    fake_ask(fake, fake_run_dropout, &kept, sizeof kept, NULL);
}

struct fake_attention {
    void *to, *lse_to;
    const void *dout, *out, *lse, *qkv;
    struct fake_drops drops;
    struct attention_shape shape;
};

static inline void fake_run_attention(struct fake *fake, const void *arguments)
{
    const struct fake_attention *x = arguments;
    const struct kernel_table *table = fake->cpu->table;
    const struct dropout *dropout = x->drops.drops ? &x->drops.dropout : NULL;
    if (x->lse_to)
        table->attention_forward(fake->cpu, x->to, x->lse_to, x->qkv, dropout, x->shape);
    else
        table->attention_backward(fake->cpu, x->to, x->dout, x->out, x->lse, x->qkv, dropout, x->shape);
}

static inline void fake_ask_attention(struct fake *fake, const struct fake_attention *kept)
{
    const void *const pointers[] = {kept->to, kept->lse_to, kept->dout, kept->out, kept->lse, kept->qkv};
    for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++) fake_point(fake, "attention", pointers[i]);
    fake_ask(fake, fake_run_attention, kept, sizeof *kept, NULL);
}

static inline void fake_attention_forward(struct kernels *kernels, void *out, void *lse, const void *qkv,
                                          const struct dropout *dropout, struct attention_shape shape)
{
    struct fake *fake = (struct fake *)kernels;
    const struct fake_attention kept = {
        .to = out, .lse_to = lse, .qkv = qkv, .drops = fake_keep_dropout(fake, dropout), .shape = shape};
    fake_ask_attention(fake, &kept);
}

static inline void fake_attention_backward(struct kernels *kernels, void *dqkv, const void *dout, const void *out,
                                           const void *lse, const void *qkv, const struct dropout *dropout,
                                           struct attention_shape shape)
{
    struct fake *fake = (struct fake *)kernels;
    const struct fake_attention kept = {.to = dqkv,
                                        .dout = dout,
                                        .out = out,
                                        .lse = lse,
                                        .qkv = qkv,
                                        .drops = fake_keep_dropout(fake, dropout),
                                        .shape = shape};
    fake_ask_attention(fake, &kept);
}

struct fake_update {
    void *master, *m, *v;
    const void *gradient;
    size_t n;
    struct update update;
};

static inline void fake_run_update(struct fake *fake, const void *arguments)
{
    const struct fake_update *x = arguments;
    fake->cpu->table->update(fake->cpu, x->master, x->m, x->v, x->gradient, x->n, &x->update);
}

static inline void fake_update(struct kernels *kernels, void *master, void *m, void *v, const void *gradient, size_t n,
                               const struct update *update)
{
    struct fake *fake = (struct fake *)kernels;
    const struct fake_update kept = {master, m, v, gradient, n, *update};
    const void *const pointers[] = {master, m, v, gradient};
    for (size_t i = 0; i < 4; i++) fake_point(fake, "update", pointers[i]);
    fake_ask(fake, fake_run_update, &kept, sizeof kept, NULL);
}

/* --- recorded work ------------------------------------------------------------------------------------------- */

static inline void fake_record(struct kernels *kernels)
{
    struct fake *fake = (struct fake *)kernels;
    if (fake->writing || !(fake->writing = calloc(1, sizeof *fake->writing))) abort();
    fake->device->recordings++;
}

static inline void fake_recording_close(struct kernels *kernels, struct recording *recording)
{
    (void)kernels;
    free(recording->calls);
    free(recording);
}

static inline struct recording *fake_recorded(struct kernels *kernels)
{
    struct fake *fake = (struct fake *)kernels;
    struct recording *recording = fake->writing;
    fake->writing = NULL;
    if (!fake->device->refuses_to_record) return recording;
    fake_recording_close(kernels, recording);
    return NULL;
}

static inline void fake_replay(struct kernels *kernels, struct recording *recording)
{
    struct fake *fake = (struct fake *)kernels;
    fake->device->replays++;
    for (size_t i = 0; i < recording->count; i++) fake_append(&fake->queue, &recording->calls[i]);
}

/* --- opening ------------------------------------------------------------------------------------------------- */

static inline void fake_close(struct kernels *kernels)
{
    struct fake *fake = (struct fake *)kernels;
    fake_flush(fake);
    kernels_close(fake->cpu);
    munmap(fake->arena, fake->bytes);
    free(fake->queue.calls);
    free(fake);
}

static const struct kernel_table fake_table = {
    .name = "fake",
    .close = fake_close,
    .on_host = false,
    .allocate = fake_allocate,
    .release = fake_release,
    .clear = fake_clear,
    .copy = fake_copy,
    .upload = fake_upload,
    .download = fake_download,
    .wait = fake_wait,
    .memory_left = fake_memory_left,
    .record = fake_record,
    .recorded = fake_recorded,
    .replay = fake_replay,
    .recording_close = fake_recording_close,
    .linear_forward = fake_linear_forward,
    .linear_backward_input = fake_linear_backward_input,
    .linear_backward_weight = fake_linear_backward_weight,
    .add = fake_add,
    .activation_forward = fake_activation_forward,
    .activation_backward = fake_activation_backward,
    .dropout = fake_dropout,
    .embedding_forward = fake_embedding_forward,
    .embedding_backward = fake_embedding_backward,
    .layernorm_forward = fake_layernorm_forward,
    .layernorm_backward = fake_layernorm_backward,
    .attention_forward = fake_attention_forward,
    .attention_backward = fake_attention_backward,
    .cross_entropy = fake_cross_entropy,
    .squared_error = fake_squared_error,
    .linear_loss = fake_linear_loss,
    .cast_rows = fake_cast_rows,
    .cast = fake_cast,
    .accumulate = fake_accumulate,
    .check = fake_check,
    .update = fake_update,
};

static inline struct kernels *fake_open_kernels(const struct device *device, const struct kernels_options *options,
                                                struct error *error)
{
    struct fake_device *own = (struct fake_device *)(uintptr_t)device;
    struct fake *fake = calloc(1, sizeof *fake);
    struct kernels *cpu = kernels_open_cpu(options);
    if (!fake || !cpu) abort();
    fake->cpu = cpu;
    fake->device = own;
    fake->table = fake_table;
    if (!own->records) fake->table.record = NULL;
    fake->head = (struct kernels){&fake->table, options->compute_type, cpu->threads};
    fake->bytes = own->memory ? own->memory : FAKE_ARENA;
    fake->arena = mmap(NULL, fake->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fake->arena == MAP_FAILED) abort();
    (void)error;
    return &fake->head;
}

/* --- a transport beside the kernels --------------------------------------------------------------------------- */

struct fake_collective {
    uint32_t bucket;
    uint64_t begin, part;  /* where rank 0's whole part lies; the others' follow */
    const void *gradients; /* NULL: a gather */
    void *to;              /* the shard, or the parameters */
    enum dtype type;
};

struct fake_comm {
    struct comm comm;
    struct comm *host;
    struct fake *fake;
    struct range *parts;                          /* [ranks] */
    struct fake_collective started[FAKE_STARTED]; /* a ring: first come, first served, as in one stream */
    uint64_t count, done;                         /* started, and run, since the beginning */
};

/* Equal parts, whatever the parameters' number. */
static inline void fake_run_collective(struct fake_comm *comm, const struct fake_collective *it)
{
    for (uint32_t rank = 0; rank < comm->comm.ranks; rank++)
        comm->parts[rank] = (struct range){it->begin + rank * it->part, it->begin + (rank + 1) * it->part};
    const struct comm_class *class = comm->host->class;
    if (it->gradients)
        class->reduce_scatter(comm->host, it->bucket, it->gradients, it->to, it->type, comm->parts, NULL);
    else
        class->all_gather(comm->host, it->bucket, it->to, it->type, comm->parts, NULL);
}

/* To be run until `number` of them are done. */
struct fake_join {
    struct fake_comm *comm;
    uint64_t number;
};

static inline void fake_run_join(struct fake *fake, const void *arguments)
{
    (void)fake;
    const struct fake_join *join = arguments;
    struct fake_comm *comm = join->comm;
    for (; comm->done < join->number; comm->done++)
        fake_run_collective(comm, &comm->started[comm->done % FAKE_STARTED]);
}

static inline int fake_start(struct fake_comm *comm, const struct fake_collective *it)
{
    size_t size = dtype_size(it->type), whole = it->part * comm->comm.ranks * size, begin = it->begin * size;
    fake_span(comm->fake, "a collective", (const char *)(it->gradients ? it->gradients : it->to) + begin, whole);
    if (it->gradients) fake_span(comm->fake, "a collective", it->to, it->part * size);
    if (comm->fake->device->early) {
        fake_flush(comm->fake);
        fake_allow(comm->fake, true);
        fake_run_collective(comm, it);
        fake_allow(comm->fake, false);
        return 0;
    }
    if (comm->count - comm->done == FAKE_STARTED) abort();
    comm->started[comm->count++ % FAKE_STARTED] = *it;
    return 0;
}

static inline int fake_reduce_scatter(struct comm *comm, uint32_t bucket, const wide *gradients, wide *shard,
                                      enum dtype wide_type, const struct range *parts, struct error *error)
{
    (void)error;
    const struct fake_collective it = {bucket,    parts[0].begin, parts[0].end - parts[0].begin,
                                       gradients, shard,          wide_type};
    return fake_start((struct fake_comm *)comm, &it);
}

static inline int fake_all_gather(struct comm *comm, uint32_t bucket, compute *parameters, enum dtype compute_type,
                                  const struct range *parts, struct error *error)
{
    (void)error;
    const struct fake_collective it = {bucket, parts[0].begin, parts[0].end - parts[0].begin,
                                       NULL,   parameters,     compute_type};
    return fake_start((struct fake_comm *)comm, &it);
}

static inline int fake_comm_join(struct comm *comm, uint32_t bucket, struct error *error)
{
    (void)error;
    struct fake_comm *own = (struct fake_comm *)comm;
    struct fake_join join = {own, own->count};
    while (join.number > own->done && own->started[(join.number - 1) % FAKE_STARTED].bucket != bucket) join.number--;
    if (join.number > own->done) fake_ask(own->fake, fake_run_join, &join, sizeof join, NULL);
    return 0;
}

static inline int fake_broadcast(struct comm *comm, void *bytes, uint64_t count, uint32_t root, struct error *error)
{
    struct comm *host = ((struct fake_comm *)comm)->host;
    return host->class->broadcast(host, bytes, count, root, error);
}

static inline void fake_comm_close(struct comm *comm)
{
    struct fake_comm *own = (struct fake_comm *)comm;
    fake_flush(own->fake);
    if (own->done < own->count) fake_refuse("close", "a collective that nobody joined");
    free(own->parts);
    free(own);
}

static inline int fake_open_comm(const struct device *device, struct comm **out, struct comm *host,
                                 struct kernels *kernels, uint64_t parameters, struct error *error)
{
    (void)parameters;
    static const struct comm_class class = {
        .reduce_scatter = fake_reduce_scatter,
        .all_gather = fake_all_gather,
        .join = fake_comm_join,
        .broadcast = fake_broadcast,
        .close = fake_comm_close,
    };
    (void)error;
    struct fake_comm *comm = calloc(1, sizeof *comm);
    if (!comm || !(comm->parts = calloc(host->ranks, sizeof *comm->parts))) abort();
    comm->comm = *host;
    comm->comm.class = &class;
    comm->comm.counts = (struct comm_counts){0};
    (void)device;
    comm->host = host;
    comm->fake = (struct fake *)kernels;
    *out = &comm->comm;
    return 0;
}

static inline struct fake_device fake_device(void)
{
    return (struct fake_device){.device = {.open_kernels = fake_open_kernels}};
}

#endif
