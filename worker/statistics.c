#include "worker/statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "worker/device.h"
#include "worker/memory.h"

void moments_join(struct moments *into, const struct moments *other, size_t channels)
{
    const double count = into->count + other->count;
    if (!(other->count > 0)) return;
    for (size_t c = 0; c < channels; c++) {
        const double apart = other->mean[c] - into->mean[c];
        into->mean[c] += apart * (other->count / count);
        into->squares[c] += other->squares[c] + apart * apart * (into->count * other->count / count);
    }
    into->count = count;
}

/* --- memory ------------------------------------------------------------------------------------------------------ */

/* Doubles of a stage: moments, sums, running, narrowed, part; and of what a step's are in. */
static size_t doubles_of(size_t channels)
{
    return 10 * channels;
}

static size_t steps_of(size_t channels)
{
    return 2 * channels;
}

static size_t most_channels(const struct model *model)
{
    size_t most = 0;
    for (size_t i = 0; i < model->stage_count; i++) {
        const size_t channels = stage_channels(&model->stages[i]);
        if (channels > most) most = channels;
    }
    return most;
}

size_t statistics_measure(const struct model *model, uint32_t ranks)
{
    size_t doubles = ranks * (1 + 2 * most_channels(model));
    for (size_t i = 0; i < model->stage_count; i++) {
        const size_t channels = stage_channels(&model->stages[i]);
        doubles += doubles_of(channels) + steps_of(channels);
    }
    return model->set_count ? doubles * sizeof(double) : 0;
}

static int open_stage(struct stage_statistics *stage, const struct stage *of, struct error *error)
{
    const size_t channels = stage_channels(of);
    double *memory = calloc(doubles_of(channels), sizeof *memory);
    if (!memory) return error_set(error, STATUS_INTERNAL, "out of memory for statistics");
    stage->channels = channels;
    stage->set = (struct moments){0, memory, memory + channels};
    stage->sums = memory + 2 * channels;
    stage->running = memory + 4 * channels;
    stage->narrowed = memory + 6 * channels;
    stage->part = memory + 8 * channels;
    of->class->statistics(of, &stage->running_mean, &stage->running_variance);
    for (size_t c = 0; c < channels; c++) stage->running[channels + c] = 1;
    return 0;
}

/* Those of the step, in the kernels' memory and in the host's. */
static int open_steps(struct statistics *statistics, struct error *error)
{
    size_t doubles = 0;
    for (size_t i = 0; i < statistics->count; i++) doubles += steps_of(statistics->stages[i].channels);
    statistics->steps_bytes = doubles * sizeof(double);
    int result =
        memory_reserve(statistics->kernels, (void **)&statistics->own, statistics->steps_bytes, "statistics", error);
    if (result) return result;
    statistics->steps =
        statistics->kernels->table->on_host ? statistics->own : calloc(doubles, sizeof *statistics->steps);
    if (!statistics->steps) return error_set(error, STATUS_INTERNAL, "out of memory for statistics");
    for (size_t i = 0, at = 0; i < statistics->count; i++) {
        struct stage_statistics *stage = &statistics->stages[i];
        stage->step = (struct moments){0, statistics->steps + at, statistics->steps + at + stage->channels};
        stage->own = statistics->own + at;
        at += steps_of(stage->channels);
    }
    return 0;
}

int statistics_open(struct statistics **out, const struct model *model, struct kernels *kernels, uint32_t ranks,
                    struct error *error)
{
    *out = NULL;
    struct statistics *statistics = calloc(1, sizeof *statistics);
    if (!statistics) return error_set(error, STATUS_INTERNAL, "out of memory for statistics");
    statistics->stages = calloc(model->set_count, sizeof *statistics->stages);
    statistics->gathered = calloc(ranks * (1 + 2 * most_channels(model)), sizeof *statistics->gathered);
    statistics->wide_type = dtype_wide(model->compute_type);
    statistics->momentum = model->spec->norm_momentum;
    statistics->kernels = kernels;
    statistics->ranks = ranks;
    int result = statistics->stages && statistics->gathered
                     ? 0
                     : error_set(error, STATUS_INTERNAL, "out of memory for statistics");
    for (size_t i = 0; i < model->stage_count && !result; i++)
        if (stage_channels(&model->stages[i]) > 0)
            result = open_stage(&statistics->stages[statistics->count++], &model->stages[i], error);
    if (!result) result = open_steps(statistics, error);
    if (result) {
        statistics_close(statistics);
        return result;
    }
    *out = statistics;
    return 0;
}

void statistics_close(struct statistics *statistics)
{
    if (!statistics) return;
    for (size_t i = 0; i < statistics->count; i++) free(statistics->stages[i].set.mean);
    if (statistics->steps != statistics->own) free(statistics->steps);
    statistics->kernels->table->release(statistics->kernels, statistics->own);
    free(statistics->stages);
    free(statistics->gathered);
    free(statistics);
}

/* --- sets -------------------------------------------------------------------------------------------------------- */

static void clear_moments(struct moments *moments, size_t channels)
{
    moments->count = 0;
    memset(moments->mean, 0, channels * sizeof *moments->mean);
    memset(moments->squares, 0, channels * sizeof *moments->squares);
}

void statistics_begin(struct statistics *statistics)
{
    statistics->failure = (struct error){0};
    statistics->has_single = false;
    for (size_t i = 0; i < statistics->count; i++)
        clear_moments(&statistics->stages[i].step, statistics->stages[i].channels);
    statistics->kernels->table->clear(statistics->kernels, statistics->own, statistics->steps_bytes);
}

void statistics_begin_set(struct stage_statistics *stage)
{
    clear_moments(&stage->set, stage->channels);
}

void statistics_begin_sums(struct stage_statistics *stage)
{
    memset(stage->sums, 0, 2 * stage->channels * sizeof *stage->sums);
}

void statistics_add(struct stage_statistics *stage, double count)
{
    moments_join(&stage->set, &(struct moments){count, stage->part, stage->part + stage->channels}, stage->channels);
}

void statistics_add_sums(struct stage_statistics *stage)
{
    for (size_t i = 0; i < 2 * stage->channels; i++) stage->sums[i] += stage->part[i];
}

/* Of all ranks, joined in their order on each of them. `moments` lies as struct stage_statistics has it. */
static int join_ranks(struct statistics *statistics, struct moments *moments, size_t channels,
                      int (*gather)(void *, const double *, double *, size_t, struct error *), struct error *error)
{
    const size_t width = 1 + 2 * channels;
    double *own = statistics->gathered, *all = statistics->gathered;
    own[0] = moments->count;
    memcpy(own + 1, moments->mean, channels * sizeof *own);
    memcpy(own + 1 + channels, moments->squares, channels * sizeof *own);
    int result = gather(statistics->context, own, all, width, error);
    clear_moments(moments, channels);
    for (uint32_t rank = 0; rank < statistics->ranks && !result; rank++) {
        double *part = all + rank * width;
        moments_join(moments, &(struct moments){part[0], part + 1, part + 1 + channels}, channels);
    }
    return result;
}

void statistics_settle(struct statistics *statistics, struct stage_statistics *stage)
{
    if (statistics->gather && !statistics->failure.status)
        join_ranks(statistics, &stage->set, stage->channels, statistics->gather, &statistics->failure);
    statistics->has_single |= stage->set.count == 1;
    moments_join(&stage->step, &stage->set, stage->channels);
}

void statistics_settle_own(struct statistics *statistics, struct stage_statistics *stage, double count)
{
    statistics->has_single |= count == 1;
    stage->step.count += count;
}

void statistics_settle_sums(struct statistics *statistics, struct stage_statistics *stage)
{
    const size_t width = 2 * stage->channels;
    if (!statistics->gather || statistics->failure.status) return;
    if (statistics->gather(statistics->context, stage->sums, statistics->gathered, width, &statistics->failure)) return;
    memset(stage->sums, 0, width * sizeof *stage->sums);
    for (uint32_t rank = 0; rank < statistics->ranks; rank++)
        for (size_t i = 0; i < width; i++) stage->sums[i] += statistics->gathered[rank * width + i];
}

static void put_wide(const struct statistics *statistics, wide *values, size_t index, double value)
{
    if (statistics->wide_type == DTYPE_FP64)
        ((double *)values)[index] = value;
    else
        ((float *)values)[index] = (float)value;
}

void statistics_narrow(const struct statistics *statistics, struct stage_statistics *stage, bool running)
{
    for (size_t c = 0; c < stage->channels; c++) {
        const double mean = running ? stage->running[c] : stage->set.mean[c];
        const double variance =
            running ? stage->running[stage->channels + c] : stage->set.squares[c] / stage->set.count;
        put_wide(statistics, stage->narrowed, c, mean);
        put_wide(statistics, stage->narrowed, stage->channels + c, 1 / sqrt(variance + NORM_EPS));
    }
}

/* --- running ----------------------------------------------------------------------------------------------------- */

double statistics_as_kept(const struct statistics *statistics, double value)
{
    return statistics->wide_type == DTYPE_FP64 ? value : (double)(float)value;
}

static void advance(const struct statistics *statistics, struct stage_statistics *stage)
{
    const double momentum = statistics->momentum, count = stage->step.count;
    if (!(count > 0)) return;
    for (size_t c = 0; c < stage->channels; c++)
        if (!isfinite(stage->step.mean[c]) || !isfinite(stage->step.squares[c])) return;
    for (size_t c = 0; c < stage->channels; c++) {
        double *mean = &stage->running[c], *variance = &stage->running[stage->channels + c];
        *mean = statistics_as_kept(statistics, (1 - momentum) * *mean + momentum * stage->step.mean[c]);
        if (count > 1)
            *variance = statistics_as_kept(statistics, (1 - momentum) * *variance +
                                                           momentum * stage->step.squares[c] / (count - 1));
    }
}

int statistics_advance(struct statistics *statistics,
                       int (*gather)(void *context, const double *own, double *all, size_t count, struct error *error),
                       struct error *error)
{
    int result = 0;
    if (!statistics->gather)
        result =
            device_download(statistics->kernels, statistics->steps, statistics->own, statistics->steps_bytes, error);
    for (size_t i = 0; i < statistics->count && !result; i++) {
        struct stage_statistics *stage = &statistics->stages[i];
        result = gather ? join_ranks(statistics, &stage->step, stage->channels, gather, error) : 0;
        if (!result) advance(statistics, stage);
    }
    return result;
}
