/*
 * A window stage by stage. A model is cut into segments before each stage that needs statistics; all micro-batches go
 * through a segment before any goes through the next, so that what enters that stage is known of the whole window, over
 * all ranks. It is kept. On the way back a segment is run once more from there, and the gradient of what enters it is
 * kept of every micro-batch, until its sums over the window are known.
 */
#include <assert.h>
#include <stdlib.h>

#include "worker/memory.h"
#include "worker/model_memory.h"
#include "worker/statistics.h"

struct window_memory {
    struct kernels *kernels;
    uint32_t passes;
    size_t sets;
    void *arena;
    compute **kept;     /* [sets][passes] what enters the stages that need statistics */
    compute **gradient; /* [passes] its gradient, of the one that the way back is at */
};

/* The stage that begins the segment; there is one more segment than there are sets. */
static size_t segment_begin(const struct model *model, size_t segment)
{
    size_t i = 0;
    if (segment == 0) return 0;
    while (!model->stages[i].class->statistics || model->stages[i].set != segment - 1) i++;
    return i;
}

static size_t segment_end(const struct model *model, size_t segment)
{
    return segment == model->set_count ? model->stage_count : segment_begin(model, segment + 1);
}

/* --- memory ------------------------------------------------------------------------------------------------------ */

static size_t bytes_before(const struct model *model, size_t stage, size_t rows)
{
    return stage_out_bytes(&model->stages[stage - 1], rows);
}

static uint64_t lay_out(struct window_memory *memory, const struct model *model, uint32_t passes, size_t rows)
{
    struct carver carver = {.base = memory ? (uintptr_t)memory->arena : 0};
    size_t most = 0;
    for (size_t set = 0; set < model->set_count; set++) {
        const size_t bytes = bytes_before(model, segment_begin(model, set + 1), rows);
        if (bytes > most) most = bytes;
        for (uint32_t k = 0; k < passes; k++) {
            compute *at = carve(&carver, bytes);
            if (memory) memory->kept[set * passes + k] = at;
        }
    }
    for (uint32_t k = 0; k < passes; k++) {
        compute *at = carve(&carver, most);
        if (memory) memory->gradient[k] = at;
    }
    return carver.used;
}

uint64_t window_memory_measure(const struct model *model, uint32_t passes, size_t rows)
{
    return lay_out(NULL, model, passes, rows);
}

int window_memory_open(struct window_memory **out, const struct model *model, struct kernels *kernels, uint32_t passes,
                       size_t rows, struct error *error)
{
    *out = NULL;
    struct window_memory *memory = calloc(1, sizeof *memory);
    if (!memory) return error_set(error, STATUS_INTERNAL, "out of memory for a window");
    *memory = (struct window_memory){.kernels = kernels, .passes = passes, .sets = model->set_count};
    memory->kept = calloc(model->set_count * passes + 1, sizeof *memory->kept);
    memory->gradient = calloc(passes + 1, sizeof *memory->gradient);
    int result = memory->kept && memory->gradient
                     ? memory_reserve(kernels, &memory->arena, window_memory_measure(model, passes, rows),
                                      "what is kept of a window", error)
                     : error_set(error, STATUS_INTERNAL, "out of memory for a window");
    if (result) {
        window_memory_close(memory);
        return result;
    }
    lay_out(memory, model, passes, rows);
    *out = memory;
    return 0;
}

void window_memory_close(struct window_memory *memory)
{
    if (!memory) return;
    memory->kernels->table->release(memory->kernels, memory->arena);
    free(memory->kept);
    free(memory->gradient);
    free(memory);
}

uint32_t window_memory_passes(const struct window_memory *memory)
{
    return memory ? memory->passes : 0;
}

/* --- the passes -------------------------------------------------------------------------------------------------- */

struct run {
    const struct model *model;
    const struct window_passes *passes;
    struct statistics *statistics;
    struct activations *activations;
    struct window_memory *memory;
};

static bool open_pass(const struct run *run, uint32_t k, struct pass *pass)
{
    if (!run->passes->open(run->passes->context, k, pass)) return false;
    pass->sets = SETS_OF_WINDOW;
    return true;
}

/* What enters the segment, and what leaves it, of pass k; NULL at the ends of the model. */
static compute *entering(const struct run *run, size_t segment, uint32_t k)
{
    return segment == 0 ? NULL : run->memory->kept[(segment - 1) * run->memory->passes + k];
}

static compute *leaving(const struct run *run, size_t segment, uint32_t k)
{
    return segment == run->model->set_count ? NULL : entering(run, segment + 1, k);
}

static void forward(const struct run *run, struct pass *pass, size_t segment, uint32_t k)
{
    const size_t begin = segment_begin(run->model, segment), end = segment_end(run->model, segment);
    const compute *in = entering(run, segment, k);
    for (size_t i = begin; i < end; i++) {
        const struct stage *stage = &run->model->stages[i];
        compute *out = i + 1 == end ? leaving(run, segment, k) : run->activations->stages[i].out;
        stage->class->forward(stage, pass, in, out, run->activations->stages[i].saved, run->activations->scratch);
        in = out;
    }
}

/* All micro-batches through a segment, and the set that comes behind it complete. Returns the last of them, of which
 * the segment's stages hold what they saved. */
static uint32_t forward_all(const struct run *run, size_t segment)
{
    const struct stage *next = &run->model->stages[segment_end(run->model, segment)];
    struct stage_statistics *set = &run->statistics->stages[segment];
    struct pass pass;
    uint32_t held = UINT32_MAX;
    statistics_begin_set(set);
    for (uint32_t k = 0; k < run->passes->count; k++) {
        if (!open_pass(run, k, &pass)) continue;
        forward(run, &pass, segment, k);
        next->class->add_moments(next, &pass, leaving(run, segment, k), run->activations->scratch);
        held = k;
    }
    statistics_settle(run->statistics, set);
    return held;
}

/* Where the gradient of what enters stage i goes: that of what enters the segment is kept. */
static compute *gradient_before(const struct run *run, size_t segment, size_t i, uint32_t k)
{
    if (i == 0) return NULL;
    return i == segment_begin(run->model, segment) + 1 && segment > 0 ? run->memory->gradient[k]
                                                                      : run->activations->gradient[(i - 1) % 2];
}

/* From the segment's end to what enters it: there the stage that needs sums over the window only adds to them. */
static void backward(const struct run *run, struct pass *pass, size_t segment, uint32_t k)
{
    const struct model *model = run->model;
    struct activations *activations = run->activations;
    const size_t begin = segment_begin(model, segment), end = segment_end(model, segment);
    const compute *dout = NULL;
    if (end < model->stage_count) { /* first the next segment's first stage, whose sums are known by now */
        const struct stage *next = &model->stages[end];
        compute *din = gradient_before(run, segment, end, k);
        next->class->backward(next, pass, din, run->memory->gradient[k], leaving(run, segment, k),
                              activations->stages[end].saved, activations->scratch);
        dout = din;
    }
    for (size_t i = end; i-- > begin && i >= model->first_trained;) {
        const struct stage *stage = &model->stages[i];
        const compute *in = i > begin ? activations->stages[i - 1].out : entering(run, segment, k);
        void *saved = activations->stages[i].saved;
        if (i == begin && segment > 0) {
            stage->class->add_sums(stage, pass, dout, in, saved, activations->scratch);
            return;
        }
        compute *din = gradient_before(run, segment, i, k);
        stage->class->backward(stage, pass, din, dout, in, saved, activations->scratch);
        dout = din;
    }
}

/* held: the micro-batch whose forward through the segment need not be repeated. */
static void backward_all(const struct run *run, size_t segment, uint32_t held)
{
    struct stage_statistics *set = segment > 0 ? &run->statistics->stages[segment - 1] : NULL;
    const bool is_last = segment == run->model->set_count;
    struct pass pass;
    if (set) statistics_begin_sums(set);
    for (uint32_t k = run->passes->count; k-- > 0;) {
        if (!open_pass(run, k, &pass)) continue;
        if (is_last || k != held) forward(run, &pass, segment, k);
        backward(run, &pass, segment, k);
        if (is_last) run->passes->done(run->passes->context, k);
        if (run->passes->added) run->passes->added(run->passes->context);
    }
    if (set) statistics_settle_sums(run->statistics, set);
}

void model_run_window(const struct model *model, const struct window_passes *passes, struct statistics *statistics,
                      struct activations *activations, struct window_memory *memory)
{
    const struct run run = {model, passes, statistics, activations, memory};
    uint32_t held[SETS_MAX];
    assert(passes->count <= window_memory_passes(memory) && model->set_count <= SETS_MAX);
    for (size_t segment = 0; segment < model->set_count; segment++) held[segment] = forward_all(&run, segment);
    for (size_t segment = model->set_count + 1; segment-- > 0;) {
        backward_all(&run, segment, segment < model->set_count ? held[segment] : UINT32_MAX);
        if (model->first_trained >= segment_begin(model, segment)) break;
    }
}
